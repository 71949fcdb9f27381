"""Import of records, copied run directories and CSV exports into MLflow; can be repeated."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runcatalog.model import record_files as files
from runcatalog.model.errors import CatalogError
from runcatalog.model.guild_columns import parse_columns
from runcatalog.model.marks import with_marks
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.record.provenance.machine import name_of
from runcatalog.store.client import DIGEST, INCOMPLETE, Addition, Store
from runcatalog.store.run_index import RunIndex
from runcatalog.store.run_rows import StoredRun, digest, mark_tags
from runcatalog.sync import compare_csv
from runcatalog.sync.sync import STAMP


@dataclass
class Counts:
    """Counts of an import.

    Attributes:
        read: Number of runs that were read.
        added: Number of those that were new or had changed.
        deleted: Number of runs that were deleted in MLflow, and so not imported.
    """

    read: int = 0
    added: int = 0
    deleted: int = 0


def kind_of(path: Path) -> str:
    """Return the kind of a path: "csv", "record", "records" or "journals".

    Raises:
        CatalogError: The path does not exist or is of another kind.
    """
    if path.is_file():
        if path.suffix.lower() == ".csv":
            return "csv"
        if path.suffix.lower() == ".json":
            return "record"
        raise CatalogError(f"{path}: a .csv or .json file, or a directory is expected")
    if not path.is_dir():
        raise CatalogError(f"{path}: no such file or directory")
    if journals(path):
        return "journals"
    if next(path.glob("*/*.json"), None) or next(path.glob("*.json"), None):
        return "records"
    raise CatalogError(
        f"{path}: contains neither run directories (journal/run.json or .guild/opref) nor records"
    )


def journals(path: Path) -> list[Path]:
    """Return the run directories at a path or up to two levels below it, including Guild's batches.

    Links are not followed: those in a batch lead to its trials, which are in the same folder as the batch.
    """
    level, runs = [path], []
    for depth in range(3):
        runs += [folder for folder in level if _is_run(folder)]
        if depth < 2:
            level = [below for folder in level for below in _folders(folder)]
    return sorted(runs)


def check_files(directories: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Return the run directories in which all files can be read, and a line for each of the others.

    A pipe or device in a copied directory would be waited for without end, and a link in the journal would lead to
    files of this machine.
    """
    good, problems = [], []
    for directory in directories:
        try:
            strange = next(_strange_files(directory), None)
        except OSError as error:
            strange = f"{error.filename}: {error.strerror}"
        if strange is None:
            good.append(directory)
        else:
            problems.append(f"{strange}; the run was not imported")
    return good, problems


_OWN = ("journal", ".guild", ".guild/attrs", ".guild/proto", ".guild/proto/.guild")


def _strange_files(directory: Path) -> Iterator[str]:
    """Yield a line for each entry of a run directory that is neither a file nor a directory, nor an expected link."""
    folders = [""]
    while folders:
        below = folders.pop()
        with os.scandir(directory / below) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                if entry.is_symlink():
                    # Guild links the files of required runs and a batch's trials.
                    if below in _OWN or name in (*_OWN, "result.json"):
                        yield f"{directory / name}: a link, where a run has files of its own"
                    elif os.path.exists(entry.path) and not (entry.is_file() or entry.is_dir()):
                        yield f"{directory / name}: leads to neither a file nor a directory"
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif not entry.is_file(follow_symlinks=False):
                    yield f"{directory / name}: neither a file nor a directory"


def _is_run(path: Path) -> bool:
    marks = ("journal/run.json", ".guild/opref")
    return any((path / name).is_file() for name in marks)


def _folders(path: Path) -> list[Path]:
    """Return the visible folders in a folder; hidden ones contain a batch's prototype, for example."""
    try:
        entries = list(os.scandir(path))
    except OSError:
        return []
    return [
        Path(entry.path)
        for entry in entries
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
    ]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which would repeatedly traverse a million points without cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_garbage_collection()
def put_records(
    store: Store, records: Sequence[RunRecord], report_line: Callable[[str], None]
) -> Counts:
    """Add records that MLflow lacks; runs from a journal or from the same record are not changed."""
    counts, index = Counts(read=len(records)), RunIndex(store)
    index.remove_duplicates()
    parents = {run.run: run.id for run in index if not run.deleted}
    # The inputs may overlap; the last record of a run counts.
    records = list({r.run: r for r in _with_known_batches(records, index)}.values())
    # Batches first: their MLflow ids become tags of their trials.
    for group in ([r for r in records if not r.batch], [r for r in records if r.batch]):
        additions = []
        for record in group:
            known = index.get(record.run)
            if known is not None and known.deleted:
                counts.deleted += 1
                continue
            tags = {}
            if record.batch in parents:
                tags["mlflow.parentRunId"] = parents[record.batch]
            if known is None or not _is_as_complete(known, record):
                marked = with_marks(record, known.record) if known is not None else record
                additions.append(Addition(with_marks(marked, record), tags, replaces=known))
            else:
                # A replaced batch has another id.
                tags = (tags if DIGEST in known.tags else {}) | mark_tags(record)
                if any(known.tags.get(k) != v for k, v in tags.items()):
                    store.tag(known.id, tags)
        replaced = {a.record.run: a.replaces for a in additions if a.replaces is not None}
        for record, id in store.write_all(additions):
            parents[record.run] = id
            counts.added += 1
            if record.run in replaced:
                index.note_replaced(replaced[record.run])
            place = f"{counts.added} of {len(records)}"
            report_line(f"{place}  {record.id8}  {record.operation}  {record.status}")
    index.tidy({r.batch for r in records})  # also what an import left that was killed
    return counts


