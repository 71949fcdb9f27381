"""The `catalog` command as it is typed: real Guild, real MLflow, a real clone."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import prepared
from rendered import committed, local
from runcatalog.model.project import Project
from runcatalog.record.provenance.git import commit_facts
from runcatalog.record.provenance.machine import cpu_name
from runcatalog.text import markdown

SMALL = shlex.quote(str(Path(__file__).parents[1] / "data" / "compare.csv"))


def row(text: str, name: str) -> list[str]:
    """Cells of the first row whose name begins so."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].startswith(name):
            return cells
    raise AssertionError(f"no row {name} in\n{text}")


HEAVY = ("mlflow", "torch", "matplotlib", "pandas", "numpy", "scipy", "sqlalchemy", "guild", "yaml")


def probe(shell, *lines, env=""):
    """Type `catalog …` lines in one new process; return what they print, and which heavy modules they imported."""
    calls = "".join(f"call({line!r})\n" for line in lines)
    (shell.root / "probe.py").write_text(
        "import sys, shlex\nfrom runcatalog.cli import main as cli\n"
        "def call(line):\n"
        "    try: cli.main(shlex.split(line))\n"
        "    except SystemExit as end: print('exit', end.code)\n"
        f"{calls}print([m for m in {HEAVY} if m in sys.modules])"
    )
    *text, heavy = shell(f"{shlex.quote(sys.executable)} probe.py").strip().splitlines()
    return "\n".join(text), heavy


def test_help_reads_well_and_imports_little(shell):
    text = shell.catalog("--help")
    commands = re.findall(r"^    (\w+) ", text, re.MULTILINE)
    assert {"sync", "render", "check", "export", "import", "row"} < set(commands)
    assert {"search", "best", "diff", "watch"} < set(commands)
    helps, heavy = probe(shell, *(f"{command} --help" for command in commands))
    assert heavy == "[]"
    texts = re.split(r"^exit 0$", helps, flags=re.MULTILINE)
    for command, shown in zip(commands, texts, strict=False):
        assert shown.strip().startswith(f"usage: catalog {command} ")
        assert re.search(rf"^examples:\n  .*catalog {command}", shown, re.MULTILINE), shown
        assert max(map(len, shown.splitlines())) <= 100
    assert max(map(len, text.splitlines())) <= 100
    assert probe(shell, "check")[1] == "[]"


def test_queries_of_an_sqlite_store_exit_as_grep_does_and_import_no_mlflow(shell):
    assert "no match in 0 runs: `catalog sync`" in shell.catalog("search lr>1", code=1)
    shell.inside(f"import {SMALL} -q")
    queries = {
        "search 'lr>0' -n 2": (0, "the newest 2 are shown"),
        "search 'lr>1e9'": (1, "no match in 8 runs"),
        "search 'lr>1e9' --json": (1, "[]"),
        "search 'lr>0 lr<1'": (
            2,
            "catalog: query, character 6: `and` or `or` is expected: lr>0 ^lr<1",
        ),
        "search lrr>1": (2, "did you mean lr?"),
        "best lr_clip_opt_toy": (0, "lr_clip_opt_toy: "),
        "diff latest latest": (1, "catalog: latest and latest are the same run"),
    }
    text, heavy = probe(shell, *queries)
    assert heavy == "[]"
    assert [int(code) for code in re.findall(r"^exit (\d)$", text, re.MULTILINE)] == [
        code for code, _ in queries.values()
    ]
    for _, words in queries.values():
        assert words in text
    assert json.loads(shell.inside("search 'lr>0' --json"))
    nowhere = "search lr --tracking-uri http://127.0.0.1:9"
    assert "127.0.0.1:9" in shell.inside(nowhere, code=2)
    reader, writer = os.pipe()
    os.close(reader)
    command = [prepared.python(), "-m", "runcatalog.cli.main", "search", "lr>0"]
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            command, cwd=shell.root, env=shell.env, stdout=closed, stderr=subprocess.PIPE
        )
    # 1 says that no run matches
    assert (done.returncode, done.stderr) == (
        128 + signal.SIGPIPE,
        b"",
    )


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 2, "required: COMMAND"),
        ("chek", 2, "invalid choice"),
        ("check", 1, "runs_catalog.md: missing; `catalog render` writes it"),
        ("import nowhere.csv", 1, "nowhere.csv: no such file or directory"),
        ("import guild.yml", 1, "a .csv or .json file, or a directory"),
        ("import src", 1, "contains neither run directories"),
        ("row 1234", 1, "no run '1234'; `catalog sync`"),
        ("diff 1234 latest", 1, "no run '1234'; `catalog sync`"),
        ("best toy:train", 1, "no run of 'toy:train'; `catalog sync`"),
        ("best toy:train -n x", 2, "a whole number from 0 on is expected, not 'x'"),
        ("search lr -n -3", 2, "a whole number from 0 on is expected, not '-3'"),
        ("ui --serve 99999", 1, "--serve must be between 1 and 65535, not 99999"),
        ("ui --serve 0", 1, "--serve must be between 1 and 65535, not 0"),
        ("search", 2, "required: QUERY"),
        ("search lr=1 loss=2", 2, "catalog search: error: unrecognized arguments: loss=2"),
        ("server status 2", 2, "catalog server status: error: unrecognized arguments: 2"),
        ("search lr --tracking-uri sqlite:////none/x.db", 2, "x.db: there is no such database"),
        ("verify --tracking-uri sqlite:////none/x.db", 2, "x.db: there is no such database"),
        ("search ''", 2, "query, character 1: a condition is expected"),
        (f"import {SMALL} --tracking-uri sqlite:////proc/none/x.db", 1, "/proc/none"),
    ],
)
def test_errors_are_one_line_long(shell, line, code, words):
    text = shell.inside(line, code=code)
    assert words in text
    assert len([shown for shown in text.splitlines() if shown.startswith("catalog: ")]) <= 1


