"""Nothing is lost and nothing comes twice: the injection of `inject.py`, small, and the check of the check."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from faults.compare import differences
from faults.inject import HERE, NAMES, ROOT, inject

KILLS, SEED = 6, 3


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arena")
    return folder, inject(folder, KILLS, SEED)


def test_what_mlflow_holds_is_what_the_journals_hold(outcome):
    _, report = outcome
    assert report["differences"] == []
    assert report["again"].endswith(": 0 sent")
    assert report["strikes"].total() == KILLS
    assert report["points"] > 500
    assert report["senders"] <= 3
    killed = {victim for victims, _ in report["strikes"] for victim in victims}
    assert killed >= {"training", "sender", "server"}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM metrics WHERE rowid IN (SELECT rowid FROM metrics LIMIT 1)", "1 points"),
        ("UPDATE metrics SET timestamp = timestamp + 1 WHERE key = 'odd'", "too many in MLflow"),
        ("UPDATE metrics SET value = value + 1e-9 WHERE key = 'walk/0'", "missing in MLflow"),
        ("DELETE FROM params WHERE key = 'width'", "params are"),
        ("UPDATE tags SET value = 'no' WHERE key = 'seed'", "tag seed"),
        ("UPDATE tags SET value = '' WHERE key = 'run_id'", "0 runs in MLflow"),
        ("UPDATE runs SET status = 'RUNNING'", "status is RUNNING"),
        ("UPDATE runs SET lifecycle_stage = 'deleted'", "1 runs in MLflow"),
    ],
)
def test_the_comparison_sees_it(outcome, tmp_path, damage, told):
    folder, _ = outcome
    database = tmp_path / "damaged.db"
    with sqlite3.connect(folder / "mlflow.db") as source, sqlite3.connect(database) as target:
        source.backup(target)
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute(damage)
    found = differences(folder / "project" / "runs", database, folder / "stored", NAMES)
    assert any(told in line for line in found), found


def test_the_comparison_sees_a_gap_in_a_journal(outcome):
    folder, _ = outcome
    runs = folder / "project" / "runs"
    path = next(p.parent for p in runs.glob("*/result.json")) / "journal" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.partition("\n")[2])
    try:
        found = differences(runs, folder / "mlflow.db", folder / "stored", NAMES)
    finally:
        path.write_text(whole)
    assert sum("missing in the journal" in line for line in found) == 1
    assert not any("artifact" in line for line in found)
    elsewhere = differences(runs, folder / "mlflow.db", folder / "project", NAMES)
    assert any("artifact result.json is missing" in line for line in elsewhere)
    assert sum("too many in MLflow" in line for line in found) == 1


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A project with a record, and an MLflow whose tables are not known well enough to write to them."""
    root = tmp_path_factory.mktemp("records") / "project"
    record = {"run": "0a" * 16, "operation": "toy:train", "study": "toy", "status": "FINISHED"}
    record |= {"flags": {"lr": 0.1}, "started": 5, "wall_seconds": 1.0}
    record |= {"metrics": {"loss": {"curve": [[step, step / 7] for step in range(1, 51)]}}}
    (root / "experiments" / "records" / "toy").mkdir(parents=True)
    (root / "guild.yml").write_text("")
    catalog(root, "import")  # nothing yet, but it sets the database up
    (root / "experiments" / "records" / "toy" / "0a0a0a0a.json").write_text(json.dumps(record))
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("ALTER TABLE tags ADD COLUMN later")
    return root


def catalog(root, *arguments):
    """Runs the command; returns its exit code."""
    foreign = ("MLFLOW_", "GUILD_", "RECORD", "PROJECT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
        "PYTHONPATH": os.pathsep.join([str(HERE / "at_call"), str(ROOT / "src")]),
        "FAULTS": str(root.parent),
    }
    command = [sys.executable, "-m", "catalog.cli", *arguments]
    return subprocess.run(command, cwd=root, env=environment).returncode


@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("log_batch", "before"),
        ("log_batch", "after"),
        ("set_tag", "after"),
        ("set_terminated", "before"),
    ],
)
def test_an_import_that_is_killed_is_completed_by_the_next(records, call, when):
    told = {"call": f"MlflowClient.{call}", "when": when, "word": ""}
    (records.parent / "sync").write_text(json.dumps(told))
    assert [catalog(records, "import") for _ in range(2)] == [-9, 0]
    path = records / "experiments" / "records" / "toy" / "0a0a0a0a.json"
    record = json.loads(path.read_text())
    with sqlite3.connect(records / "mlflow.db") as database:
        query = "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"
        ((run, status),) = database.execute(query).fetchall()
        assert status == "FINISHED"
        where = f"WHERE run_uuid = '{run}'"
        params = database.execute(f"SELECT key, value FROM params {where}").fetchall()
        assert dict(params) == {name: repr(value) for name, value in record["flags"].items()}
        points = database.execute(f"SELECT step, value FROM metrics {where} ORDER BY step")
        assert [list(point) for point in points] == record["metrics"]["loss"]["curve"]
    # The next case has something to write anew.
    record["flags"]["lr"] += 1
    path.write_text(json.dumps(record))
