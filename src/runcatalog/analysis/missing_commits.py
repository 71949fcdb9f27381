"""List of the commits that records name and git's history lacks, so that every clone renders the same page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from runcatalog.model.project import Project
from runcatalog.model.record_files import write_text
from runcatalog.model.run_record import RunRecord
from runcatalog.record.provenance.git import git

_HEADER = "# Commits of records that are not in the history of HEAD; written by `catalog render --commits`.\n"


def listed(project: Project) -> frozenset[str]:
    """Return the commits of the list; none without the file."""
    try:
        content = _path(project).read_text(encoding="utf-8", errors="replace")
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
    """Write the list if it changed, in a clone with the whole history; return its path if it did.

    Raises:
        CatalogError: The file cannot be written.
    """
    found = missing(project, records)
    if found is None or frozenset(found) == listed(project):
        return None
    path = _path(project)
    write_text(path, _HEADER + "".join(f"{commit}\n" for commit in found))
    return path


def problems(project: Project, records: Iterable[RunRecord]) -> tuple[list[str], str]:
    """Return (a line per listed commit that git has, a note on commits that are neither listed nor in git's history).

    The note is no error: a copy of the project with a history of its own has none of the commits.
    """
    found = missing(project, records)
    if found is None:
        return [], ""
    name, known = _path(project).relative_to(project.root), listed(project)
    wrong = [f"{name}: {commit} is in git's history" for commit in sorted(known.difference(found))]
    count = len(set(found) - known)
    note = f"{count} commits of records are not in git's history: `catalog render --commits` lists them in {name}"
    return wrong, note if count else ""


def _path(project: Project) -> Path:
    return project.experiments / "missing_commits.txt"