def test_outside_of_a_project(shell, tmp_path):
    shell.root = tmp_path / "guild"
    assert "no guild.yml in" in shell.catalog("check", code=1)


def test_a_csv_and_a_clone(shell, tmp_path):
    assert "8 runs read: 8 imported" in shell.catalog(f"import {SMALL} -q")
    assert "8 runs read: 0 imported" in shell.inside(f"import {SMALL}")
    shell.inside("export")
    shell.inside("render")
    text = committed(shell.root)
    assert "best cluster (2 of 5)" in text
    assert row(text, "lr_clip_opt_toy")[-1].startswith("[")
    assert shell.catalog("check").endswith("runs_catalog.md agrees with 8 records\n")

    run = min((shell.root / "experiments" / "records").glob("*/*.json")).stem
    readme = shell.root / "README.md"
    readme.write_text(f"0<!-- =count of objective; run: {run} --> runs\n")
    assert "README.md:1: 0, but count of objective" in shell.inside("check", code=1)
    assert "written anew: README.md:1: 0, but" in shell.inside("check --fix")
    assert not readme.read_text().startswith("0")
    shell.inside("check")
    readme.unlink()

    # With a server, ids are links to MLflow's pages, and that is still what the records give.
    shell.inside("render --server http://mlflow.lab:8080/")
    linked = committed(shell.root)
    link = r"\[MLflow\]\(http://mlflow\.lab:8080/#/experiments/\d+/runs/[0-9a-f]{32}\)"
    assert re.search(link, linked)
    shell.inside("check")
    assert "http://HOST:PORT" in shell.inside("render --server mlflow.lab", code=1)

    clone = tmp_path / "clone"
    shutil.copytree(shell.root / "experiments", clone / "experiments")
    shutil.copy(shell.root / "guild.yml", clone)
    shell.root = clone
    assert shell.catalog("render").endswith("wrote runs_catalog.md\n")
    assert committed(clone) == text
    assert not (clone / "mlflow.db").exists()
    assert "8 imported" in shell.catalog("import -q")
    assert shell.catalog("render") == "runs_catalog.md is up to date\n"
    assert not (clone / "runs_local.md").exists()


def test_a_csv_with_the_objective_that_is_typed(shell):
    shell.catalog(f"import {SMALL} -q --objective Value_loss --goal min")
    ranked = shell.catalog("best lr_clip_opt_toy")
    assert "Value_loss (objective, min)" in ranked
    assert re.search(r"^1\. .* 3a1b2c3d$", ranked, re.MULTILINE)  # 0.004; its reward is the lowest
    refused = shell.catalog(f"import {SMALL} -q --objective value_loss", code=1)
    assert re.fullmatch(r"catalog: .*: no metric 'value_loss'; metrics: Epi.*Value_loss\n", refused)
    assert "invalid choice" in shell.catalog(f"import {SMALL} --goal least", code=2)


