"""Committed records against git's history: every record that was committed is there, with its numbers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from runcatalog.model import record_files as files
from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import changed_numbers
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord, from_json
from runcatalog.record.provenance.git import git, git_or_none


def problems(project: Project, records: Iterable[RunRecord] = ()) -> tuple[list[str], str]:
    """Return (a line per record that vanished or whose numbers changed, why nothing was checked).

    All versions of all records in the history of HEAD are compared with the working tree. The second text is ""
    where they were; without git, or in a clone without the whole history, they cannot be.

    Args:
        project: The project.
        records: The records in the working tree, as far as they have been read.

    Raises:
        CatalogError: A record in the working tree is broken.
    """
    root, folder = project.root, project.records
    if not git(["rev-parse", "--verify", "--quiet", "HEAD"], root):
        return [], "there is no git history"
    if git(["rev-parse", "--is-shallow-repository"], root).strip() != b"false":
        return [], "this clone has a part of git's history only"
    paths = files.by_digits(folder)
    present = {_blob(path) for same in paths.values() for path in same}
    read = {record.run: record for record in records}
    lines: dict[str, None] = {}
    try:
        for path, content in _earlier(root, folder, present):
            lines |= dict.fromkeys(_changes(path, content, paths, read))
    except TimeoutError:
        return list(lines), "git did not answer"
    return list(lines), ""


def _changes(
    path: str,
    content: bytes,
    paths: Mapping[str, Sequence[Path]],
    read: Mapping[str, RunRecord],
) -> Iterator[str]:
    try:
        before = from_json(values.parse_json(content), path)
    except (CatalogError, ValueError):
        return  # what was never a valid record
    now = read.get(before.run) or files.committed(before.run, paths)
    if now is None:
        yield (
            f"{path}: the record of run {before.id8} ({before.operation}) was removed; `git checkout` brings it "
            "back, `catalog forget` marks it"
        )
    elif changed := changed_numbers(before, now):
        yield f"{path}: run {before.id8} was committed with another {', '.join(changed)}"


def _earlier(root: Path, folder: Path, present: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of every version of a record in the history that is not in the working tree.

    Raises:
        TimeoutError: Git failed or took too long.
    """
    # --full-history: a merge that dropped a record would hide the side that had it.
    listed = git_or_none(
        ["rev-list", "--objects", "--full-history", "HEAD", "--", str(folder)], root
    )
    if listed is None:
        raise TimeoutError
    paths = {}
    for line in listed.decode("utf-8", "replace").splitlines():
        blob, _, path = line.partition(" ")
        if path.endswith(".json") and blob not in present:
            paths[blob] = path
    contents = git_or_none(["cat-file", "--batch"], root, given="\n".join(paths).encode())
    if contents is None:
        raise TimeoutError
    stream = io.BytesIO(contents)
    for path in paths.values():
        header = stream.readline().split()
        if len(header) == 3:  # "missing" in a clone without all objects
            yield path, stream.read(int(header[2]))
            stream.read(1)


def _blob(path: Path) -> str:
    """Return the name of a file's content in git."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
