"""Reports of crashes in native code (simulator, driver), written by Python's faulthandler."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from pathlib import Path
from typing import IO

from runcatalog.record.journal.files import open_regular

_FATAL = "Fatal Python error: "
_MAX_BYTES = 1 << 16


class CrashReport:
    """File to which faulthandler writes a crash of this process.

    Args:
        directory: The run's directory; a report of an earlier session is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._path = report_path(directory)
        self._path.unlink(missing_ok=True)
        self._file: IO[bytes] | None = None
        if not faulthandler.is_enabled():  # else the user has chosen another file
            self._file = self._path.open("wb", buffering=0)
            faulthandler.enable(self._file)

    def close(self) -> None:
        """Disable the report; an empty file is removed."""
        if self._file is not None:
            faulthandler.disable()
            with self._file as file, contextlib.suppress(OSError):
                own, there = os.fstat(file.fileno()), self._path.stat()
                # A later session may have a report of its own there.
                if not own.st_size and os.path.samestat(own, there):
                    self._path.unlink()
            self._file = None


def report_path(directory: Path) -> Path:
    """Return the path of the crash report."""
    return directory / "journal" / "crash.txt"


def report(path: Path) -> str:
    """Return the traceback in a report, at most its first 65,536 bytes; "" without a report."""
    try:
        with open_regular(path) as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").rstrip()
    except OSError:
        return ""


def reason(directory: Path) -> str:
    """Return, for example, "crashed: Segmentation fault"; "" if there was no crash."""
    line = report(report_path(directory)).partition("\n")[0][:200]
    return f"crashed: {line.removeprefix(_FATAL)}" if line.startswith(_FATAL) else ""
