"""Which runs are a project's own: a Guild home and an MLflow may hold those of several projects."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.guild.runs import GuildRun
from runcatalog.model.declarations import GUILD_FILE
from runcatalog.model.project import Project
from runcatalog.record.provenance.environment import git, project_name

if TYPE_CHECKING:
    from runcatalog.store.run_rows import StoredRun

PROJECT = "catalog.project"  # tag: name of the project that a run was started from
_OTHER = "other:"  # before the name of a project that another one's `sync --all` sent


class GuildHome:
    """The runs of a Guild home by the project that they were started from.

    A run records the folder it was started from. If that is the project, the run is its own; if it is another project,
    it is not. The folder may be gone, since the project was moved or its runs come from another machine: then
    the run is the project's own if its commit is one of the project's, or if the Guild home lies in the project
    and the operation is declared there.

    Args:
        project: The project.
        home: The Guild home; None if there is none.
    """

    def __init__(self, project: Project, home: Path | None) -> None:
        self.project = project
        self._root = project.root.resolve()
        self._inside = home is not None and home.resolve().is_relative_to(self._root)
        self._owners: dict[str, Path | None] = {}
        self._commits: dict[str, bool] = {}

    def is_own(self, run: GuildRun) -> bool:
        """Whether a run was started from the project."""
        owner = self._owner(run.source)
        if owner is not None:
            return owner == self._root
        declared = {run.operation, run.proto_operation} & self._operations
        return bool(self._inside and declared) or self._knows(run.commit)

    def tag(self, run: GuildRun) -> str:
        """The value of the tag PROJECT for a run."""
        return self.project.name if self.is_own(run) else f"{_OTHER}{self.name(run)}"

    def name(self, run: GuildRun) -> str:
        """Name of the project that a run was started from."""
        if self.is_own(run):
            return self.project.name
        source = Path(run.source or "unknown")
        name = project_name(self._owner(run.source) or source)
        if name != self.project.name:
            return name
        return f"{name}-{hashlib.sha256(os.fsencode(source)).hexdigest()[:8]}"

    @cached_property
    def _operations(self) -> set[str]:
        return set(self.project.operations())

    def _owner(self, source: str) -> Path | None:
        """The project that a folder belongs to, the nearest one upwards; None if it is gone."""
        if source not in self._owners:
            self._owners[source] = self._found(Path(source)) if source else None
        return self._owners[source]

    def _found(self, source: Path) -> Path | None:
        if not source.is_dir():
            return None
        folder = source.resolve()
        for each in (folder, *folder.parents):
            if each == self._root or (each / GUILD_FILE).is_file():
                return each
        return None

    def _knows(self, commit: str) -> bool:
        """Whether a commit is one of the project's repository."""
        if commit not in self._commits:
            wanted = ["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
            hexadecimal = len(commit) >= 7 and all(c in "0123456789abcdef" for c in commit)
            self._commits[commit] = hexadecimal and bool(git(wanted, self._root).strip())
        return self._commits[commit]


def own(project: Project, uri: str, stored: Iterable[StoredRun]) -> list[StoredRun]:
    """Return the project's own among the runs of an MLflow.

    An MLflow in the project's folder holds those of others only if `sync --all` sent them. Of one that several projects
    share, those with its name are its own, and those without a name that are of one of its studies.

    Args:
        project: The project.
        uri: The MLflow.
        stored: Its runs.
    """
    alone = _is_private(project, uri)
    studies = None if alone else {*project.studies(), "unassigned"}
    found = []
    for each in stored:
        told = each.tag(PROJECT)
        if not told:
            kept = studies is None or each.experiment in studies
        elif alone:
            kept = not told.startswith(_OTHER)
        else:
            kept = told.removeprefix(_OTHER) == project.name
        if kept:
            found.append(each)
    return found


def _is_private(project: Project, uri: str) -> bool:
    path = uri.removeprefix("sqlite:///")
    return path != uri and Path(path).resolve().is_relative_to(project.root.resolve())
