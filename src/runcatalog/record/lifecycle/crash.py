"""Reports of crashes in native code (simulator, driver), written by Python's faulthandler."""

from __future__ import annotations

import contextlib
import faulthandler
from pathlib import Path
from typing import IO

_FATAL = "Fatal Python error: "
_MAX_CHARACTERS = 1 << 16


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
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                if not self._path.stat().st_size:
                    self._path.unlink()


def report_path(directory: Path) -> Path:
    """Return the path of the crash report."""
    return directory / "journal" / "crash.txt"


def report(path: Path) -> str:
    """Return the traceback in a report, at most its first 65,536 characters; "" without a report."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS).rstrip()
    except OSError:
        return ""


def reason(directory: Path) -> str:
    """Return, for example, "crashed: Segmentation fault"; "" if there was no crash."""
    line = report(report_path(directory)).partition("\n")[0][:200]
    return f"crashed: {line.removeprefix(_FATAL)}" if line.startswith(_FATAL) else ""