def test_a_missing_driver_of_postgresql_is_one_line_of_advice(shell, tmp_path):
    for name in ("psycopg", "psycopg2"):  # as where they are not installed
        missing = f"raise ModuleNotFoundError('No module named {name}', name='{name}')"
        (tmp_path / f"{name}.py").write_text(missing)
    shell.env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    address = "postgresql+psycopg://me:secret@127.0.0.1:9/mlflow"
    text = shell.catalog(f"sync --tracking-uri {address}", code=1)
    assert text.startswith("catalog: MLflow cannot be used: ")
    assert text.endswith("is missing: pip install 'psycopg[binary]'\n")
    assert text.count("\n") == 1
    advice = "catalog: No module named psycopg: install runcatalog with its extra `server` (docs/server.md)\n"
    assert shell.catalog("server status", code=1) == advice


@pytest.fixture
def ran(shell):
    """The toy project after some runs through Guild: good, exploded, killed, broken, staged, a sweep."""
    for line in (
        "toy:train --label 'my | label'",
        "toy:train explode=7 updates=20",
        "toy:train die=9 updates=21",
        "toy:broken",
        "toy:train --stage",
        "toy:sweep",
    ):
        shell(f"guild run {line} -y", code=None, RECORD_MLFLOW="off")
    return shell


def test_from_guild_to_the_catalog(ran, tmp_path):
    shell = ran
    assert "9 runs in" in shell.catalog("sync")
    again = shell.inside("sync")
    assert again.endswith("0 sent\n")
    # Nothing is published unasked: runs of this machine are on a separate page, with its figures.
    output = shell.inside("render")
    assert "9 runs are not exported: see runs_local.md" in output
    assert "No runs yet" in committed(shell.root)
    assert not (shell.root / "experiments/toy/figures").exists()
    assert "which is best is undetermined" in (shell.root / "runs_local.md").read_text()
    shown = local(shell.root)
    figure = (shell.root / "runs_local/toy/figures/sweep.svg").read_bytes()
    assert "(toy/figures/sweep.svg)" in shown
    assert len(re.findall(r'id="[0-9a-f]{8}"></a>[0-9a-f]{8} \*local\* \|', shown)) == 5

    shell.inside("export")
    shell.inside("render")
    assert not (shell.root / "runs_local.md").exists()
    assert not list((shell.root / "runs_local").rglob("*.svg"))
    assert (shell.root / "experiments/toy/figures/sweep.svg").read_bytes() == figure
    text = committed(shell.root)

    good = row(text, "train “my \\| label”")
    id8 = re.search(r"\[([0-9a-f]{8})\]", good[-1])[1]
    assert re.search(
        rf'id="{id8}".*% opening rate after 30 updates \[\d+, \d+\]; reward capped', text
    )
    assert "failed at update 7: gradient explosion (log_std is not finite)" in text
    assert "killed after step 9: SIGKILL" in text
    assert "failed: exit status 1: no such file: weights.bin" in row(text, "broken")
    sweep = row(text, "sweep")
    assert "5e-3 opens (a list)" in sweep
    assert "which is best is undetermined" in text  # of two seeds each
    assert "declared, not run" in row(text, "never")
    assert f"| {markdown.escape(cpu_name(), 120)} |" in text  # of the table of machines
    assert text.count("\n| train ") == 3  # the staged run is none

    records = [
        json.loads(p.read_text()) for p in (shell.root / "experiments/records/toy").glob("*.json")
    ]
    assert len(records) == 9
    trials = [r for r in records if r["operation"] == "toy:sweep" and r["batch"]]
    assert len(trials) == 4
    assert [trials[0]["batch"][:8]] == re.findall(r"\[([0-9a-f]{8})\]", sweep[-1])
    assert all(r["digest"]["metrics"] for r in trials)
    shell.inside("check")

    # One row, and one that is good enough.
    assert row(shell.inside(f"row {id8} --require opening_rate=0.1"), "train")[-1] == id8
    assert "at least 2 is required" in shell.inside(f"row {id8} --require opening_rate=2", code=1)
    misspelt = shell.inside(f"row {id8} --require openin_rate=2", code=1)
    assert "has no metric openin_rate, did you mean opening_rate?" in misspelt
    assert "sweep" in shell.inside("row latest")
    one = next(r for r in trials if r["seed"] == 1)
    assert row(shell.inside(f"row {one['run']}"), "sweep")[-1] == one["run"][:8]

    # And the questions that one asks of them.
    matches = json.loads(shell.inside("search 'status=FAILED and reason~explosion' --json"))
    assert [match["values"]["status"] for match in matches] == ["FAILED"]
    assert matches[0]["flags"]["explode"] == 7
    ranked = shell.inside("best toy:sweep")
    assert re.search(r"toy:sweep: opening_rate \(objective, max\); 4 runs, 2 settings", ranked)
    assert re.search(r"^1\. +0.005 .* 2 +[0-9a-f]{8}$", ranked, re.MULTILINE)
    compared = shell.inside(f"diff {trials[0]['run']} {trials[1]['run'][:12]}")
    assert "flags" in compared
    assert "no difference" not in compared

    # A run deleted in Guild keeps its row.
    shell(f"guild runs rm -y {id8}")
    shell.inside("sync")
    shell.inside("render")
    assert committed(shell.root) == text

    # A clone renders the same bytes, figures included; with local runs too.
    figure = (shell.root / "experiments/toy/figures/sweep.svg").read_bytes()
    (shell.root / "experiments/toy/figures/sweep.svg").unlink()
    shell.new_mlflow(tmp_path / "other.db")
    assert "9 imported" in shell.inside("import -q")
    shell.inside("render")
    assert committed(shell.root) == text
    assert (shell.root / "experiments/toy/figures/sweep.svg").read_bytes() == figure
    shell.inside("sync")
    shell.inside("export")
    shell.inside("render")
    assert committed(shell.root) == text
    shell.inside("check")


