"""Records, copied run directories and CSV exports into MLflow; doing it again changes nothing."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runcatalog.model import record_files as files
from runcatalog.model.errors import CatalogError
from runcatalog.model.guild_columns import parse_columns
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.store.client import DIGEST, INCOMPLETE, Addition, Store
from runcatalog.store.run_index import RunIndex
from runcatalog.store.run_rows import StoredRun, digest
from runcatalog.sync import compare_csv
from runcatalog.sync.sync import STAMP


@dataclass
class Counts:
    """What an import did.

    Attributes:
        read: Number of runs that were read.
        added: Those that were new or had changed.
        deleted: Those that someone deleted in MLflow; they are left so.
    """

    read: int = 0
    added: int = 0
    deleted: int = 0


def kind_of(path: Path) -> str:
    """Says what a path is: "csv", "record", "records" or "journals".

    Raises:
        CatalogError: None of these.
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
        f"{path}: neither a run's directory (journal/run.json or .guild/opref) nor records in it"
    )


def journals(path: Path) -> list[Path]:
    """Returns the run directories at a path or up to two levels below it, Guild's batches too.

    Links are not followed: a batch's lead to its trials, which lie beside it.
    """
    level, found = [path], []
    for depth in range(3):
        found += [folder for folder in level if _is_run(folder)]
        if depth < 2:
            level = [below for folder in level for below in _folders(folder)]
    return sorted(found)


def _is_run(path: Path) -> bool:
    marks = ("journal/run.json", ".guild/opref")
    return any((path / name).is_file() for name in marks)


def _folders(path: Path) -> list[Path]:
    """The folders in a folder, but not what Guild and others hide there, such as a batch's prototype."""
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
    """Pause the collector of cycles, which would walk over a million points that have none, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_garbage_collection()
def put_records(store: Store, records: Sequence[RunRecord], say: Callable[[str], None]) -> Counts:
    """Add records that MLflow lacks; a run from a journal, or from the same record, stays as it is."""
    counts, index = Counts(read=len(records)), RunIndex(store)
    index.remove_duplicates()
    parents = {run.run: run.id for run in index if not run.deleted}
    # The inputs may overlap; the last record of a run counts.
    records = list({r.run: r for r in _with_known_batches(records, index)}.values())
    # Trials name their batch by the id that MLflow gives it.
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
                additions.append(Addition(record, tags, replaces=known))
            # A batch that was written anew has another id.
            elif DIGEST in known.tags and any(known.tags.get(k) != v for k, v in tags.items()):
                store.tag(known.id, tags)
        replaced = {a.record.run: a.replaces for a in additions if a.replaces is not None}
        for record, id in store.write_all(additions):
            parents[record.run] = id
            counts.added += 1
            if record.run in replaced:
                index.note_replaced(replaced[record.run])
            say(f"{record.id8}  {record.operation}  {record.status}")
    if counts.added:
        index.tidy()
    return counts


def _with_known_batches(records: Sequence[RunRecord], index: RunIndex) -> list[RunRecord]:
    """Name a CSV's batches as MLflow does, where it has trials of them; batches before trials.

    A CSV does not say which batch its runs are of. A batch is left out if MLflow knows more of all its runs.
    """
    names: dict[str, str] = {}
    wanted: set[str] = set()
    for record in (r for r in records if r.batch):
        known = index.live(record.run)
        if not record.reported_by or known is None or known.tags.get("reported_by"):
            wanted.add(record.batch)
        elif batch := known.tags.get("batch"):
            names.setdefault(record.batch, batch)
    named = [
        replace(r, run=names.get(r.run, r.run), batch=names.get(r.batch, r.batch))
        if r.run in names or r.batch in names
        else r
        for r in records
        if not r.reported_by or not (r.result or {}).get("batch") or r.run in wanted
    ]
    return sorted(named, key=lambda r: (bool(r.batch), r.run))


def _is_as_complete(known: StoredRun, record: RunRecord) -> bool:
    """Whether MLflow's run is of a journal or Guild, or of this very record, or beats a record of a CSV."""
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
    """Returns the records of a CSV export, with the study found or given.

    Raises:
        CatalogError: The file is wrong, or its study is not known.
    """
    _, rows = compare_csv.read(path)
    if not rows:
        raise CatalogError(f"{path}: no runs in it")
    chosen = study or project.study_of(rows[0]["operation"])
    if not chosen:
        known = ", ".join(project.studies()) or "none"
        raise CatalogError(
            f"{path}: which study is {rows[0]['operation']!r} of? --study NAME says so; "
            f"there are: {known}"
        )
    declared = _declared(project, {row["operation"] for row in rows})
    return compare_csv.records(path, replace(options, study=chosen, **declared))


def _declared(project: Project, wanted: set[str]) -> dict[str, Any]:
    """Columns and flags of the project's operations, and its machines.

    Args:
        project: The project.
        wanted: Operations whose flags are needed; Guild is asked for those of an operation without records.
    """
    flags: dict[str, set[str]] = {}
    for record in files.read_all(project.records) if project.records.is_dir() else ():
        if record.operation in wanted:
            flags.setdefault(record.operation, set()).update(record.flags)
    operations = project.operations()
    missing = {name for name in wanted if name in operations and not flags.get(name)}
    flags |= _guild_flags(project, missing) if missing else {}
    return {
        "columns": {
            name: parse_columns(operation.compare) for name, operation in operations.items()
        },
        "flags": {name: frozenset(known) for name, known in flags.items()},
        "machines": {m.host: m.name for m in project.machines() if m.host},
    }


def _guild_flags(project: Project, wanted: set[str]) -> dict[str, set[str]]:
    """Names of some operations' flags, by operation, as Guild imports them from the scripts."""
    from runcatalog.guild.compat import guildfile

    found = {}
    for name in wanted:
        model, _, short = name.rpartition(":")
        operation = None
        with contextlib.suppress(guildfile.GuildfileError):
            declared = guildfile.for_dir(str(project.root)).models.get(model)
            operation = declared.get_operation(short) if declared else None
        found[name] = {flag.name for flag in operation.flags} if operation else set()
    return found


@_no_garbage_collection()
def read_records(path: Path) -> list[RunRecord]:
    """Returns the records in a folder, or one study's folder, or a file.

    Raises:
        CatalogError: One is broken.
    """
    if path.is_file():
        return [files.read(path)]
    if next(path.glob("*/*.json"), None):
        return files.read_all(path)
    return [files.read(file) for file in sorted(path.glob("*.json"))]
