"""What a script prints, kept in the journal where nobody else keeps it.

Guild keeps the output of its runs. For a script that is started by hand the run copies what goes through
``sys.stdout`` and ``sys.stderr``; what a library writes past them stays on the terminal alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20  # of a copy; of a longer one the last half is kept
TAIL_LINES = 20  # that a failed run shows
_TAIL_BYTES = 1 << 16  # that tail_of reads


class OutputCopy:
    """Copies standard output and error to a file, from :meth:`start` to :meth:`close`.

    Args:
        path: The file; what is in it already, from an earlier session, stays. None where Guild keeps the output:
            then secrets are hidden in the output itself.
        hide: Takes secrets out of a text.
    """

    def __init__(self, path: Path | None, hide: Callable[[str], str]) -> None:
        self._path = path
        self.hide = hide
        self._file = -1
        self._size = 0
        self._streams: dict[str, tuple[Any, _Copied]] = {}

    def start(self) -> None:
        """Begins to copy."""
        if self._path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o644)
            self._size = os.fstat(self._file).st_size
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                copied = _Copied(stream, self) if self._path is not None else _Hidden(stream, self)
                self._streams[name] = (stream, copied)
                setattr(sys, name, copied)

    def close(self) -> None:
        """Ends it, and gives the streams back unless someone else has replaced them since."""
        for name, (stream, copied) in self._streams.items():
            if getattr(sys, name) is copied:
                setattr(sys, name, stream)
        self._streams = {}
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def keep(self, text: str) -> None:
        """Appends to the file; a full disk costs these lines, never the run."""
        if self._file < 0 or not text:
            return
        data = self.hide(text).encode("utf-8", "replace")
        with contextlib.suppress(OSError):
            if self._size + len(data) > MAX_BYTES:
                kept = os.pread(self._file, MAX_BYTES // 2, max(0, self._size - MAX_BYTES // 2))
                os.ftruncate(self._file, 0)
                data = (kept + data)[-MAX_BYTES:]
                self._size = 0
            self._size += os.write(self._file, data)


class _Copied:
    """A text stream that also writes to a copy, and is the stream itself in all else."""

    def __init__(self, stream: Any, copy: OutputCopy) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._copy.keep(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


class _Hidden(_Copied):
    """A text stream without secrets, and the stream itself in all else."""

    def write(self, text: str) -> int:
        self._stream.write(self._copy.hide(text))
        return len(text)


def output_path(directory: Path) -> Path:
    """Returns where the output of a run is: Guild's file of it, else the copy in the journal."""
    guild = directory / ".guild" / "output"
    return guild if guild.parent.is_dir() else directory / "journal" / "output.txt"


def tail_of(path: Path, lines: int = TAIL_LINES) -> str:
    """Returns the last lines of an output file; of a line that was drawn again, its last state."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace").rstrip()
    except OSError:
        return ""
    return "\n".join(map(_last_state, text.split("\n")[-lines:]))


def _last_state(line: str) -> str:
    drawn = [each for each in line.split("\r") if each.strip()]
    return drawn[-1] if drawn else ""
