"""Append-only records: marks that are added to a record, and numbers of it that never change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from runcatalog.model.run_record import FINISHED, MARKS, RunRecord
from runcatalog.model.values import is_cut

# What the run computed and from what. Its label, machine or study may be named otherwise later.
_NUMBERS = ("seed", "flags", "result", "metrics", "digest", "commit")
_OF_A_RUN = ("status", "started", "env_steps", "wall_seconds")  # a batch may be given more trials


def unmarked(record: RunRecord) -> RunRecord:
    """Return a record without its marks."""
    if not any(getattr(record, name) for name in MARKS):
        return record
    plain = copy.copy(record)  # its fields are in canonical form already
    for name in MARKS:
        object.__setattr__(plain, name, () if name == "reproduced" else "")
    return plain


def with_marks(record: RunRecord, committed: RunRecord | None) -> RunRecord:
    """Return a record with its marks and those of its committed record; where both have one, the committed one."""
    if committed is None or not any(getattr(committed, name) for name in MARKS):
        return record
    marks = {name: getattr(committed, name) or getattr(record, name) for name in MARKS}
    more = [entry for entry in record.reproduced if entry not in committed.reproduced]
    marks["reproduced"] = (*committed.reproduced, *more)
    if committed.superseded_by:
        marks["superseded_why"] = committed.superseded_why
    marked = copy.copy(record)
    for name, value in marks.items():
        object.__setattr__(marked, name, value)
    return marked


def changed_numbers(committed: RunRecord, record: RunRecord) -> list[str]:
    """Return the names of the fields whose numbers differ from those of a committed record.

    A run that had not finished may have been continued, a run from a CSV may have been recorded in full, and the
    importance of a search's parameters may be computed again: these are no changes.
    """
    if committed.reported_by and not record.reported_by:
        return []
    is_batch = bool((committed.result or {}).get("batch"))
    if committed.status != FINISHED and not is_batch:
        return []
    names = _NUMBERS if is_batch else (*_NUMBERS, *_OF_A_RUN)
    # Most are equal as they are, which is quicker to see than that their texts are.
    changed = (name for name in names if getattr(committed, name) != getattr(record, name))
    return [name for name in changed if _numbers(committed, name) != _numbers(record, name)]


def _numbers(record: RunRecord, name: str) -> Any:
    value = getattr(record, name)
    if name == "result" and value is not None:
        return {key: entry for key, entry in value.items() if key != "importance"}
    if name == "flags":  # in records of earlier versions a long text has no digest
        return {flag: v[:1900] if is_cut(v) else v for flag, v in value.items()}
    # NaN is not equal to itself; its text is.
    return repr(value) if name == "metrics" else value


def current(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records that count: neither superseded nor retracted, and no trials of such a batch."""
    records = list(records)
    gone = {record.run for record in records if not record.is_current}
    return [r for r in records if r.is_current and r.batch not in gone]


class _Markable(Protocol):
    @property
    def is_current(self) -> bool: ...


_Run = TypeVar("_Run", bound=_Markable)


def counted(trials: Iterable[_Run], batch: _Markable) -> list[_Run]:
    """Return a batch's trials that count: marked ones only if the batch is marked itself."""
    return [trial for trial in trials if trial.is_current or not batch.is_current]


def problems(records: Iterable[RunRecord]) -> list[str]:
    """Return a line per record that is superseded by a run without a record, or in a circle."""
    by_id = {record.run: record for record in records}
    known = by_id.keys() | {record.batch for record in by_id.values()}
    lines = []
    for record in by_id.values():
        if record.superseded_by and record.superseded_by not in known:
            lines.append(
                f"run {record.id8} is superseded by {record.superseded_by[:8]}, which has no record"
            )
        elif record.superseded_by and _is_in_a_circle(record, by_id):
            lines.append(f"run {record.id8} is superseded by itself: {record.superseded_by[:8]}")
    return lines


def _is_in_a_circle(record: RunRecord, by_id: Mapping[str, RunRecord]) -> bool:
    seen, at = set(), record
    while at.superseded_by in by_id and at.run not in seen:
        seen.add(at.run)
        at = by_id[at.superseded_by]
    return at.run == record.run and bool(seen)


def marked(record: RunRecord, why: str, superseded_by: str = "") -> RunRecord:
    """Return a record marked as superseded by another run, or as retracted.

    Args:
        record: The record.
        why: The reason.
        superseded_by: Id of the run or batch that stands for it; "" to retract the record.
    """
    if superseded_by:
        return replace(record, superseded_by=superseded_by, superseded_why=why)
    return replace(record, retracted=why)
