"""JSON lines with numbers and checksums, and what is damaged in them."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from runcatalog.record.journal.files import MAX_BYTES, open_regular, write_all

_CRC = b',"crc":"'
_CRC_BYTES = len(_CRC) + 8 + len(b'"}\n')  # from there to the end of a line
_TAIL_BYTES = 1 << 14  # read to number a line that is appended
_SHOWN = 5  # numbers of damaged lines in a message


class Damage(NamedTuple):
    """What is wrong with a JSON lines file; false if nothing is.

    Attributes:
        lines: Positions of the lines that cannot be read, from 1: no JSON object, a wrong checksum or number, no
            checksum after a line that has one, fields of a wrong type, or longer than MAX_BYTES.
        missing: Number of numbered lines that are not there. Lines cut off at the end of the file leave no trace.
        total: Number of lines in the file; 0 if nothing is wrong.
    """

    lines: tuple[int, ...] = ()
    missing: int = 0
    total: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.missing)

    @property
    def lost(self) -> int:
        """Number of lines that are lost."""
        return len(self.lines) + self.missing

    def text(self) -> str:
        """Return for example "2 of 2,001 lines cannot be read (1204, 1205), 3 lines are missing"."""
        parts = []
        if self.lines:
            more = ", …" if len(self.lines) > _SHOWN else ""
            numbers = ", ".join(map(str, self.lines[:_SHOWN])) + more
            noun = "line" if self.total == 1 else "lines"
            parts.append(f"{len(self.lines):,} of {self.total:,} {noun} cannot be read ({numbers})")
        if self.missing:
            parts.append(
                f"{self.missing:,} {'line is' if self.missing == 1 else 'lines are'} missing"
            )
        return ", ".join(parts)


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (record, byte offset after it) of a JSON lines file, up to an incomplete line.

    Damaged lines are skipped, see :func:`find_damage`. Anything but a regular file counts as missing.

    Args:
        path: The file.
        start: Byte offset to begin at.
    """
    for record, end, _ in scan(path, start):
        if record is not None:
            yield record, end


def find_damage(path: Path, is_usable: Callable[[dict[str, Any]], bool]) -> Damage:
    """Return which lines are damaged or missing; `Damage()` for a whole or missing file.

    Args:
        path: The file.
        is_usable: Whether the fields of a record, whose line is whole, can be used.
    """
    bad, missing, total, number = [], 0, 0, 0
    for record, _, line_number in scan(path):
        total += 1
        if record is None or not is_usable(record):
            bad.append(total)
        missing += max(0, line_number - number - 1)
        number = line_number
    return Damage(tuple(bad), missing, total) if bad or missing else Damage()


def scan(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any] | None, int, int]]:
    """Yield (record, byte offset after it, number) of each complete line; the record of a damaged one is None.

    The number of a line without one is that of the line before, plus 1; a repeated line has the number of the line
    before.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        # Whether a line without checksum is damaged depends on the line before.
        before = os.pread(file.fileno(), min(start, _CRC_BYTES), max(0, start - _CRC_BYTES))
        is_checked = before.startswith(_CRC)
        last = number = 0  # of the last good line with a number, and of the last line
        file.seek(start)
        end = start
        while raw := file.readline(MAX_BYTES):
            end += len(raw)
            number += 1
            record = None
            if raw[-1] != 10:  # a newline
                if len(raw) < MAX_BYTES or not (rest := _skip_line(file)):
                    return
                end += rest
            elif raw[-19:-11] == _CRC:
                is_checked = True
                content = raw[:-19]
                if raw[-11:] == b'%08x"}\n' % zlib.crc32(content):
                    record = _parsed(content + b"}")
                if record is not None and type(own := record.get("n")) is int:
                    if own > last:
                        last = number = own
                    else:  # a line that is repeated
                        number, record = number - 1, None
            elif not is_checked:
                record = _parsed(raw)
            yield record, end, number


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(raw.decode())  # twice as fast as to let json find out the encoding
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _skip_line(file: IO[bytes]) -> int:
    """Read to the end of a line; return the number of bytes, 0 if the file ends before."""
    skipped = 0
    while raw := file.readline(MAX_BYTES):
        skipped += len(raw)
        if raw.endswith(b"\n"):
            return skipped
    return 0


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record as a line and sync it to disk; an incomplete last line is removed.

    The caller ensures that no other process appends at the same time.
    """
    repair(path)
    line = checked_line(record, last_number(path) + 1)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_all(file, line)
        os.fsync(file)
    finally:
        os.close(file)


def checked_line(record: dict[str, Any], number: int) -> bytes:
    """Return a record as the line of this number, with its checksum."""
    content = json.dumps(record | {"n": number}, separators=(",", ":"))[:-1].encode()
    return b'%b,"crc":"%08x"}\n' % (content, zlib.crc32(content))


def last_number(path: Path) -> int:
    """Return the number of the last line, 0 without lines."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    number = 0
    for start in (max(0, size - _TAIL_BYTES), 0):
        is_sure = not start
        for record, _, line_number in scan(path, start):
            number = line_number
            is_sure = is_sure or (record is not None and "n" in record)
        if is_sure:
            break
    return number


def repair(path: Path) -> None:
    """Remove an incomplete last line."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - 4096)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
