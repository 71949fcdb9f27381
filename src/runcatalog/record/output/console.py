"""Copies of standard output and error in the journal, for runs without Guild.

Guild saves the output of its runs. For a script started by hand the run copies ``sys.stdout`` and
``sys.stderr``; output that a library writes to the file descriptors directly is not copied.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runcatalog.record.journal.files import open_regular

MAX_BYTES = 1 << 20  # of a copy; beyond it, only the last half remains
TAIL_LINES = 20  # lines of output in the record of a failed run
_TAIL_BYTES = 1 << 16  # read by last_lines and last_message
_TRACEBACK = "Traceback (most recent call last):"
_SCALAR = re.compile(r"[^:]+: +(?:[-+\d.]\S*|nan|inf)\s*")  # a line that Guild takes for a scalar
_ENTRY = struct.Struct("!QB")  # of Guild's index of an output: milliseconds, 1 for standard error
_LATE_MS = 2000  # by which Guild may read standard output later than standard error


class OutputCopy:
    """Copies standard output and error to a file, from :meth:`start` to :meth:`close`.

    Args:
        path: The file; earlier sessions' output is kept. None if Guild stores the output; then secrets are removed
            from the streams themselves.
        hide: Removes secrets from a text.

    Attributes:
        before_write: Called before a stream is written to.
    """

    def __init__(self, path: Path | None, hide: Callable[[str], str]) -> None:
        self._path = path
        self.hide = hide
        self.before_write: Callable[[], None] = lambda: None
        self._file = -1
        self._size = 0
        self._streams: dict[str, tuple[Any, _CopiedStream]] = {}

    def start(self) -> None:
        """Start copying."""
        if self._path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o644)
            self._size = os.fstat(self._file).st_size
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                copied = (
                    _CopiedStream(stream, self)
                    if self._path is not None
                    else _RedactedStream(stream, self)
                )
                self._streams[name] = (stream, copied)
                setattr(sys, name, copied)

    def close(self) -> None:
        """Stop copying; restore the streams unless they have been replaced since."""
        for name, (stream, copy) in self._streams.items():
            if getattr(sys, name) is copy:
                setattr(sys, name, stream)
        self._streams = {}
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def append(self, text: str) -> None:
        """Append to the file; on a full disk these lines are lost, and the run continues."""
        if self._file < 0 or not text:
            return
        data = self.hide(text).encode("utf-8", "replace")
        with contextlib.suppress(OSError):
            if self._size + len(data) > MAX_BYTES:
                tail = os.pread(self._file, MAX_BYTES // 2, max(0, self._size - MAX_BYTES // 2))
                os.ftruncate(self._file, 0)
                data = (tail + data)[-MAX_BYTES:]
                self._size = 0
            self._size += os.write(self._file, data)


class _CopiedStream:
    """A text stream that also writes to a copy, and delegates everything else."""

    def __init__(self, stream: Any, copy: OutputCopy) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        self._copy.before_write()
        written = self._stream.write(text)
        self._copy.append(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


class _RedactedStream(_CopiedStream):
    """A text stream that removes secrets from what is written, and delegates everything else."""

    def write(self, text: str) -> int:
        self._copy.before_write()
        self._stream.write(self._copy.hide(text))
        return len(text)


def output_path(directory: Path) -> Path:
    """Return the file with a run's output: Guild's, else the copy in the journal."""
    guild = directory / ".guild" / "output"
    return guild if guild.parent.is_dir() else directory / "journal" / "output.txt"


def last_lines(path: Path) -> str:
    """Return the last lines of an output file; a line redrawn with carriage returns in its last state."""
    text = _tail(path, _TAIL_BYTES).rstrip()
    return "\n".join(map(_last_state, text.split("\n")[-TAIL_LINES:]))


def last_line(path: Path) -> str:
    """Return the last line of an output file that is not blank, cut to 500 characters; "" without one."""
    lines = reversed(_tail(path, 8192).splitlines())
    return next((line.strip()[:500] for line in lines if line.strip()), "")


def last_message(path: Path) -> str:
    """Return the exception with whose traceback an output file ends, else its last line; cut to 500 characters.

    An exception's message may have several lines, which become one.
    """
    lines = _without_late_lines(path)
    begins = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    after = lines[begins[-1] + 1 :] if begins else []
    message = list(itertools.dropwhile(lambda line: not line or line[0] == " ", after))
    # A script that prints more than this after a traceback has caught the exception.
    if message and len(message) <= TAIL_LINES:
        return " ".join(" ".join(message).split())[:500]
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


def _without_late_lines(path: Path) -> list[str]:
    """Return the last lines, without those that were printed before a script's last words and read after them.

    Guild reads both streams side by side, so that what a script printed often follows the traceback on standard error,
    and its scalars follow the message of its exit. Guild's index has the time and stream of each line of the output.
    """
    lines = _tail(path, _TAIL_BYTES).removesuffix("\n").split("\n")
    index = _bytes(path.with_name(f"{path.name}.index"), len(lines) * _ENTRY.size)
    entries = list(_ENTRY.iter_unpack(index[len(index) % _ENTRY.size :]))
    begins = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    ends = begins or [i for i, (_, errors) in enumerate(entries) if errors]
    if ends and len(entries) == len(lines):
        until = entries[ends[-1]][0] + _LATE_MS
        late = {
            i
            for i, (time, errors) in enumerate(entries)
            if i > ends[-1] and time <= until and not errors
            if begins or _SCALAR.fullmatch(lines[i])
        }
        lines = [line for i, line in enumerate(lines) if i not in late]
    return [part for line in lines for part in line.splitlines() or [""]]


def _tail(path: Path, size: int) -> str:
    return _bytes(path, size).decode("utf-8", "replace")


def _bytes(path: Path, size: int) -> bytes:
    """Return at most the last `size` bytes of a file; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read()
    except OSError:
        return b""


def _last_state(line: str) -> str:
    states = [state for state in line.split("\r") if state.strip()]
    return states[-1] if states else ""
