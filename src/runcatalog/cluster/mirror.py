"""The submitter's copy of a run that is elsewhere: its files follow those of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from runcatalog.cluster import files
from runcatalog.cluster.engine import Look, Piece, Stamp, Wanted
from runcatalog.record.digest import file_digest

# Of Guild's own folder, which is the submitter's, a script writes these alone.
_ATTRIBUTES = {f".guild/attrs/{name}" for name in ("result", "label", "refused")}


def is_mirrored(name: str) -> bool:
    """Return whether a file of the run's directory follows the machine's."""
    if name and PurePosixPath(name).as_posix() != name:  # such as ./.guild, which is .guild
        return False
    if name.split("/")[0] == ".guild":
        return name in _ATTRIBUTES
    return not files.is_local(name)


class Mirror:
    """Follows the files of an attempt.

    Args:
        root: The run's directory here.
        owned: Context in which files are written: it fails once a newer attempt has begun.
    """

    def __init__(self, root: Path, owned: Callable[[], AbstractContextManager[None]]) -> None:
        self._root = root
        self._owned = owned
        self._known: dict[str, Stamp] = {}  # complete files
        self._parts: dict[str, tuple[Stamp, int]] = {}  # bytes of files that are not complete

    def wanted(self, look: Look) -> list[Wanted]:
        """Return the parts that are missing here, those of growing files first.

        A checkpoint may only appear here when the points before it have: a machine lists both, then sends in this
        order.
        """
        missing = []
        for name, stamp in look.files.items():
            if is_mirrored(name) and self._known.get(name) != stamp:
                missing.append(self._wanted(name, stamp))
        return sorted(missing, key=lambda each: (not files.grows(each.name), each.name))

    def _wanted(self, name: str, stamp: Stamp) -> Wanted:
        if name in self._parts:
            begun, size = self._parts[name]
            # One that is appended to has another stamp at each look.
            grows = files.grows(name) and begun[2] == stamp[2]
            if grows or begun == stamp:
                check = self._check(self._partial(name), size)
                return Wanted(name, size, check, None if grows else stamp)
        known = self._known.get(name)
        if known and files.grows(name) and known[2] == stamp[2] and known[0] <= stamp[0]:
            path = files.inside(self._root, name)
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                return Wanted(name, size, self._check(path, size))
        return Wanted(name)

    def _check(self, path: Path, size: int) -> int:
        with path.open("rb") as file:
            return files.check(file, size)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Write pieces of files.

        Raises:
            ValueError: A name leads out of the run's directory, or through a link.
            OSError: They cannot be written.
            StaleAttempt: A newer attempt has begun.
        """
        if not pieces:
            return
        with self._owned():
            for piece in pieces:
                if is_mirrored(piece.name):
                    self._take(piece)

    def _take(self, piece: Piece) -> None:
        path = files.inside(self._root, piece.name)
        if any((self._root / part).is_symlink() for part in _steps(piece.name)):
            raise ValueError(f"{piece.name!r} leads through a link: refused")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = self._partial(piece.name)
        begun = self._parts.get(piece.name)
        if piece.offset and not begun:
            # A file that grows is appended to as its writer does, so that readers see no gap.
            with path.open("r+b") as file:
                file.seek(piece.offset)
                file.write(piece.data)
        else:
            if piece.offset and begun and piece.offset != begun[1]:
                raise ValueError(f"{piece.name!r}: a piece that was not asked for: refused")
            with part.open("r+b" if piece.offset else "wb") as file:
                file.seek(piece.offset)
                file.write(piece.data)
            if not piece.complete:
                self._parts[piece.name] = piece.stamp, piece.offset + len(piece.data)
                return
            self._parts.pop(piece.name, None)
            os.replace(part, path)
        if piece.complete:
            self._known[piece.name] = piece.stamp
        else:
            size = piece.offset + len(piece.data)
            self._known[piece.name] = size, 0, piece.stamp[2]

    def remove(self, look: Look) -> None:
        """Remove the files that the run has removed."""
        gone = {name for name in self._known if name not in look.files} | set(look.gone)
        gone = {name for name in gone if is_mirrored(name)}
        if not gone:
            return
        with self._owned():
            for name in sorted(gone):
                path = files.inside(self._root, name)
                if not any((self._root / part).is_symlink() for part in _steps(name)):
                    path.unlink(missing_ok=True)
                    self._remove_empty(path.parent)
                self._known.pop(name, None)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def forget_different(self, digests: dict[str, str]) -> list[str]:
        """Return the files whose digest is another here; they are asked for again as a whole."""
        different = []
        for name, digest in digests.items():
            if not is_mirrored(name):
                continue
            try:
                same = file_digest(files.inside(self._root, name)) == digest
            except OSError:
                same = False
            if not same:
                different.append(name)
                self._known.pop(name, None)
        return different

    def _partial(self, name: str) -> Path:
        path = files.inside(self._root, name)
        return path.with_name(f".writing-{path.name}")


def _steps(name: str) -> list[str]:
    """Return "a", "a/b" and "a/b/c" for "a/b/c"."""
    parts = name.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
