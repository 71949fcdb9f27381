"""Export of records, which are append-only: a record is added or marked, never removed or overwritten."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runcatalog.model import record_files as files
from runcatalog.model.marks import changed_numbers, marked, with_marks
from runcatalog.model.run_record import FAILED, FINISHED, RunRecord
from runcatalog.record.lifecycle.signals import NEVER_STARTED
from runcatalog.store.run_rows import StoredRun


@dataclass
class Counts:
    """Counts of an export.

    Attributes:
        records: Number of records that agree with MLflow now.
        written: Number of those that were new or had changed.
        continued: Number of runs that had not finished when their record was written, and went on.
        refused: A line per run whose numbers in MLflow are not those of its record, which is kept and still counts.
    """

    records: int = 0
    written: int = 0
    continued: int = 0
    refused: list[str] = field(default_factory=list)


def export(records: Sequence[RunRecord], folder: Path) -> Counts:
    """Write records that are new, that MLflow has marked, or whose runs went on.

    Args:
        records: The runs in MLflow, with their metrics.
        folder: Folder of the records.

    Raises:
        CatalogError: A record in the folder is broken, or a file cannot be written.
    """
    counts, kept, paths = Counts(), [], files.by_digits(folder)
    recorded: dict[str, str] = {}  # batch of a CSV → batch whose trials were recorded by themselves
    for record in records:
        before = files.committed(record.run, paths)
        if before is None:
            kept.append(record)
            continue
        if changed := changed_numbers(before, record):
            if before.is_current:
                names = ", ".join(changed)
                counts.refused.append(
                    f"run {record.id8} ({record.operation}): {names} in MLflow differ from its record, "
                    f"which is kept: a record is never changed. `catalog forget {record.id8} --why TEXT` takes it "
                    "out of the tables; what runs again with `guild run` is a new run"
                )
            continue
        counts.continued += before.status != FINISHED and before.wall_seconds != record.wall_seconds
        if before.batch and before.batch != record.batch and before.reported_by:
            recorded[before.batch] = record.batch
        kept.append(with_marks(record, before))
    for batch, now in recorded.items():
        before = files.committed(batch, paths)
        if before is not None and before.is_current:
            kept.append(marked(before, "its trials were recorded by themselves", now))
    counts.records, counts.written = files.write_all(kept, folder)
    return counts


def never_started(runs: Iterable[StoredRun]) -> set[str]:
    """Return the ids of the runs that lacked what they require, and of the batches of which no trial had it.

    Nothing was computed there, so a record would count as a failure for ever. Where other trials of a batch began,
    the one that did not is part of the batch's result.
    """
    launches: dict[str, list[StoredRun]] = {}
    for run in runs:
        launches.setdefault(run.batch or run.run, []).append(run)
    ids: set[str] = set()
    for launch, members in launches.items():
        # A batch's own run comes with its trials.
        members = [run for run in members if run.run != launch] or members
        if all(map(_lacked_a_run, members)):
            ids |= {launch, *(run.run for run in members)}
    return ids


def _lacked_a_run(run: StoredRun) -> bool:
    """Return whether a run's script was not started; one that was has recorded its versions, or has another reason."""
    said = run.status == FAILED and run.tag("reason").startswith(f"{NEVER_STARTED}: ")
    return said and not run.record.versions


def kept(runs: Collection[str], folder: Path) -> list[RunRecord]:
    """Return the current records of runs."""
    paths = files.by_digits(folder)
    records = [files.committed(run, paths) for run in sorted(runs)]
    return [record for record in records if record is not None and record.is_current]
