"""Runs of scripts that print their results and know nothing of the library, through Guild."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import prepared
from runcatalog.guild import scalars
from runcatalog.store.sqlite_reader import reader

SCRIPT = """
lr = 0.1
for step in range(1, 4):
    print(f"step: {step}")
    print(f"accuracy: {0.9 - lr / step}")
"""
OPERATIONS = """
- model: toy
  operations:
    plain: {main: plain, flags-import: all, objective: {maximize: accuracy}, optimizers: {gp: {algorithm: 'search:gp'}}}
"""


@pytest.fixture
def plain(shell):
    """A shell in a project in git whose only operation is such a script."""
    (shell.root / "experiments/toy/guild.yml").unlink()
    (shell.root / "guild.yml").write_text(OPERATIONS)
    (shell.root / "plain.py").write_text(SCRIPT)
    (shell.root / ".gitignore").write_text("mlflow.db*\nmlartifacts/\n__pycache__/\n.cache/\n")
    shell("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm first")
    return shell


def records(shell):
    """The exported records by the learning rate of their run."""
    shell.inside("sync -q")
    shell.inside("export")
    paths = (shell.root / "experiments/records").glob("*/*.json")
    return {r["flags"]["lr"]: r for r in (json.loads(path.read_text()) for path in paths)}


def test_uncommitted_code_is_said_and_prose_is_none(plain):
    plain("guild run plain lr=0.1 -y")
    (plain.root / "README.md").write_text("what this is about")
    plain("guild run plain lr=0.2 -y")
    (plain.root / "plain.py").write_text(SCRIPT.replace("0.9", "0.5"))
    plain("guild run plain lr=0.3 -y")
    found = records(plain)
    assert [found[lr]["dirty"] for lr in (0.1, 0.2, 0.3)] == ["", "", "unknown"]
    assert len({found[lr]["commit"] for lr in (0.1, 0.2, 0.3)}) == 1
    assert found[0.3]["commit"]
    row = plain.inside(f"row {found[0.3]['run'][:8]}")
    assert "ncommitted code" in row
    refused = plain.inside(f"rerun --check {found[0.1]['run'][:8]}", code=1)
    assert "its script does not use `runcatalog.record`" in refused


@pytest.mark.parametrize("content", ["{lr: [", ""])
def test_a_damaged_attribute_changes_nothing_and_is_named(plain, content):
    plain("guild run plain lr=0.1 -y")
    before = records(plain)[0.1]
    (flags,) = (plain.root.parent / "guild/runs").glob("*/.guild/attrs/flags")
    kept = flags.read_text()
    flags.write_text(content)
    old = flags.stat().st_mtime - 60
    os.utime(flags, (old, old))
    assert "Guild's attribute flags cannot be read: not sent" in plain.inside("sync", code=1)
    assert "lr=0.1" in plain.inside(f"row {before['run'][:8]}")
    flags.write_text(kept)
    assert plain.inside("sync")
    assert records(plain)[0.1] == before


def test_a_refused_search_space_is_no_run(plain):
    answer = plain("guild run plain 'lr=loguniform[10:0.001]' --optimizer gp -y", code=1)
    assert "the lower bound must be below the upper one" in answer
    plain("guild run plain lr=0.1 -y")
    assert list(records(plain)) == [0.1]


def test_a_wrong_engine_makes_and_changes_no_run(plain):
    runs = plain.root.parent / "guild/runs"
    assert "engines.yml" in plain("guild run plain lr=0.1 -y", code=1, ENGINE="lap")
    plain("guild run plain lr=[0.1,0.2] -y", code=1, ENGINE="lap")
    assert not runs.exists()
    plain("guild run plain lr=0.1 -y")
    before = records(plain)[0.1]
    plain(f"guild run --restart {before['run']} -y", code=1, ENGINE="lap")
    assert records(plain)[0.1] == before


def test_a_run_that_was_not_sent_is_not_confused_with_an_older_one(plain):
    plain("guild run plain lr=0.1 -y")
    first = records(plain)[0.1]["run"]
    assert "newer" not in plain.inside("row latest")
    plain("guild run plain lr=0.2 -y")
    ids = {path.name for path in (plain.root.parent / "guild/runs").iterdir()}
    (second,) = ids - {first}
    shown = plain.inside("row latest")
    assert f"run {second[:8]} is newer, and not in MLflow yet" in shown
    assert first[:8] in shown
    refused = plain.inside("forget latest --why bug", code=1)
    assert f"catalog: latest: run {second[:8]} is newer" in refused
    missing = plain.inside(f"row {second[:8]}", code=1)
    assert f"run {second[:8]} is not in MLflow yet" in missing
    plain.inside("sync")
    assert second[:8] in plain.inside("row latest")
    printed = plain("guild run plain lr=[0.3,0.4] -y")
    batch = re.search(r"catalog row (\w{8})\n", printed)[1]
    assert f"run {batch} is newer, and not in MLflow yet" in plain.inside("row latest")
    plain.inside("sync")
    assert "newer" not in plain.inside("row latest")


def test_a_restart_with_another_flag_and_a_new_label_change_the_row(plain):
    (plain.root / "plain.py").write_text("lr = 0.1\n")  # no scalars
    plain("guild run plain lr=0.1 --label first -y")
    run = records(plain)[0.1]["run"]
    plain(f"guild run --restart {run} lr=0.2 -y")
    plain.inside("sync")
    plain(f"guild label --set second {run} -y")
    plain.inside("sync")
    (stored,) = reader(f"sqlite:///{plain.root}/mlflow.db").runs()
    assert (stored.run, stored.flags) == (run, {"lr": "0.2"})
    assert [stored.tags[name] for name in ("label", "mlflow.runName")] == ["second", "second"]


NUMBERS = """
import math
first = 1
for step, value in enumerate([first, "1e+20", "+5", "1.", ".5", "-2E-3", "inf", "-inf", "nan"], 1):
    print(f"step: {step}")
    print(f"accuracy: {value}")
