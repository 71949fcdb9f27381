"""runs_local.md and runs_local/: pages with the runs of this machine that have no record; git ignores them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runcatalog.model.marks import with_marks
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render
from runcatalog.store.client import DIGEST
from runcatalog.store.run_rows import Reader, StoredRun, by_id
from runcatalog.sync.exports import never_started
from runcatalog.sync.ownership import own
from runcatalog.sync.sync import STAMP


def not_exported(project: Project, source: Reader, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the project's runs in MLflow without a record, or that continued after it was written.

    Left out are those that never started, which get no record.

    Args:
        project: The project.
        source: Reader of MLflow.
        records: The committed records.
    """
    committed = {record.run: record for record in records}
    runs = by_id(own(project, source.uri, source.runs()))
    lacking = never_started(runs.values())
    new = [s for s in runs.values() if s.run not in lacking and _is_new(s, committed.get(s.run))]
    return source.with_points(new)


def _is_new(stored: StoredRun, record: RunRecord | None) -> bool:
    if record is None:
        return True
    if DIGEST in stored.tags and STAMP not in stored.tags:
        return False  # imported from a record, which may have been replaced since
    now = stored.record
    # A continued run ends differently; other fields are not compared, since they may be edited in MLflow.
    return (now.status, now.wall_seconds, now.digest) != (
        record.status,
        record.wall_seconds,
        record.digest,
    )


def write(
    project: Project,
    records: Sequence[RunRecord],
    local: Sequence[RunRecord],
    mlflow: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the pages and their figures, and remove outdated ones; return the files that changed.

    Args:
        project: The project.
        records: The committed records; runs_catalog.md and its figures are already written.
        local: Result of :func:`not_exported`; if it is empty, the pages are removed.
        mlflow: As for :class:`runcatalog.pages.render.Catalog`.
    """
    committed = {record.run: record for record in records}
    local = [with_marks(record, committed.get(record.run)) for record in local]
    ids = {record.run for record in local}
    changed: list[Path] = []
    outdated = set(project.local_figures.glob("*/figures/*.svg"))
    if local:
        current = [*(r for r in records if r.run not in ids), *local]
        catalog = render.Catalog(project, current, mlflow, ids)
        changed = catalog.write()
        outdated -= set(catalog.figures)
    else:
        outdated |= {project.local_catalog, *render.outdated(project, (), render.LOCAL_FOLDER)}
    for path in outdated:
        with contextlib.suppress(OSError):
            path.unlink()
    return changed
