"""Runs without a record: those that never started, unless other trials of their batch did."""

from runcatalog.store.client import Store
from runcatalog.sync.exports import never_started
from runcatalog.sync.imports import put_records

LACKING = {"status": "FAILED", "reason": "never started: needs a run of toy:train"}


def quiet(line):
    """Print nothing."""


def test_only_launches_of_which_nothing_began_are_left_out(project, make):
    grid = {"result": {"batch": True, "method": "grid"}}
    batches = [make(number, **grid) for number in (1, 2)]
    none = [make(number, batch=batches[0].run, **LACKING) for number in (3, 4)]
    some = [make(5, batch=batches[1].run, **LACKING), make(6, batch=batches[1].run, value=0.5)]
    alone = make(7, **LACKING)
    said = make(8, status="FAILED", reason="never started: the server", versions={"python": "3"})
    crashed = make(9, status="FAILED", reason="exit status 1")
    put_records(Store(), [*batches, *none, *some, alone, said, crashed], quiet)
    assert never_started(Store().runs()) == {run.run for run in (batches[0], *none, alone)}
