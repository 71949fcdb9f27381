"""Ownership of runs: a Guild home and an MLflow may contain runs of several projects."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from runcatalog.guild.runs import GuildRun
from runcatalog.model.declarations import GUILD_FILE
from runcatalog.model.project import Project
from runcatalog.model.run_record import Point
from runcatalog.record.delivery.mlflow_client import sqlite_path
from runcatalog.record.provenance.environment import project_name
from runcatalog.record.provenance.git import git
from runcatalog.store.run_rows import Reader, StoredRun

PROJECT = "catalog.project"  # tag: name of the project that a run was started from
_OTHER = "other:"  # prefix of the tag of runs that another project sent with `sync --all`


class GuildHome:
    """Assigns the runs of a Guild home to the projects that they were started from.

    A run records the folder that it was started from. If this folder is the project, the run belongs to it; if it is
    another project, it does not. If the folder no longer exists (a moved project, or runs of another machine), the
    run belongs to the project if its commit is in the project's repository, or if the project declares the operation
    and either contains the Guild home or has the name of the missing folder. Runs that MLflow already assigns to the
    project stay with it, since the project may be a copy of a folder that still exists.

    Args:
        project: The project.
        home: The Guild home; None if there is none.
        known: Ids of the runs that MLflow assigns to the project.
    """

    def __init__(self, project: Project, home: Path | None, known: Collection[str] = ()) -> None:
        self.project = project
        self._known = frozenset(known)
        self._root = project.root.resolve()
        self._inside = home is not None and home.resolve().is_relative_to(self._root)
        self._owners: dict[str, Path | None] = {}
        self._commits: dict[str, bool] = {}

    def is_own(self, run: GuildRun) -> bool:
        """Return whether a run was started from the project."""
        if run.id in self._known:
            return True
        owner = self._owner(run.source)
        if owner is not None:
            return owner == self._root
        declared = {run.operation, run.proto_operation} & self._operations
        is_near = self._inside or Path(run.source).name == self._root.name
        return bool(declared and is_near) or self._has_commit(run.commit)

    def tag(self, run: GuildRun) -> str:
        """Return the value of the tag PROJECT for a run."""
        return self.project.name if self.is_own(run) else f"{_OTHER}{self.name(run)}"

    def name(self, run: GuildRun) -> str:
        """Return the name of the project that a run was started from."""
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
        """Return the nearest enclosing project of a folder; None if the folder does not exist."""
        if source not in self._owners:
            self._owners[source] = self._enclosing_project(Path(source)) if source else None
        return self._owners[source]

    def _enclosing_project(self, source: Path) -> Path | None:
        if not source.is_dir():
            return None
        folder = source.resolve()
        for parent in (folder, *folder.parents):
            if parent == self._root or (parent / GUILD_FILE).is_file():
                return parent
        return None

    def _has_commit(self, commit: str) -> bool:
        """Return whether a commit is in the project's repository."""
        if commit not in self._commits:
            command = ["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
            hexadecimal = len(commit) >= 7 and all(c in "0123456789abcdef" for c in commit)
            self._commits[commit] = hexadecimal and bool(git(command, self._root).strip())
        return self._commits[commit]


class OwnRuns(Reader):
    """Reader of a project's own runs in an MLflow.

    Args:
        project: The project.
        source: Reader of all runs.
    """

    def __init__(self, project: Project, source: Reader) -> None:
        self.project, self.uri, self._source = project, source.uri, source

    def runs(self, *, deleted: bool = False, on_demand: Collection[str] = ()) -> list[StoredRun]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        return own(self.project, self.uri, self._source.runs(deleted=deleted, on_demand=on_demand))

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        return self._source.points(run_ids)


def own(project: Project, uri: str, stored: Iterable[StoredRun]) -> list[StoredRun]:
    """Return the runs of an MLflow that belong to a project.

    In an MLflow in the project's folder these are all runs except those that `sync --all` sent; in a shared MLflow,
    the runs tagged with the project's name, and untagged runs of its studies.

    Args:
        project: The project.
        uri: Address of the MLflow.
        stored: Runs of the MLflow.
    """
    is_private = _is_private(project, uri)
    studies = set() if is_private else {*project.studies(), "unassigned"}
    selected = []
    for run in stored:
        tag = run.tag(PROJECT)
        is_untagged_own = not tag and (is_private or run.experiment in studies)
        if is_untagged_own or (tag and _names_project(project, is_private, tag)):
            selected.append(run)
    return selected


def own_ids(project: Project, uri: str, stored: Iterable[StoredRun]) -> set[str]:
    """Return the ids of the runs that an MLflow has with the tag of the project."""
    is_private = _is_private(project, uri)
    return {
        run.run
        for run in stored
        if (tag := run.tag(PROJECT)) and _names_project(project, is_private, tag)
    }


def _names_project(project: Project, is_private: bool, tag: str) -> bool:
    """Return whether a run's tag names the project."""
    if is_private:  # the project may have been renamed
        return not tag.startswith(_OTHER)
    return tag.removeprefix(_OTHER) == project.name


def _is_private(project: Project, uri: str) -> bool:
    path = sqlite_path(uri)
    return path is not None and path.resolve().is_relative_to(project.root.resolve())
