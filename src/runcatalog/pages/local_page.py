"""runs_local.md: the committed runs and those of this machine that are not exported; git ignores it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render
from runcatalog.store.client import DIGEST
from runcatalog.store.run_rows import Reader, Stored
from runcatalog.sync.sync import STAMP


def not_exported(source: Reader, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs in MLflow that have no record, or went on here after it was written.

    Args:
        source: The MLflow.
        records: The committed records.
    """
    told = {record.run: record for record in records}
    first: dict[str, Stored] = {}
    for each in source.runs():
        first.setdefault(each.run, each)
    return source.with_points(
        [each for each in first.values() if _is_new(each, told.get(each.run))]
    )


def _is_new(stored: Stored, record: RunRecord | None) -> bool:
    if record is None:
        return True
    if DIGEST in stored.tags and STAMP not in stored.tags:
        return False  # imported from a record, which others may have replaced since
    own = stored.record
    # A run that goes on gets another end; what else a record says may be changed by hand there.
    return (own.status, own.wall_seconds, own.digest) != (
        record.status,
        record.wall_seconds,
        record.digest,
    )


def write(
    project: Project,
    records: Sequence[RunRecord],
    own: Sequence[RunRecord],
    links: Mapping[str, str] | None = None,
) -> list[Path]:
    """Writes the page and its figures, and removes those of an earlier one; returns the files that changed.

    Args:
        project: The project.
        records: The committed records, of which runs_catalog.md and its figures have been written.
        own: What :func:`not_exported` returned; without any there is no page.
        links: As for :class:`runcatalog.pages.render.Catalog`.
    """
    local = {record.run for record in own}
    changed: list[Path] = []
    there = set(project.local_figures.glob("*/figures/*.svg"))
    if own:
        everything = [*(r for r in records if r.run not in local), *own]
        catalog = render.Catalog(project, everything, links, local)
        changed = catalog.write()
        there -= set(catalog.figures)
    else:
        there.add(project.local_catalog)
    for stale in there:
        with contextlib.suppress(OSError):
            stale.unlink()
    return changed
