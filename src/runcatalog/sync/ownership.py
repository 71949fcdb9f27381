"""Which runs are a project's own: a Guild home and an MLflow may hold those of several projects."""

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
from runcatalog.record.provenance.environment import git, project_name
from runcatalog.store.run_rows import Reader, StoredRun

PROJECT = "catalog.project"  # tag: name of the project that a run was started from
_OTHER = "other:"  # before the name of a project that another one's `sync --all` sent


class GuildHome:
    """The runs of a Guild home by the project that they were started from.

    A run records the folder it was started from. If that is the project, the run is its own; if it is another project,
    it is not. The folder may be gone, since the project was moved or its runs come from another machine: then
    the run is the project's own if its commit is one of the project's, or if the operation is declared in the
    project and the Guild home lies in it or the missing folder had the project folder's name. What MLflow has as
    the project's own stays so: the project and its Guild home may be a copy of another folder that is still there.

    Args:
        project: The project.
        home: The Guild home; None if there is none.
        known: Ids of the runs that MLflow has as the project's own.
    """

    def __init__(self, project: Project, home: Path | None, known: Collection[str] = ()) -> None:
        self.project = project
        self._known = frozenset(known)
        self._root = project.root.resolve()
        self._inside = home is not None and home.resolve().is_relative_to(self._root)
        self._owners: dict[str, Path | None] = {}
        self._commits: dict[str, bool] = {}

    def is_own(self, run: GuildRun) -> bool:
        """Whether a run was started from the project."""
        if run.id in self._known:
            return True
        owner = self._owner(run.source)
        if owner is not None:
            return owner == self._root
        declared = {run.operation, run.proto_operation} & self._operations
        at_home = self._inside or Path(run.source).name == self._root.name
        return bool(declared and at_home) or self._knows(run.commit)

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


class OwnRuns(Reader):
    """Reads a project's own runs in an MLflow.

    Args:
        project: The project.
        source: Reads all of them.
    """

    def __init__(self, project: Project, source: Reader) -> None:
        self.project, self.uri, self._source = project, source.uri, source

    def runs(self, *, deleted: bool = False, rarely: Collection[str] = ()) -> list[StoredRun]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        return own(self.project, self.uri, self._source.runs(deleted=deleted, rarely=rarely))

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        return self._source.points(run_ids)


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
    studies = set() if alone else {*project.studies(), "unassigned"}
    found = []
    for each in stored:
        told = each.tag(PROJECT)
        unnamed = not told and (alone or each.experiment in studies)
        if unnamed or (told and _is_told(project, alone, told)):
            found.append(each)
    return found


def own_ids(project: Project, uri: str, stored: Iterable[StoredRun]) -> set[str]:
    """Return the ids of the runs that an MLflow names as the project's own."""
    alone = _is_private(project, uri)
    return {each.run for each in stored if (t := each.tag(PROJECT)) and _is_told(project, alone, t)}


def _is_told(project: Project, alone: bool, told: str) -> bool:
    """Whether the tag of a run names the project."""
    if alone:  # the folder may have had another name
        return not told.startswith(_OTHER)
    return told.removeprefix(_OTHER) == project.name


def _is_private(project: Project, uri: str) -> bool:
    path = uri.removeprefix("sqlite:///")
    return path != uri and Path(path).resolve().is_relative_to(project.root.resolve())
