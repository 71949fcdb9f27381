"""Marks of records, and which of a record's numbers may never change."""

import json
from dataclasses import replace

import pytest

from runcatalog.model import record_files, run_record
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import (
    changed_numbers,
    current,
    marked,
    problems,
    unmarked,
    with_marks,
)
from runcatalog.store.client import Store
from runcatalog.store.run_rows import digest
from runcatalog.sync.imports import put_records

RERUN = {"when": "2026-11-24", "cpu": "AMD EPYC", "bits": True, "value": 0.5}


def test_a_record_without_marks_has_the_bytes_that_it_had(make):
    plain = make(1, value=0.5)
    assert not set(run_record.MARKS) & set(json.loads(record_files.dumps(plain)))
    all_marks = replace(
        plain, superseded_by="ab" * 16, superseded_why="why", retracted="bug", reproduced=(RERUN,)
    )
    again = run_record.from_json(json.loads(record_files.dumps(all_marks)))
    assert again == all_marks
    assert digest(all_marks) == digest(plain)
    assert record_files.dumps(unmarked(all_marks)) == record_files.dumps(plain)


@pytest.mark.parametrize(
    ("field", "value"),
    [("superseded_by", "yes"), ("superseded_by", 3), ("reproduced", {}), ("reproduced", [1])],
)
def test_broken_marks_are_named(make, field, value):
    content = json.loads(record_files.dumps(make(1))) | {field: value}
    with pytest.raises(CatalogError, match=field):
        run_record.from_json(content, "x.json")


def test_marks_are_stored_in_mlflow_and_read_back_without_a_second_row(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    runs = [make(i, value=i / 10) for i in (1, 2, 3)]
    assert put_records(store, runs, print).added == 3
    ids = {run.run: run.id for run in store.runs()}
    runs[0] = marked(runs[0], "bit-identical", runs[1].run)
    runs[1] = replace(runs[1], reproduced=(RERUN,))
    runs[2] = marked(runs[2], "the wrong reward")
    assert put_records(store, runs, print).added == 0
    assert {run.run: run.id for run in store.runs()} == ids
    stored = {record.run: record_files.dumps(record) for record in store.with_points(store.runs())}
    assert stored == {record.run: record_files.dumps(record) for record in runs}


def test_marks_are_added_and_the_committed_ones_stand(make):
    plain = make(1, value=0.5)
    committed = replace(marked(plain, "bit-identical", "ab" * 16), reproduced=(RERUN,))
    other = replace(marked(plain, "another", "cd" * 16), retracted="bug", reproduced=(RERUN, {}))
    both = with_marks(other, committed)
    assert (both.superseded_by, both.superseded_why) == ("ab" * 16, "bit-identical")
    assert (both.retracted, both.reproduced) == ("bug", (RERUN, {}))
    assert with_marks(plain, None) is plain


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"label": "x", "machine": "y", "study": "z", "retracted": "bug"}, []),
        ({"result": {"objective": {"name": "a", "value": 0.6}}}, ["result"]),
        ({"seed": 5, "digest": {"metrics": "f"}}, ["seed", "digest"]),
        ({"status": "KILLED"}, ["status"]),
    ],
)
def test_which_fields_are_numbers(make, changes, names):
    record = make(1, value=0.5)
    assert changed_numbers(record, replace(record, **changes)) == names


def test_points_are_numbers_and_nan_is_equal_to_itself(make):
    record = make(1, value=0.5).with_points({"loss": [(1, 2.0), (2, float("nan"))]})
    same = make(1, value=0.5).with_points({"loss": [(1, 2.0), (2, float("nan"))]})
    assert changed_numbers(record, same) == []
    assert changed_numbers(record, same.with_points({"loss": [(1, 2.5)]})) == ["metrics"]


def test_which_records_may_change_their_numbers(make):
    killed = make(1, status="KILLED", reason="SIGTERM")
    assert changed_numbers(killed, make(1, value=0.5)) == []
    from_csv = make(1, value=0.5, reported_by="a.csv")
    assert changed_numbers(from_csv, make(1, value=0.6)) == []
    batch = make(1, result={"batch": True, "importance": {"r2": 0.1}}, wall_seconds=3.0)
    later = make(1, result={"batch": True, "importance": {"r2": 0.2}}, wall_seconds=9.0)
    assert changed_numbers(batch, later) == []


def test_trials_of_a_marked_batch_do_not_count(make):
    batch = make(1, result={"batch": True})
    trials = [make(i, value=0.5, batch=batch.run) for i in (2, 3)]
    assert current([batch, *trials]) == [batch, *trials]
    assert current([batch, trials[0], marked(trials[1], "bug")]) == [batch, trials[0]]
    assert current([marked(batch, "bug"), *trials]) == []


def test_a_mark_leads_to_a_record(make):
    first, second, third = (make(i) for i in (1, 2, 3))
    assert problems([marked(first, "x", second.run), second]) == []
    (line,) = problems([marked(first, "x", third.run), second])
    assert line == "run 00000001 is superseded by 00000003, which has no record"
    circle = [marked(first, "x", second.run), marked(second, "x", first.run)]
    assert len(problems(circle)) == 2
    assert "by itself" in problems(circle)[0]
    assert problems([*circle, marked(third, "x", first.run)]) == problems(circle)  # it leads there


def test_a_long_flag_that_an_earlier_version_cut_without_a_digest_is_unchanged(make):
    text = "word " * 600
    before = make(1, value=0.5, note=text[:1999] + "…")
    assert changed_numbers(before, make(1, value=0.5, note=text)) == []
    assert changed_numbers(before, make(1, value=0.5, note="another " * 400)) == ["flags"]