def test_two_syncs_at_once_and_journals_from_elsewhere(shell, tmp_path):
    for seed in (1, 2):
        shell(f"python src/toy/train.py --seed {seed}", RECORD_MLFLOW="off")
    bare = tmp_path / "bare"
    shutil.copytree(shell.root / "runs", bare)
    command = "python -m runcatalog.cli.main sync -q"
    text = shell(f"{command} & {command} & wait")
    assert sorted(re.findall(r"(\d) sent", text)) == ["0", "2"]
    shell.inside("render")
    catalog = local(shell.root)
    # By its script's name, as the operation that declares it
    assert row(catalog, "train")[0] == "train"
    ids = set(re.findall(r'id="([0-9a-f]{8})"></a>[0-9a-f]{8} \*local\*', catalog))
    assert ids == {path.name for path in bare.iterdir()}

    shutil.rmtree(shell.root / "runs")
    shell.new_mlflow(tmp_path / "other.db")
    assert "2 runs read: 2 imported" in shell.inside(f"import {bare} -q")
    assert "2 runs read: 0 imported" in shell.inside(f"import {bare} -q")
    shell.inside("render")
    assert local(shell.root) == catalog


def test_a_run_continued_after_its_export_is_local_and_no_row_is_dropped_unasked(shell):
    shell("python src/toy/train.py --die 9", code=None, RECORD_MLFLOW="off")
    (run,) = (shell.root / "runs").iterdir()
    shell.inside("sync")
    shell.inside("export")
    shell.inside("render")
    text = committed(shell.root)
    assert any(cell.startswith("killed") for cell in row(text, "train"))
    shell(f"python src/toy/train.py --die 9 --resume {run}", RECORD_MLFLOW="off")
    shell.inside("sync")
    assert "1 run is not exported" in shell.inside("render")
    assert committed(shell.root) == text
    shown = row(local(shell.root), "train")
    assert shown[-1].endswith("*local*")
    assert "30 updates" in shown

    shutil.rmtree(shell.root / "experiments/records")
    output = shell.inside("render", code=1)
    assert output.startswith(f"catalog: runs_catalog.md shows run {run.name}, without a record")
    assert committed(shell.root) == text


