"""A row of MLflow that is replaced keeps its marks: superseded, retracted, repeated."""

from dataclasses import replace

import pytest

from runcatalog import record
from runcatalog.model.marks import unmarked
from runcatalog.model.run_record import MARKS
from runcatalog.store.client import Store
from runcatalog.store.run_index import RunIndex
from runcatalog.store.sqlite_writer import Tables
from runcatalog.sync.imports import put_records
from runcatalog.sync.sync import Sync

MARKED = [
    {"retracted": "a wrong reward"},
    {"superseded_by": "00000009" * 4, "superseded_why": "more seeds"},
    {"reproduced": [{"when": "2026-11-01", "cpu": "a CPU", "bits": True, "value": 0.5}]},
]


def quiet(line):
    """Print nothing."""


def marks(run):
    """Return the marks of a record that has any."""
    return {name: getattr(run, name) for name in MARKS if getattr(run, name)}


def from_a_record(project, run):
    """Imports the run's record with a further number."""
    put_records(Store(), [replace(unmarked(run), env_steps=7)], quiet)


def from_guild(project, run):
    """Send the run as one whose scalars Guild has."""
    Sync(project, Store(), quiet)._put(replace(unmarked(run), env_steps=7), {})


@pytest.mark.parametrize("send_again", [from_a_record, from_guild])
@pytest.mark.parametrize("given", MARKED)
def test_a_row_sent_again_keeps_its_marks(project, make, given, send_again):
    run = make(1, value=0.5).with_points({"loss": [(1, 0.5), (2, 0.25)]})
    run = replace(run, **given)
    put_records(Store(), [run], quiet)
    (before,) = Store().runs()
    send_again(project, run)
    (after,) = Store().runs()
    assert after.id != before.id
    assert after.record.env_steps == 7
    assert marks(after.record) == marks(run)


@pytest.mark.parametrize("send_again", [from_a_record, from_guild])
@pytest.mark.parametrize("killed_in", [(Tables, "add"), (Store, "forget")])
def test_a_kill_while_a_row_is_replaced_loses_no_mark(
    project, make, monkeypatch, send_again, killed_in
):
    """Before the new row is written, and before the old one is deleted."""
    run = make(1, value=0.5).with_points({"loss": [(1, 0.5), (2, 0.25)]})
    put_records(Store(), [replace(run, **MARKED[0])], quiet)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*killed_in, killed)
        with pytest.raises(KeyboardInterrupt):
            send_again(project, run)
    assert all(marks(stored.record) == MARKED[0] for stored in Store().runs())
    send_again(project, run)
    RunIndex(Store()).remove_duplicates()
    (after,) = Store().runs()
    assert after.record.env_steps == 7
    assert marks(after.record) == MARKED[0]


def test_a_journal_takes_the_place_of_its_record_and_keeps_the_marks(project, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(project.root / "runs" / "run"))
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 0.5}, 1)
        run.finish({"objective": {"name": "loss", "value": 0.5, "goal": "min", "at": 1}})
    Sync(project, Store(), quiet).run(None)
    (first,) = Store().records()
    for given in MARKED:
        first = replace(first, **given)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project.root}/another.db")
    put_records(Store(), [first], quiet)
    assert Sync(project, Store(), quiet).run(None).sent == 1
    (now,) = Store().records()
    assert marks(now) == marks(first)
    assert Sync(project, Store(), quiet).run(None).sent == 0
