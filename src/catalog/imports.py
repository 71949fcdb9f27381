"""Records, copied run directories and CSV exports into MLflow; doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from catalog import compare_csv
from catalog import records as files
from catalog.errors import CatalogError
from catalog.model import RunRecord
from catalog.project import Project
from catalog.store import DIGEST, Store, digest


@dataclass
class Counts:
    """What an import did.

    Attributes:
        seen: Runs that were read.
        added: Those that were new or had changed.
        deleted: Those that someone deleted in MLflow; they are left so.
    """

    seen: int = 0
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
    raise CatalogError(f"{path}: neither a run's directory (journal/run.json) nor records in it")


def journals(path: Path) -> list[Path]:
    """Returns the run directories at a path or up to two levels below it."""
    found = [
        each.parent.parent
        for pattern in ("", "*/", "*/*/")
        for each in path.glob(f"{pattern}journal/run.json")
    ]
    return sorted(set(found))


def put_records(store: Store, found: Sequence[RunRecord], say: Callable[[str], None]) -> Counts:
    """Adds records that MLflow does not hold; a run with its own journal there is left as it is."""
    counts = Counts()
    stored = {}
    for each in store.runs(deleted=True):
        # A CSV holds 8 digits of an id, a journal all 32.
        for key in (each.record.run, each.record.run[:8]):
            if key not in stored or stored[key].deleted:
                stored[key] = each
    ids = {run: each.id for run, each in stored.items() if not each.deleted}
    for record in sorted(found, key=lambda r: (bool(r.batch), r.run)):  # a batch before its trials
        counts.seen += 1
        known = stored.get(record.run)
        if known is not None and known.deleted:
            counts.deleted += 1
            continue
        if known is not None and known.tags.get(DIGEST) in (None, digest(record)):
            continue
        if known is not None:
            store.forget(known)
        parent = ids.get(record.batch)
        tags = {"mlflow.parentRunId": parent} if record.batch and parent else {}
        ids[record.run] = store.write(record, tags)
        counts.added += 1
        say(f"{record.id8}  {record.operation}  {record.status}")
    return counts


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
    return compare_csv.records(path, replace(options, study=chosen))


def read_records(path: Path) -> list[RunRecord]:
    """Returns the records in a folder, or one study's folder, or a file.

    Raises:
        CatalogError: One is broken.
    """
    if path.is_file():
        return [files.read(path)]
    if next(path.glob("*/*.json"), None):
        return files.read_all(path)
    return [files.read(each) for each in sorted(path.glob("*.json"))]