print("word: info")
print("version: 1.0.0")
"""


@pytest.mark.parametrize("flags", ["first=1", "first=[1,2]"])
def test_every_number_that_python_prints_is_a_scalar(plain, flags):
    (plain.root / "plain.py").write_text(NUMBERS)
    plain(f"guild run plain {flags} -y")
    plain.inside("sync -q")
    plain.inside("export")
    paths = (plain.root / "experiments/records").glob("*/*.json")
    read = [json.loads(path.read_text()) for path in paths]
    trials = [record for record in read if record["flags"]]
    assert len(trials) == flags.count(",") + 1
    for record in trials:
        assert set(record["metrics"]) == {"accuracy"}
        steps, values = zip(*record["metrics"]["accuracy"]["curve"], strict=True)
        assert steps == tuple(range(1, 10))
        assert values[1:6] == (1e20, 5, 1, 0.5, -0.002)
        assert values[6:] == ("Infinity", "-Infinity", "NaN")
        assert record["result"]["objective"]["value"] == "NaN"


RESTARTED = """
steps = 5
base = 100
for step in range(1, steps + 1):
    print(f"step: {step}")
    print(f"accuracy: {base + step}")
"""


@pytest.mark.parametrize(
    ("typed", "flags", "curve"),
    [
        ("steps=2 base=0", {"base": 0, "steps": 2}, [[1, 1.0], [2, 2.0]]),
        ("steps=0", {"base": 100, "steps": 0}, []),
    ],
)
def test_a_restarted_run_has_the_scalars_of_its_last_session(plain, typed, flags, curve):
    (plain.root / "plain.py").write_text(RESTARTED)
    plain("guild run plain -y")
    (run,) = (path.name for path in (plain.root.parent / "guild/runs").iterdir())
    plain.inside("sync -q")
    plain(f"guild run --restart {run} {typed} -y")
    plain.inside("sync -q")
    assert " 0 sent" in plain.inside("sync")
    plain.inside("export")
    (path,) = (plain.root / "experiments/records").glob("*/*.json")
    record = json.loads(path.read_text())
    assert record["flags"] == flags
    if curve:
        assert record["metrics"]["accuracy"]["curve"] == curve
        assert record["result"]["objective"]["value"] == curve[-1][1]
    else:
        assert (record["metrics"], record["result"]) == ({}, None)


def test_mlflow_has_every_point(plain):
    many = "for step in range(1, 301):\n    print(f'step: {step}')\n    print(f'accuracy: {step % 7}')\n"
    (plain.root / "plain.py").write_text(many)
    plain("guild run plain -y")
    plain.inside("sync -q")
    with sqlite3.connect(plain.root / "mlflow.db") as database:
        rows = database.execute("SELECT step, value FROM metrics ORDER BY step").fetchall()
    assert rows == [(step, step % 7) for step in range(1, 301)]
    plain.inside("export")
    (path,) = (plain.root / "experiments/records").glob("*/*.json")
    assert len(json.loads(path.read_text())["metrics"]["accuracy"]["curve"]) == 100
    assert " 0 sent" in plain.inside("sync")
    assert "no differences" in plain.inside("verify")


def test_a_csv_has_the_objective_that_is_declared(plain, tmp_path):
    """By its name it would be the reward, and more would be better."""
    guild_file, script = plain.root / "guild.yml", plain.root / "plain.py"
    guild_file.write_text(guild_file.read_text().replace("maximize: accuracy", "minimize: error"))
    script.write_text(f'{SCRIPT}    print(f"reward: {{lr}}")\n    print(f"error: {{lr / step}}")\n')
    plain("guild run plain lr=[0.1,0.4] -y")
    plain.inside("sync -q")
    ranked = plain.inside("best toy:plain")
    assert "error (objective, min)" in ranked
    path = tmp_path / "runs.csv"
    plain(f"guild compare --csv {path}")
    plain.new_mlflow(tmp_path / "other.db")
    assert "3 runs read: 3 imported" in plain.catalog(f"import -q {path}")
    assert plain.inside("best toy:plain") == ranked
    plain.new_mlflow(tmp_path / "third.db")
    plain.catalog(f"import -q {path} --objective reward")
    assert "reward (objective, max)" in plain.inside("best toy:plain")


def test_an_objective_that_was_not_logged_is_named(plain):
    text = OPERATIONS.replace("maximize: accuracy", "maximize: acc")
    (plain.root / "guild.yml").write_text(text)
    plain("guild run plain lr=[0.1,0.2] -y")
    lines = [line for line in plain.inside("sync").splitlines() if line.startswith("catalog: ")]
    assert lines == [
        "catalog: toy:plain finished but logged no acc, which is its objective: it logged accuracy; "
        "declare `objective: {maximize: NAME}` in guild.yml"
    ]
    assert "logged no" not in plain.inside("sync")  # nothing new was sent


def test_an_objective_with_the_name_of_a_flag_is_named(plain):
    """Guild imports the global variables of a script as flags, and takes no printed scalar with such a name."""
    (plain.root / "plain.py").write_text(f"accuracy = 0{SCRIPT}")
    plain("guild run plain -y")
    lines = [line for line in plain.inside("sync").splitlines() if line.startswith("catalog: ")]
    assert lines == [
        "catalog: toy:plain finished but logged no accuracy, which is its objective: it is the name of a flag too, "
        "and Guild by default takes no printed scalar with such a name; rename one of both"
    ]


def test_a_renamed_operation_and_another_objective_change_no_recorded_run(plain, tmp_path):
    """As on another branch, where the operation has another name, also with a new database."""
    plain("guild run plain lr=[0.1,0.4] -y")
    plain.inside("sync -q")
    plain.inside("export")
    folder = plain.root / "experiments/records"
    files = {path: path.read_text() for path in folder.glob("*/*.json")}
    assert len(files) == 3
    ranked = plain.inside("best toy:plain")
    guild_file = plain.root / "guild.yml"
    renamed = guild_file.read_text().replace("plain: {", "renamed: {").replace("accuracy", "loss")
    guild_file.write_text(renamed)
    study = plain.root / "experiments/other"
    study.mkdir()
    (study / "catalog.md.j2").write_text("{{ table(['toy:plain']) }}")
    assert " 0 sent" in plain.inside("sync")
    for database in (None, tmp_path / "other.db"):
        if database:
            plain.new_mlflow(database)
            assert " 3 sent" in plain.inside("sync")
        assert ": 0 written" in plain.inside("export")
        assert {path: path.read_text() for path in folder.glob("*/*.json")} == files
        assert plain.inside("best toy:plain") == ranked
    guild_file.write_text(OPERATIONS.replace("maximize", "minimize"))
    assert " 0 sent" in plain.inside("sync")
    assert ": 0 written" in plain.inside("export")


def test_a_sweep_goes_to_another_study_with_its_trials(plain):
    plain("guild run plain lr=[0.1,0.4] -y")
    plain.inside("sync -q")
    study = plain.root / "experiments/other"
    study.mkdir()
    (plain.root / "guild.yml").rename(study / "guild.yml")
    (plain.root / "guild.yml").write_text("- include: experiments/other/guild.yml\n")
    plain.inside("sync -q")
    plain.inside("export")
    paths = (plain.root / "experiments/records").glob("*/*.json")
    assert [path.parent.name for path in paths] == ["other"] * 3


def test_a_killed_run_that_has_scalars_did_record_something(plain, wait_until):
    wait = "import sys, time\nsys.stdout.flush()\ntime.sleep(600)\n"
    (plain.root / "plain.py").write_text(SCRIPT + wait)
    home = plain.root.parent / "guild/runs"

    def has_all_scalars() -> bool:
        runs = [path.parent for path in home.glob("*/.guild")]
        points = [scalars.points(run, scalars.event_files(run)) for run in runs]
        return any(len(found.get("accuracy", ())) == 3 for found in points)

    process = subprocess.Popen(
        [Path(sys.executable).with_name("guild"), "run", "plain", "-y"],
        cwd=plain.root,
        env=plain.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(has_all_scalars)
    finally:
        prepared.kill_all(process, prepared.folder().parent)  # and waits for all of them
    plain.inside("sync -q")
    plain.inside("export")
    (path,) = (plain.root / "experiments/records").glob("*/*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "KILLED"
    assert record["metrics"]["accuracy"]["curve"][-1][0] == 3
    assert record["reason"] == "process gone (SIGKILL or os._exit)"