def _with_known_batches(records: Sequence[RunRecord], index: RunIndex) -> list[RunRecord]:
    """Use MLflow's ids for the batches of a CSV whose trials MLflow has; sort batches before trials.

    The batch ids of a CSV are derived. A batch is left out if all its trials are in MLflow from another source. If
    those that MLflow has are not of one batch, the file is of several, and the others are a batch of their own.
    """
    batches: dict[str, set[str]] = {}
    needed: set[str] = set()
    for record in (r for r in records if r.batch):
        known = index.live(record.run)
        if not record.reported_by or known is None or known.tags.get("reported_by"):
            needed.add(record.batch)
        else:
            batches.setdefault(record.batch, set()).add(known.tags.get("batch", ""))
    names = {
        batch: min(known) for batch, known in batches.items() if len(known) == 1 and all(known)
    }
    named = [
        replace(r, run=names.get(r.run, r.run), batch=names.get(r.batch, r.batch))
        if r.run in names or r.batch in names
        else r
        for r in records
        if not r.reported_by or not (r.result or {}).get("batch") or r.run in needed
    ]
    return sorted(named, key=lambda r: (bool(r.batch), r.run))


def _is_as_complete(known: StoredRun, record: RunRecord) -> bool:
    """Return whether MLflow's run is from a journal, Guild or the same record, or better than one from a CSV."""
    recorded = known.tags.get(DIGEST)
    if recorded is None or (STAMP in known.tags and recorded != INCOMPLETE):
        return True
    if recorded == INCOMPLETE or known.status != record.status:
        return False
    if recorded == digest(record):
        return True
    return bool(record.reported_by and not known.tags.get("reported_by"))


def read_csv(
    project: Project, path: Path, study: str, options: compare_csv.Options
) -> list[RunRecord]:
    """Return the records of a CSV export, with the given study, or the study that declares the operation.

    Raises:
        CatalogError: The file is invalid, or its study is not known.
    """
    _, rows = compare_csv.read(path)
    if not rows:
        raise CatalogError(f"{path}: no runs in it")
    operations = {row["operation"] for row in rows}
    study_of = {name: study or project.study_of(name) for name in operations}
    if unknown := sorted(name for name, chosen in study_of.items() if not chosen):
        known = ", ".join(project.studies()) or "none"
        raise CatalogError(
            f"{path}: no study declares {unknown[0]!r}: give --study NAME; studies: {known}"
        )
    declared = _declared(project, operations)
    return [
        replace(record, study=study_of[record.operation])
        for record in compare_csv.records(path, replace(options, **declared))
    ]


def _declared(project: Project, names: set[str]) -> dict[str, Any]:
    """Return what the project declares of its operations, and its machines, as arguments of Options.

    Args:
        project: The project.
        names: Operations whose flags are needed; those of operations without records are imported by Guild.
    """
    flags: dict[str, set[str]] = {}
    for record in files.read_all(project.records) if project.records.is_dir() else ():
        if record.operation in names:
            flags.setdefault(record.operation, set()).update(record.flags)
    operations = project.operations()
    machines = project.machines()
    missing = {name for name in names if name in operations and not flags.get(name)}
    flags |= _guild_flags(project, missing) if missing else {}
    return {
        "columns": {
            name: parse_columns(operation.compare) for name, operation in operations.items()
        },
        "flags": {name: frozenset(known) for name, known in flags.items()},
        "objectives": {name: each.objective for name, each in operations.items() if each.objective},
        "machines": {m.host: name_of(machines, m.host) for m in machines if m.host},
    }


def _guild_flags(project: Project, names: set[str]) -> dict[str, set[str]]:
    """Return the names of operations' flags, by operation, as Guild imports them from the scripts."""
    from runcatalog.guild.compat import guildfile

    flags = {}
    for name in names:
        model, _, short = name.rpartition(":")
        operation = None
        with contextlib.suppress(guildfile.GuildfileError):
            declared = guildfile.for_dir(str(project.root)).models.get(model)
            operation = declared.get_operation(short) if declared else None
        flags[name] = {flag.name for flag in operation.flags} if operation else set()
    return flags


@_no_garbage_collection()
def read_records(path: Path) -> list[RunRecord]:
    """Return the records in a folder, in a study's folder, or in a file.

    Raises:
        CatalogError: A record is invalid.
    """
    if path.is_file():
        return [files.read(path)]
    if next(path.glob("*/*.json"), None):
        return files.read_all(path)
    return [files.read(file) for file in sorted(path.glob("*.json"))]
