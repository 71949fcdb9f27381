"""A row of MLflow that is replaced keeps its marks: superseded, retracted, repeated."""

from dataclasses import replace

import pytest
from mlflow import MlflowClient

from runcatalog import record
from runcatalog.model.marks import unmarked
from runcatalog.model.run_record import MARKS
from runcatalog.store.client import DIGEST, Store
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
    rows = Store().runs()
    assert rows
    assert all(marks(stored.record) == MARKED[0] for stored in rows)
    send_again(project, run)
    RunIndex(Store()).remove_duplicates()
    (after,) = Store().runs()
    assert after.record.env_steps == 7
    assert marks(after.record) == MARKED[0]


@pytest.fixture
def recorded(project, monkeypatch):
    """Return the record of a run with a journal, with all marks; MLflow has it from the record alone."""
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(project.root / "runs" / "run"))
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 0.5}, 1)
        run.finish({"objective": {"name": "loss", "value": 0.5, "goal": "min", "at": 1}})
    Sync(project, Store(), quiet).run(None)
    (first,) = Store().with_points(Store().runs())
    for given in MARKED:
        first = replace(first, **given)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project.root}/another.db")
    put_records(Store(), [first], quiet)
    return first


def check_row_of_the_journal(project, recorded):
    """Check after a sync that MLflow has one row, the journal's, with the marks of the record."""
    (stored,) = Store().runs()
    assert DIGEST not in stored.tags
    (now,) = Store().with_points(Store().runs())
    assert marks(now) == marks(recorded)
    assert now.metrics == recorded.metrics
    assert now.status == "FINISHED"
    assert Sync(project, Store(), quiet).run(None).sent == 0


def test_a_journal_takes_the_place_of_its_record_and_keeps_the_marks(project, recorded):
    assert Sync(project, Store(), quiet).run(None).sent == 1
    check_row_of_the_journal(project, recorded)


def test_a_file_that_is_not_sent_leaves_no_second_row(project, recorded):
    stray = project.root / "runs" / "run" / "artifacts" / "stray.txt"
    stray.parent.mkdir(exist_ok=True)
    stray.symlink_to("/etc/hostname")
    (problem,) = Sync(project, Store(), quiet).run(None).problems
    assert "leads out of the run's directory" in problem
    check_row_of_the_journal(project, recorded)


@pytest.mark.parametrize(
    ("killed_in", "is_server"),
    [
        ((Tables, "add"), False),
        ((Store, "forget"), False),
        ((MlflowClient, "create_run"), True),
        ((MlflowClient, "log_batch"), True),
        ((MlflowClient, "log_artifact"), True),
        ((MlflowClient, "set_terminated"), True),
        ((Store, "forget"), True),
    ],
)
@pytest.mark.parametrize("is_done", [False, True])
def test_a_kill_while_a_journal_replaces_a_record_loses_no_mark(
    project, recorded, monkeypatch, killed_in, is_server, is_done
):
    """Before or after a call: written in one transaction, or with a server in several requests."""
    call = getattr(*killed_in)

    def killed(*arguments, **named):
        if is_done:
            call(*arguments, **named)
        raise KeyboardInterrupt

    if is_server:
        monkeypatch.setattr(Store, "new_run_client", lambda store, replaced=(): store.client)
    with monkeypatch.context() as patched:
        patched.setattr(*killed_in, killed)
        with pytest.raises(KeyboardInterrupt):
            Sync(project, Store(), quiet).run(None)
    rows = [stored for stored in Store().runs() if "study" in stored.own_tags]
    assert rows
    assert all(marks(stored.record) == marks(recorded) for stored in rows)
    Sync(project, Store(), quiet).run(None)
    check_row_of_the_journal(project, recorded)
