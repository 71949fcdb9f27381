"""Marks in result cells: the set that a value is of, how often a test set was opened, what was chosen on the set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runcatalog.analysis import groups, searches
from runcatalog.model.run_record import RunRecord
from runcatalog.record.evaluation import TEST
from runcatalog.text import markdown

LEGEND = """\
**Test set, opened n times**: runs of this configuration, of any seed and superseded ones too, evaluated on it. **Chosen
on the reported set**: selected on the set that the result is of, such as a search's best trial, so biased upwards.
"""
_CHOSEN = "chosen on the reported set"

Openings = Mapping[tuple[str, str], Sequence[RunRecord]]
"""Runs that opened a test set, by configuration and digest of the set."""


def openings(records: Iterable[RunRecord]) -> Openings:
    """Return the runs that opened test sets, superseded and retracted ones too."""
    opened: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if record.split == TEST:
            opened.setdefault(_key(record), []).append(record)
    return opened


def mark(opened: Openings, batch: RunRecord | None, members: Sequence[RunRecord]) -> str:
    """Return the end of a row's result cell, such as "; test set, opened 3 times (3 seeds)"; "" if nothing is declared.

    Args:
        opened: See :func:`openings`.
        batch: The batch's record; None for single runs or without a record.
        members: The batch's trials, or the single runs of the row.
    """
    declared = [m for m in [*members, *([batch] if batch else [])] if m.evaluation]
    by_set = {(record.split, _key(record)): record for record in declared}
    names = dict.fromkeys(_set_text(opened, record) for record in by_set.values())
    parts = list(names)[:2] + ["…"] * (len(names) > 2)
    reasons = dict.fromkeys(m.evaluation.chosen for m in declared if m.evaluation)
    if is_chosen(batch, members):
        reasons = {"best setting of the search": None} | reasons
    if texts := [markdown.escape(reason) for reason in reasons if reason]:
        parts.append(f"{_CHOSEN}: {', '.join(texts)}")
    return "".join(f"; {part}" for part in parts)


def is_chosen(batch: RunRecord | None, members: Sequence[RunRecord]) -> bool:
    """Return whether a row's number is that of the best setting of a search, as its record says."""
    single = batch or (members[0] if len(members) == 1 else None)
    best = (single.result or {}).get("best") if single else None
    return isinstance(best, dict) or (len(members) > 1 and searches.is_search(batch, members))


def _set_text(opened: Openings, record: RunRecord) -> str:
    evaluation = record.evaluation
    assert evaluation is not None
    shown = f"{evaluation.split} set"
    if evaluation.split != TEST:
        return shown
    runs = {run.run: run.seed for run in opened.get(_key(record), [record])}
    if len(runs) == 1:
        return f"{shown}, opened once"
    seeds = len({seed for seed in runs.values() if seed is not None})
    of = f" ({seeds} seed{'s' * (seeds != 1)})" if seeds else ""
    return f"{shown}, opened {len(runs)} times{of}"


def _key(record: RunRecord) -> tuple[str, str]:
    evaluation = record.evaluation
    return repr((record.operation, groups.compared(record))), (
        evaluation.digest or evaluation.name
    ) if evaluation else ""