def test_guild_home_is_the_one_that_guild_uses(tmp_path, monkeypatch):
    from runcatalog.guild import runs
    from runcatalog.model.errors import CatalogError

    for name in ("GUILD_HOME", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    environment = tmp_path / "env"
    (environment / ".guild").mkdir(parents=True)
    monkeypatch.setattr("sys.prefix", str(environment))
    assert runs.guild_home() == environment / ".guild"
    other = tmp_path / "other"
    (other / ".guild").mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert runs.guild_home() == other / ".guild"
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "missing"))
    with pytest.raises(CatalogError, match="is not a directory"):
        runs.guild_home()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, ("FINISHED", "")),
        (-signal.SIGTERM, ("KILLED", "SIGTERM")),
        (137, ("KILLED", "SIGKILL")),
        (-16, ("KILLED", "Ctrl-C")),
        (3, ("FAILED", "exit status 3: the last word")),
        (None, ("KILLED", "process gone (SIGKILL or os._exit)")),
    ],
)
def test_status_and_reason_from_guilds_files(tmp_path, status, expected):
    from runcatalog.guild.runs import GuildRun

    attributes = tmp_path / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (tmp_path / ".guild" / "output").write_text("loading\nthe last word\n\n")
    if status is not None:
        (attributes / "exit_status").write_text(f"{status}\n")
    assert GuildRun("0" * 32, str(tmp_path)).end() == expected
    if status is None:
        (tmp_path / ".guild" / "LOCK").write_text(str(os.getpid()))
        assert GuildRun("0" * 32, str(tmp_path)).end() == ("RUNNING", "")


@pytest.mark.parametrize("name", ["2026", "on", "null", "1e5", "project"])
def test_a_project_may_have_a_name_that_yaml_reads_as_something_else(shell_in, tmp_path, name):
    """`name: 2026` is a number in YAML: every further command refused the file that `catalog init` had written."""
    shell = shell_in(tmp_path)
    shell.root = shell.root.rename(tmp_path / name)
    shell.inside("init")
    assert Project(shell.root).name == name


def test_init_writes_a_template_for_each_study_that_declares_operations(shell_in, tmp_path):
    """All operations were named in that of a further study, which had no runs; the pages of the others were empty."""
    shell = shell_in(tmp_path)
    declared = "- include: [experiments/one/guild.yml, experiments/two/guild.yml]\n"
    (shell.root / "guild.yml").write_text(declared)
    shutil.rmtree(shell.root / "experiments")
    for study in ("one", "two"):
        (shell.root / "experiments" / study).mkdir(parents=True)
        text = f"- model: {study}\n  operations: {{train: {{main: train}}, test: {{main: test}}}}\n"
        (shell.root / "experiments" / study / "guild.yml").write_text(text)
    shell.inside("init")
    templates = {t.parent.name: t.read_text() for t in Project(shell.root).templates()}
    assert list(templates) == ["one", "two"]
    assert '{{ table(["two:train", "two:test"]) }}' in templates["two"]


def test_init_appends_to_a_gitignore_of_any_encoding(shell):
    path = shell.root / ".gitignore"
    before = b"caf\xe9/\r\nruns/\r\n"
    path.write_bytes(before)
    shell.inside("init")
    content = path.read_bytes()
    assert content.startswith(before)
    assert b"\nruns/\n" not in content
    assert b"\n.cache/\n" in content
    shell.inside("init")
    assert path.read_bytes() == content


def test_the_environment_in_a_new_project_is_no_uncommitted_code(shell):
    """The venv of Python 3.11 and 3.12 has no .gitignore: all runs counted as made with uncommitted code."""
    shell.inside("init")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", shell.root / ".venv"], check=True
    )
    for path in (shell.root / ".venv").glob(".gitignore"):  # of later versions
        path.unlink()
    shell("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm a")
    assert ".venv" not in shell("git ls-files")
    assert commit_facts(shell.root)["dirty"] == ""
    (shell.root / "train.py").write_text("")
    assert commit_facts(shell.root)["dirty"] != ""


def test_a_full_disk_is_an_error_and_not_an_empty_answer(shell):
    shell("guild run toy:train -y")
    line = f"{prepared.python()} -m runcatalog.cli.main search toy --csv > /dev/full"
    assert shell(line, code=2) == "catalog: No space left on device\n"
