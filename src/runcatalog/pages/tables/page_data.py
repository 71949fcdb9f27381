"""Records of a page, with their batches, trials and declared operations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runcatalog.analysis import groups, record_numbers
from runcatalog.model import marks
from runcatalog.model.project import Operation, Reported, with_added_flags
from runcatalog.model.run_record import RunRecord
from runcatalog.pages.tables import evaluation_marks
from runcatalog.text import links as page_links


@dataclass
class PageData:
    """Records of a page, with their batches, trials and declared operations.

    Attributes:
        records: All records.
        operations: Declared operations by name.
        reported: Results of the sources by operation.
        pending: Reason why an operation has not been run yet, by operation.
        links: Addresses of the runs' pages in MLflow, by run id.
        local: Ids of the runs and batches that are marked as not exported.
        missing_commits: Commits of runs that are not in the project's git history.
        intervals: By operation, the cell of a run's table with its objective and 95 % interval, where the script
            computed it from several seeds; see `record_numbers.cell`.
        addresses: Path and anchor of the entries in the pages of runs, by run id and by operation.
        by_id: Current records by id, in order of their start: neither superseded nor retracted. Tables, figures and
            counts are of these alone.
        trials: Current trials by the id of their batch.
        opened: The runs that opened test sets, see `evaluation_marks.openings`; by default those of `records`.
        marked: The superseded and retracted records by id, in order of their start.
        settings: Settings of the operations whose settings have been asked for; see `tables.settings`.
        cpus: Kinds of CPU of a machine, in order of the first run on each; bits may differ between them.
    """

    records: Sequence[RunRecord]
    operations: Mapping[str, Operation]
    reported: Mapping[str, Reported]
    pending: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    local: Collection[str] = ()
    missing_commits: Collection[str] = ()
    intervals: Mapping[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    opened: evaluation_marks.Openings = field(default_factory=dict)
    by_id: dict[str, RunRecord] = field(init=False)
    trials: dict[str, list[RunRecord]] = field(init=False)
    marked: dict[str, RunRecord] = field(init=False)
    settings: dict[str, list[Any]] = field(init=False, default_factory=dict)
    cpus: dict[str, list[str]] = field(init=False)
    _by_operation: dict[str, list[RunRecord]] = field(init=False)
    _marked_of: dict[str, list[RunRecord]] = field(init=False)

    def __post_init__(self) -> None:
        compared = with_added_flags(self.records, self.operations)
        ordered = sorted(with_intervals(compared, self.intervals), key=groups.order)
        self.opened = self.opened or evaluation_marks.openings(ordered)
        self.by_id = {record.run: record for record in marks.current(ordered)}
        self.marked = {r.run: r for r in ordered if r.run not in self.by_id}
        self.cpus = {}
        for record in ordered:
            kinds = self.cpus.setdefault(record.machine, [])
            if record.host_cpu and record.host_cpu not in kinds:
                kinds.append(record.host_cpu)
        self._marked_of = {}
        for record in self.marked.values():
            self._marked_of.setdefault(self.operation_of(record), []).append(record)
        self.trials, self._by_operation = {}, {}
        for record in self.by_id.values():
            self._by_operation.setdefault(record.operation, []).append(record)
            if record.batch:
                self.trials.setdefault(record.batch, []).append(record)

    def is_batch(self, record: RunRecord) -> bool:
        """Return whether a record is of a batch."""
        return record.run in self.trials or bool((record.result or {}).get("batch"))

    def unit(self, runs: Iterable[RunRecord], metric: str) -> str:
        """Return the declared unit of a metric of some runs; "" without one."""
        declared = (self.operations[r.operation] for r in runs if r.operation in self.operations)
        return next(filter(None, (operation.unit(metric) for operation in declared)), "")

    def operation_of(self, record: RunRecord) -> str:
        """Return a record's operation; that of its batch for a trial."""
        batch = self.by_id.get(record.batch) or self.marked.get(record.batch)
        return batch.operation if batch else record.operation

    def marked_of(self, operation: str) -> list[RunRecord]:
        """Return the superseded and retracted runs and batches of an operation, with their trials."""
        return self._marked_of.get(operation, [])

    def heads(self, operation: str) -> list[RunRecord]:
        """Return the batches and single runs of an operation, by start; no trials.

        A batch without a record of its own is represented by its first trial.
        """
        batches: set[str] = set()
        heads = []
        for record in self._by_operation.get(operation, ()):
            if record.batch in self.by_id or (record.batch and record.batch in batches):
                continue
            batches.add(record.batch)
            heads.append(record)
        return heads

    def id_cell(self, run: str) -> str:
        """Return a run's first 8 digits, linked to its entry in the pages of runs, and marked if it is local."""
        shown = (
            f"[{run[:8]}]({page_links.to(self.addresses[run])})"
            if run in self.addresses
            else run[:8]
        )
        return f"{shown} *local*" if run in self.local else shown

    def section_link(self, run: str, text: str) -> str:
        """Return a text that is linked to the section with all runs of a run's operation."""
        record = self.by_id.get(run)
        address = self.addresses.get(self.operation_of(record)) if record else None
        return f"[{text}]({page_links.to(address)})" if address else text

    def machine(self, record: RunRecord) -> str:
        """Return a run's machine, with the number of its kind of CPU if the machine has had several."""
        kinds = self.cpus.get(record.machine, [])
        if len(kinds) < 2 or record.host_cpu not in kinds:
            return record.machine
        return f"{record.machine} (CPU {kinds.index(record.host_cpu) + 1})"

    def members(self, head: RunRecord) -> list[RunRecord]:
        """Return the trials of a head; none for a single run."""
        return self.trials.get(head.batch or head.run, [])


def with_intervals(records: Iterable[RunRecord], intervals: Mapping[str, str]) -> list[RunRecord]:
    """Return records whose objectives have the intervals that cells of their tables state.

    Args:
        records: The records.
        intervals: The cell by operation; see :meth:`runcatalog.model.project.Project.intervals`.
    """
    return [_with_interval(record, intervals.get(record.operation, "")) for record in records]


def _with_interval(record: RunRecord, cell: str) -> RunRecord:
    """Return a record whose objective has the interval that a cell of its table states."""
    objective = record.objective
    numbers = record_numbers.cell(record, record_numbers.TABLE + cell) if cell else []
    if objective is None or len(numbers) != 3:
        return record
    scale = 0.01 if objective.get("kind") == "rate" else 1.0
    low, high = (scale * number for number in numbers[1:])
    # The cell is rounded: [100.0, 100.0] of 99.99 % would not have the value.
    value = objective["value"]
    stated = {**objective, "interval": [min(low, value), max(high, value)]}
    return record.with_objective(stated)
