"""Points that MLflow has lost are sent again: a restored backup, deleted rows, a replaced database."""

import os
import shutil
import signal
import sqlite3

import pytest

from runcatalog import record
from runcatalog.record.delivery.publish import publish
from runcatalog.record.journal.files import locked, read_json
from runcatalog.record.journal.metrics import read_points


def stored_points(path, run_id):
    """Return the points of a run in an SQLite database, sorted."""
    with sqlite3.connect(path) as database:
        query = "SELECT timestamp, step, key, value FROM metrics WHERE run_uuid = ?"
        return sorted(database.execute(query, (run_id,)).fetchall())


def logged(directory):
    return sorted(tuple(p) for p in read_points(directory / "journal" / "metrics.jsonl"))


def copy_database(source, target):
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)


@pytest.fixture
def sent(project, monkeypatch):
    """Return (the directory of a run that was sent, its id in MLflow); `backup.db` is from its middle."""
    directory = project / "runs" / "run"
    monkeypatch.setenv("RUN_DIR", str(directory))
    with record.start(record.Config(), study="toy") as run:
        for step in range(1, 6):
            run.log({"loss": 1 / step, "constant": 1.0}, step)
        run.log({"late": 5.0}, 5)
        publish(directory)
        copy_database(project / "mlflow.db", project / "backup.db")
        for step in range(6, 11):
            run.log({"loss": 1 / step, "constant": 1.0}, step)
        run.log({"late": 3.0}, 3)  # a step smaller than the one before
        run.finish({"objective": {"name": "loss", "value": 0.1, "goal": "min", "at": 10}})
    return directory, publish(directory).mlflow_run_id


@pytest.mark.parametrize(
    "damage",
    [
        "backup",
        "DELETE FROM metrics WHERE step = 4",
        "DELETE FROM metrics WHERE key = 'late' AND step = 3",
        "DELETE FROM metrics",
    ],
)
def test_points_that_are_gone_are_sent_again(project, sent, damage):
    directory, run_id = sent
    database = project / "mlflow.db"
    assert publish(directory).points == 0
    if damage == "backup":
        copy_database(project / "backup.db", database)
    else:
        with sqlite3.connect(database) as connection:
            connection.execute(damage)
    assert stored_points(database, run_id) != logged(directory)
    assert publish(directory).mlflow_run_id == run_id
    assert stored_points(database, run_id) == logged(directory)
    assert publish(directory).points == 0  # and not at every visit


@pytest.mark.parametrize("checked", [True, False])
def test_a_line_that_is_there_twice_is_not_sent_at_every_visit(project, sent, checked):
    directory, run_id = sent
    path = directory / "journal" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if not checked:  # as earlier versions wrote it
        lines = [line.partition(',"n":')[0] + "}\n" for line in lines]
    path.write_text("".join([*lines, lines[2]]))
    publish(directory)
    assert publish(directory).points == 0
    assert stored_points(project / "mlflow.db", run_id) == sorted(set(logged(directory)))


def test_artifacts_are_sent_again_with_the_points(project, sent):
    directory, run_id = sent
    stored = project / "mlartifacts" / "toy" / run_id / "artifacts" / "result.json"
    stored.unlink()
    copy_database(project / "backup.db", project / "mlflow.db")
    publish(directory)
    assert stored.read_bytes() == (directory / "result.json").read_bytes()


def test_the_sender_notices_that_the_database_was_replaced(project, toy, wait_until):
    state, database = toy.directory / "journal" / "mlflow.json", project / "mlflow.db"

    def offset():
        return next(iter((read_json(state) or {}).values()), {}).get("offset", 0)

    process = toy.start(
        "--updates", 10**6, "--every", 0, "--pause", 0.02, env={"RECORD_MLFLOW": "on"}
    )
    wait_until(offset)
    # Not while it writes: the journal of its transaction would be taken for one of the other database.
    with locked(state.with_name("mlflow.lock"), timeout=240):
        copy_database(database, project / "backup.db")
        with sqlite3.connect(project / "backup.db") as backup:
            backup.execute("DELETE FROM metrics WHERE step > 1")
        shutil.move(project / "backup.db", database)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate()
    run_id = next(iter(read_json(state).values()))["run"]
    wait_until(lambda: stored_points(database, run_id) == logged(toy.directory))
