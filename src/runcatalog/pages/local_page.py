"""runs_local.md: the committed runs and those of this machine that are not exported; git ignores it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render
from runcatalog.store.client import DIGEST
from runcatalog.store.run_rows import Reader, StoredRun
from runcatalog.sync.ownership import own
from runcatalog.sync.sync import STAMP


def not_exported(project: Project, source: Reader, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the project's runs in MLflow that have no record, or continued after it was written.

    Args:
        project: The project.
        source: The MLflow.
        records: The committed records.
    """
    by_id = {record.run: record for record in records}
    first: dict[str, StoredRun] = {}
    for stored in own(project, source.uri, source.runs()):
        first.setdefault(stored.run, stored)
    return source.with_points(
        [stored for stored in first.values() if _is_new(stored, by_id.get(stored.run))]
    )


def _is_new(stored: StoredRun, record: RunRecord | None) -> bool:
    if record is None:
        return True
    if DIGEST in stored.tags and STAMP not in stored.tags:
        return False  # imported from a record, which others may have replaced since
    now = stored.record
    # A run that continues gets another end; what else a record says may be changed by hand there.
    return (now.status, now.wall_seconds, now.digest) != (
        record.status,
        record.wall_seconds,
        record.digest,
    )


def write(
    project: Project,
    records: Sequence[RunRecord],
    local: Sequence[RunRecord],
    links: Mapping[str, str] | None = None,
) -> list[Path]:
    """Writes the page and its figures, and removes those of an earlier one; returns the files that changed.

    Args:
        project: The project.
        records: The committed records, of which runs_catalog.md and its figures have been written.
        local: What :func:`not_exported` returned; without any there is no page.
        links: As for :class:`runcatalog.pages.render.Catalog`.
    """
    ids = {record.run for record in local}
    changed: list[Path] = []
    there = set(project.local_figures.glob("*/figures/*.svg"))
    if local:
        everything = [*(r for r in records if r.run not in ids), *local]
        catalog = render.Catalog(project, everything, links, ids)
        changed = catalog.write()
        there -= set(catalog.figures)
    else:
        there.add(project.local_catalog)
    for stale in there:
        with contextlib.suppress(OSError):
            stale.unlink()
    return changed
