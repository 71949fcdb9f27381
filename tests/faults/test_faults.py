"""No point is lost or duplicated: a small run of `inject.py`, and a test of its comparison."""

import json
import shutil
import sqlite3

import pytest

from faults.compare import differences
from faults.inject import NAMES, Arena, inject

PLAN = [("training",), ("sender",), ("server",), ("training", "sender", "server"), ("sync",)]
KILLED = 128 + 9

pytestmark = pytest.mark.timeout(900)  # the arena's processes take turns with all else that runs


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("arena"), seed=3, saving=0)
    try:
        arena.open()
        yield arena
    finally:
        arena.close()


@pytest.fixture(scope="module")
def report(arena):
    return inject(arena, PLAN)


def test_mlflow_has_the_points_of_the_journals(report):
    assert report["differences"] == []
    assert report["again"].endswith(": 0 sent")
    status, lines = report["verified"]
    assert (status, len(lines)) == (0, 1)
    assert f"compared: {report['runs']} journals" in lines[0]
    assert sorted(victims for victims, _ in report["strikes"].elements()) == sorted(PLAN)
    assert report["points"] > 500
    assert report["senders"] <= 3


@pytest.mark.parametrize(
    ("damage", "expected"),
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
def test_the_comparison_reports_every_damage_of_the_database(
    arena, report, tmp_path, damage, expected
):
    database = tmp_path / "damaged.db"
    file = arena.folder / "mlflow.db"
    with sqlite3.connect(file) as source, sqlite3.connect(database) as target:
        source.backup(target)
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute(damage)
    lines = differences(arena.runs, f"sqlite:///{database}", arena.stored, NAMES)
    assert any(expected in line for line in lines), lines


def test_the_comparison_reports_a_gap_in_a_journal(arena, report):
    path = next(p.parent for p in arena.runs.glob("*/result.json")) / "journal" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.partition("\n")[2])
    try:
        lines = arena.differences()
    finally:
        path.write_text(whole)
    assert sum("missing in the journal" in line for line in lines) == 1
    assert not any("artifact" in line for line in lines)
    elsewhere = differences(arena.runs, arena.database, arena.project, NAMES)
    assert any("artifact result.json is missing" in line for line in elsewhere)
    assert sum("too many in MLflow" in line for line in lines) == 1


@pytest.fixture
def records(arena, report, tmp_path):
    """A project with a record, and an MLflow whose tables are not known well enough to write to them."""
    root = tmp_path / "project"
    record = {"run": "0a" * 16, "operation": "toy:train", "study": "toy", "status": "FINISHED"}
    record |= {"flags": {"lr": 0.1}, "started": 5, "wall_seconds": 1.0}
    record |= {"metrics": {"loss": {"curve": [[step, step / 7] for step in range(1, 51)]}}}
    (root / "experiments" / "records" / "toy").mkdir(parents=True)
    (root / "experiments" / "records" / "toy" / "0a0a0a0a.json").write_text(json.dumps(record))
    (root / "guild.yml").write_text("")
    with sqlite3.connect(root / "mlflow.db") as database:
        # As the arena's server left it, with a column that is new.
        with sqlite3.connect(arena.folder / "mlflow.db") as source:
            source.backup(database)
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            database.execute(f"DELETE FROM {table}")
        database.execute("ALTER TABLE tags ADD COLUMN later")
    return root


def import_(arena, root, *paths):
    """Imports in a project; returns the exit code."""
    uri = f"sqlite:///{root}/mlflow.db"
    here = {"cwd": root, "PROJECT_DIR": str(root), "MLFLOW_TRACKING_URI": uri}
    process = arena.catalog("import", *paths, **here)
    process.communicate()
    return process.returncode


def test_no_point_is_in_mlflow_before_it_is_on_the_disk(arena, records, tmp_path):
    run = next(path.parent for path in arena.runs.glob("*/result.json"))
    shutil.copytree(run, tmp_path / "copied")
    (tmp_path / "copied" / "journal" / "mlflow.json").unlink()
    arena.arm("sync", ("os.fsync", "before", "/metrics.jsonl"))
    assert import_(arena, records, str(tmp_path / "copied")) == KILLED
    with sqlite3.connect(records / "mlflow.db") as database:
        assert database.execute("SELECT COUNT(*) FROM metrics").fetchone() == (0,)


@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("log_batch", "before"),  # nothing but the run and its tags
        ("set_terminated", "before"),  # all but the end
        ("set_tag", "after"),  # the old run no longer matches and is not deleted yet
    ],
)
def test_an_import_that_is_killed_is_completed_by_the_next(arena, records, call, when):
    path = records / "experiments" / "records" / "toy" / "0a0a0a0a.json"
    record = json.loads(path.read_text())
    if call == "set_tag":
        assert import_(arena, records) == 0
        record["flags"]["lr"] += 1
        path.write_text(json.dumps(record))
    arena.arm("sync", (f"MlflowClient.{call}", when, ""))
    assert [import_(arena, records) for _ in range(2)] == [KILLED, 0]
    with sqlite3.connect(records / "mlflow.db") as database:
        query = "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"
        ((run, status),) = database.execute(query).fetchall()
        assert status == "FINISHED"
        where = f"WHERE run_uuid = '{run}'"
        params = database.execute(f"SELECT key, value FROM params {where}").fetchall()
        assert dict(params) == {name: repr(value) for name, value in record["flags"].items()}
        points = database.execute(f"SELECT step, value FROM metrics {where} ORDER BY step")
        assert [list(point) for point in points] == record["metrics"]["loss"]["curve"]
