"""Runs of an operation grouped by their setting: runs that differ only in their seed have the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runcatalog.analysis import groups, searches
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FINISHED, NOT_OF_SETTING, RunRecord
from runcatalog.pages.tables.page_data import PageData


@dataclass(frozen=True)
class Setting:
    """Runs with one setting.

    Attributes:
        operation: Their operation.
        members: The runs, single ones and trials of batches, by start; of finished runs with the same seed, flags and
            parents the newest, as for the headlines.
        batches: Records of their batches.
        repeated: Number of older runs with the same seed, or without one and with the same result, that are left out.
    """

    operation: str
    members: tuple[RunRecord, ...]
    batches: tuple[RunRecord, ...] = ()
    repeated: int = 0

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that make the setting."""
        return groups.compared(self.members[0])

    @cached_property
    def finished(self) -> list[RunRecord]:
        """Finished runs with an objective."""
        return [m for m in self.members if m.status == FINISHED and m.objective]

    @cached_property
    def objectives(self) -> list[dict[str, Any]]:
        """Objectives of the finished runs."""
        return [objective for m in self.finished if (objective := m.objective)]

    @property
    def value(self) -> float | None:
        """Mean of the objective; None unless all are finite and there is at least one."""
        numbers = [o["value"] for o in self.objectives]
        return statistics.mean(numbers) if numbers and all(map(math.isfinite, numbers)) else None

    @property
    def newest(self) -> int | None:
        """Start of the newest run, in milliseconds since the epoch."""
        return max((m.started for m in self.members if m.started is not None), default=None)


def settings(data: PageData, operation: str) -> list[Setting]:
    """Return the settings of an operation's current runs, by their first start; trials of searches are left out."""
    if operation not in data.settings:
        data.settings[operation] = _settings(data, operation)
    return data.settings[operation]


def _settings(data: PageData, operation: str) -> list[Setting]:
    members, batches = [], {}
    for head in data.heads(operation):
        trials = data.members(head)
        if not trials and data.is_batch(head):
            continue
        if trials and searches.is_search(batch_of(head), trials):
            continue
        members += trials or [head]
        if trials and not head.batch:
            batches[head.run] = head
    grouped, known = [], data.marked | data.by_id
    alike = (part for runs in groups.by_setting(members, known) for part in by_objective(runs))
    for runs in alike:
        finished = [r for r in runs if r.status == FINISHED and r.objective]
        newest = {r.run for r in groups.without_repetitions(finished, known)}
        older = {r.run for r in finished} - newest
        kept = tuple(r for r in runs if r.run not in older)
        of = dict.fromkeys(r.batch for r in kept if r.batch in batches)
        grouped.append(Setting(operation, kept, tuple(batches[b] for b in of), len(older)))
    return sorted(grouped, key=lambda setting: groups.order(setting.members[0]))


def is_as_declared(data: PageData, run: RunRecord) -> bool:
    """Return whether a run's flags are those that its operation declares; lists of a batch count as any value."""
    operation = data.operations.get(run.operation)
    declared = {
        name: values.parse_flag(value)
        for name, value in (operation.flags if operation else {}).items()
        if name not in NOT_OF_SETTING and not isinstance(value, list | dict)
    }
    return all(run.comparable_flags.get(n, value) == value for n, value in declared.items())


def by_objective(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Return runs by the name of their objective, which a script may have changed, in order of their first ones.

    Runs without a result are with the newest that has one.
    """
    names = [str(o["name"]) if r.status == FINISHED and (o := r.objective) else "" for r in runs]
    newest = next(filter(None, reversed(names)), "")
    parts: dict[str, list[RunRecord]] = {}
    for run, name in zip(runs, names, strict=True):
        parts.setdefault(name or newest, []).append(run)
    return list(parts.values())


def search_heads(data: PageData, operation: str) -> list[RunRecord]:
    """Return the searches of an operation, by start; a search without a record is represented by its first trial."""
    return [
        head
        for head in data.heads(operation)
        if (trials := data.members(head)) and searches.is_search(batch_of(head), trials)
    ]


def batch_of(head: RunRecord) -> RunRecord | None:
    """Return the batch that a head of trials stands for; None where it has no record."""
    return None if head.batch else head
