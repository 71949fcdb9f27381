"""Directories as archives, and files in pieces.

A run's directory goes to a machine as one archive with a digest. What changes there comes back in pieces: the tail of a
file that grows, the whole of any other.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from runcatalog.cluster.engine import Piece, Stamp, Wanted

PIECE_BYTES = 8 << 20  # of a file in an answer
ANSWER_BYTES = 32 << 20  # of all pieces of an answer
CHECKED_BYTES = 4096  # before an offset, compared before a tail is sent
# Python 3.11 before 3.11.4 has no filters; the checks of `unpack` come first everywhere.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_GROWING = (".jsonl", ".log", ".txt", ".csv")  # files that are appended to
# Paths in a run's directory of what belongs to one machine, Guild's record of the submitter's environment among it.
_LOCAL = re.compile(
    r"\.guild/(LOCK.*|ENV|output.*|engine\..*|attrs/env|[^/]*\.lock|.*tfevents.*)"
    r"|journal/(reserve|sender\.log|mlflow\.json|[^/]*\.lock)"
    r"|(.*/)?(__pycache__|\.writing-[^/]*)(/.*)?",
    re.DOTALL,
)


def is_local(path: str) -> bool:
    """Return whether a file, or folder, of a run's directory is neither shipped nor mirrored."""
    return _LOCAL.fullmatch(path) is not None


def grows(name: str) -> bool:
    """Return whether a file of this name is appended to."""
    last = name.rpartition("/")[2]
    return last.endswith(_GROWING) or ".tfevents." in last


def stamps(root: Path) -> dict[str, Stamp]:
    """Return the files of a directory by their path in it; links are followed."""
    found: dict[str, Stamp] = {}
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        prefix, parents = waiting.pop()
        try:
            state, names = os.stat(f"{root}/{prefix}"), os.listdir(f"{root}/{prefix}")
        except OSError:
            continue  # removed meanwhile
        folder = state.st_dev, state.st_ino
        if folder in parents:
            continue  # a link to a folder that it is in
        for path in (prefix + name for name in names):
            if is_local(path):
                continue
            try:
                state = os.stat(f"{root}/{path}")
            except OSError:
                continue
            if stat.S_ISDIR(state.st_mode):
                waiting.append((f"{path}/", parents | {folder}))
            elif stat.S_ISREG(state.st_mode):
                found[path] = _stamp(state)
    return found


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_size, state.st_mtime_ns, state.st_ino


def pack(parts: Iterable[tuple[str, Path, Iterable[str]]]) -> tuple[bytes, str]:
    """Return an archive and its digest.

    Args:
        parts: (prefix in the archive, folder, names of files in it); links become files.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1, dereference=True) as archive:
        for prefix, root, names in parts:
            for name in sorted(names):
                try:
                    archive.add(root / name, f"{prefix}/{name}", recursive=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def unpack(data: bytes, digest: str, root: Path) -> None:
    """Unpack an archive of `pack` into a new directory.

    Raises:
        ValueError: Its digest is another, or something in it is no plain file in the directory.
    """
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the archive has another digest than was said: refused")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            if not member.isfile() and not member.isdir():
                raise ValueError(f"{member.name!r} in the archive is no plain file: refused")
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{member.name!r} in the archive leaves its directory: refused")
            member.mode &= 0o755
            try:
                archive.extract(member, root, **_FILTER)
            except tarfile.TarError as error:
                raise ValueError(f"refused: {error}") from None


def read(root: Path, wanted: Iterable[Wanted]) -> Iterator[Piece]:
    """Yield pieces of files in a directory, until an answer is full; files that are gone are left out.

    A checkpoint waits for all of the points before it: nothing follows a growing file of which more is to come.
    """
    space, behind = ANSWER_BYTES, False
    for each in wanted:
        if space <= 0 or (behind and not grows(each.name)):
            return
        path = inside(root, each.name)
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                stamp = _stamp(state)
                offset = each.offset
                is_other = each.stamp is not None and each.stamp != stamp
                if offset and (is_other or check(file, offset) != each.check):
                    offset = 0
                file.seek(offset)
                data = file.read(min(PIECE_BYTES, space))
                size = os.fstat(file.fileno()).st_size
        except OSError:
            continue
        space -= len(data)
        piece = Piece(each.name, offset, data, stamp, offset + len(data) >= size)
        behind = behind or _is_behind(piece)
        yield piece


def unread(wanted: Iterable[Wanted], pieces: Collection[Piece]) -> set[str]:
    """Return the files that were asked for and not read, though there was space in the answer; see `read`."""
    if sum(len(piece.data) for piece in pieces) >= ANSWER_BYTES or any(map(_is_behind, pieces)):
        return set()
    return {each.name for each in wanted} - {piece.name for piece in pieces}


def _is_behind(piece: Piece) -> bool:
    return grows(piece.name) and not piece.complete


def check(file: io.BufferedIOBase, offset: int) -> int:
    """Return the CRC-32 of the last bytes before an offset."""
    begin = max(0, offset - CHECKED_BYTES)
    file.seek(begin)
    return zlib.crc32(file.read(offset - begin))


def inside(root: Path, name: str) -> Path:
    """Return the path of a file in a directory.

    Raises:
        ValueError: The name leads out of the directory.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} leads out of the run's directory: refused")
    return root / path
