"""How many runs an engine takes at once, as asked while they run."""

import pytest

from runcatalog.cluster import dask_engine
from runcatalog.guild import elsewhere

SETTINGS = "lab: {scheduler: 'tls://127.0.0.1:1', tls: tls}\n"


def test_a_settings_file_that_is_being_edited_changes_nothing_for_a_sweep_that_runs(
    project, monkeypatch
):
    monkeypatch.setenv("ENGINE", "lab")
    free = iter([2, 3])
    monkeypatch.setattr(dask_engine, "places", lambda settings, own: next(free))
    file = project.experiments / "engines.yml"
    file.write_text(f"{SETTINGS}gpu: {{scheduler: tls://\n")
    with pytest.raises(SystemExit, match="not YAML"):
        elsewhere.Places()
    file.write_text(SETTINGS)
    places = elsewhere.Places()
    file.write_text(f"{SETTINGS}gpu: {{scheduler: tls://\n")
    assert places() == 2
    file.unlink()
    assert places() == 2
    file.write_text(SETTINGS)
    assert places() == 3


@pytest.mark.parametrize(
    "script",
    [
        "from lab.study.plan import all_runs",
        "from .plan import all_runs",
        "from . import plan",
        "from .parts import first",
        "def main():\n    from ..study.plan import all_runs",
    ],
)
def test_what_a_script_does_is_found_behind_its_relative_imports(tmp_path, script):
    """A script that starts other runs was sent away; one that reads records or finished runs found none there."""
    package = tmp_path / "src" / "lab" / "study"
    (package / "parts").mkdir(parents=True)
    (package / "train.py").write_text(script)
    (package / "plan.py").write_text(
        "from runcatalog.guild.child_runs import plan as all_runs\nimport lab.study.old\n"
    )
    (package / "old.py").write_text(
        "from runcatalog.guild import finished_runs\nFOLDER = 'x' / \"records\"\n"
    )
    (package / "parts" / "__init__.py").write_text("from .first import first\n")
    (package / "parts" / "first.py").write_text("from ..plan import all_runs as first\n")
    command = ["python", "-um", "guild.op_main", "src/lab.study.train", "--", "--lr", "1"]
    assert elsewhere.stays(command, tmp_path)
    assert elsewhere.looks_up_runs(command, tmp_path)
    assert elsewhere.reads_records(command, tmp_path)
    (package / "train.py").write_text("from . import other\nfrom .... import above\n")
    assert not elsewhere.stays(command, tmp_path)
    assert not elsewhere.looks_up_runs(command, tmp_path)
    assert not elsewhere.reads_records(command, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('FOLDER / "records"', True),
        ("FOLDER / 'records'", True),
        ('Path("experiments/records/toy")', True),
        ("glob('experiments/records/*/*.json')", True),
        ("records = read(old_records)", False),
        ("import wandb.records", False),
    ],
)
def test_records_are_shipped_to_a_script_that_names_their_folder(tmp_path, text, expected):
    (tmp_path / "train.py").write_text(text)
    assert elsewhere.reads_records(["guild.op_main", "train"], tmp_path) is expected


def test_without_the_import_hook_a_run_does_not_silently_stay_here(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("ENGINE", "lab")
    with pytest.raises(
        SystemExit, match=r"`make setup` puts it there, or `pip install` .* without -e"
    ):
        elsewhere.require()
    (tmp_path / "runcatalog_engine.pth").touch()
    elsewhere.require()
    monkeypatch.delenv("ENGINE")
    (tmp_path / "runcatalog_engine.pth").unlink()
    elsewhere.require()
