"""A full disk, really: the recorded status and reason, and that nothing else is lost."""

import resource
import shutil
import sqlite3

import numpy as np
import pytest

import ends_table
from runcatalog import record
from runcatalog.record import run as run_module
from runcatalog.record.delivery.mlflow_client import MlflowError
from runcatalog.record.delivery.publish import publish
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle.status import status_of
from small_disk import small_disk


@pytest.fixture
def disk(project, monkeypatch):
    """The run's directory on a disk of 1 MiB."""
    with small_disk(project / "runs" / "small", 1024) as path:
        monkeypatch.setenv("RUN_DIR", str(path))
        yield path


def fill(disk):
    """Leaves no room at all; returns the file that takes it."""
    with (disk / "filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return disk / "filler"


def status_and_reason(run):
    return status_of(run.directory)[:2]


def test_a_full_journal_ends_the_run_and_keeps_what_was_written(disk):
    run = record.start(record.Config(), study="toy")

    def train():
        with run:
            run.log({"loss": 1.0}, 1)
            fill(disk)
            for step in range(2, 10**5):
                run.progress(step, 10**5, "update")
                run.log({"loss": 1.0}, step)

    with pytest.raises(record.RunFailed) as error:
        train()
    assert "\n" not in str(error.value)
    ends_table.check("disk full", *status_and_reason(run))
    points = list(read_points(disk / "journal" / "metrics.jsonl"))
    assert [point.step for point in points] == list(range(1, len(points) + 1))
    assert "disk full" in (disk / "artifacts" / "error.txt").read_text()


@pytest.mark.parametrize("where", ["tensors", "state"])
def test_a_checkpoint_that_does_not_fit(disk, where):
    large = {"large": np.random.default_rng(1).normal(size=1 << 17)}
    run = record.start(record.Config(), study="toy")

    def train():
        with run:
            run.checkpoint(1, {"weights": np.zeros(4)}, {})
            run.checkpoint(2, *((large, {}) if where == "tensors" else ({}, large)))

    with pytest.raises(record.RunFailed):
        train()
    ends_table.check("disk full at a checkpoint", *status_and_reason(run))
    assert [path.name for path in (disk / "checkpoints").iterdir()] == ["00000001"]
    assert record.load_checkpoint(disk).step == 1


def test_the_result_is_written_on_a_full_disk(disk):
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 1)
        fill(disk)
        run.finish({"objective": {"name": "loss", "value": None}})
    ends_table.check("disk full at the result", *status_and_reason(run))
    assert not (disk / "journal" / "reserve").exists()


def test_a_message_on_a_full_disk_is_lost_but_not_the_result(disk, capsys):
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 1)
        fill(disk)
        with record.optional(run, "figure"):
            (disk / "figure.svg").write_text("a figure")
        run.event("x" * 9000)
        run.finish({"env_steps": 7, "objective": {"name": "loss", "value": None}})
    assert "no figure: OSError" in capsys.readouterr().out
    ends_table.check("disk full at a message", *status_and_reason(run))
    assert read_json(disk / "result.json")["result"]["env_steps"] == 7


def test_a_disk_without_room_to_begin(disk):
    fill(disk)
    with pytest.raises(record.UserError, match=r"cannot record in .*No space left"):
        record.start(record.Config(), study="toy").__enter__()


def test_heartbeats_resume_when_there_is_space(disk, monkeypatch, wait_until):
    monkeypatch.setattr(run_module, "HEARTBEAT", 0.02)
    beat = disk / "journal" / "progress.json"
    with record.start(record.Config(), study="toy") as run:
        filler = fill(disk)
        before = read_json(beat)
        beating = run._beat

        def count():
            count.beats += 1
            beating()

        count.beats = 0
        run._beat = count
        wait_until(lambda: count.beats > 3)
        assert read_json(beat) == before
        filler.unlink()
        wait_until(lambda: read_json(beat) != before)
        run.finish({})
    ends_table.check("disk full for a moment", *status_and_reason(run))


def test_a_limit_of_the_shell(toy):
    limit = 'ulimit -f 200; exec "$@"'
    code, errors = toy.run("--updates", 10**6, "--every", 0, wrapper=["bash", "-c", limit, "-"])
    assert (code, errors.count("\n")) == (1, 1)
    ends_table.check("file too large", *status_of(toy.directory)[:2])
    assert (toy.directory / "artifacts" / "error.txt").exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_full_database_delays_but_loses_nothing(project, toy):
    assert toy.run("--updates", 400, "--every", 0)[0] == 0
    first = toy.directory.parent / "first"
    shutil.copytree(toy.directory, first)
    facts = read_json(first / "journal" / "run.json")
    write_json(first / "journal" / "run.json", facts | {"id": "f" * 32})
    with small_disk(project / "database", 2048) as database:
        uri = f"sqlite:///{database}/mlflow.db"
        publish(first, uri)  # creates the tables
        filler = fill(database)
        with pytest.raises(MlflowError, match="full") as error:
            publish(toy.directory, uri)
        assert "\n" not in str(error.value)
        filler.unlink()
        published = publish(toy.directory, uri)
        with sqlite3.connect(database / "mlflow.db") as connection:
            query = "select count(*) from metrics where run_uuid = ?"
            (count,) = connection.execute(query, [published.mlflow_run_id]).fetchone()
        points = list(read_points(toy.directory / "journal" / "metrics.jsonl"))
        assert count == len(points) == 400 * 3 + 1
    ends_table.check("disk of the database full", *published.status[:2])
