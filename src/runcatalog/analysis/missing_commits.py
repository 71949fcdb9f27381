"""List of the commits that records name and git's history lacks, so that every clone renders the same page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.record.provenance.environment import git

_HEADER = "# Commits that records name and that are not in the history of HEAD; written by `catalog render`.\n"


def listed(project: Project) -> frozenset[str]:
    """Return the commits of the list; none without the file."""
    try:
        content = _path(project).read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    return frozenset(re.findall(r"^[0-9a-f]{40,64}$", content, re.MULTILINE))


def missing(project: Project, records: Iterable[RunRecord]) -> list[str] | None:
    """Return the commits of records that are not in the history of HEAD; None if git does not have all of it."""
    history = git(["rev-list", "HEAD"], project.root).decode().split()
    if (
        not history
        or git(["rev-parse", "--is-shallow-repository"], project.root).strip() != b"false"
    ):
        return None
    return sorted({record.commit for record in records if record.commit}.difference(history))


def update(project: Project, records: Iterable[RunRecord]) -> Path | None:
    """Write the list if it changed, in a clone with the whole history; return its path if it did."""
    found = missing(project, records)
    if found is None or frozenset(found) == listed(project):
        return None
    path = _path(project)
    path.write_text(_HEADER + "".join(f"{commit}\n" for commit in found), encoding="utf-8")
    return path


def problems(project: Project, records: Iterable[RunRecord]) -> list[str]:
    """Return a line if the list is not that of git's history; none in a clone without the whole history."""
    found = missing(project, records)
    if found is None or frozenset(found) == listed(project):
        return []
    name = _path(project).relative_to(project.root)
    return [
        f"{name} is not the list of the records' commits that git lacks: `catalog render` writes it"
    ]


def _path(project: Project) -> Path:
    return project.experiments / "missing_commits.txt"
