"""Guild runs in processes of their own, several at once: trials of batches and searches, runs that a run starts."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_SECONDS = 30.0  # time for a run to write its last checkpoint
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 5.0  # after which a place may have become free

Started = tuple[Path, "subprocess.Popen[bytes]"]  # the run's directory and its Guild process


def run_side_by_side(
    start_next: Callable[[], Started | None],
    has_ended: Callable[[Path, int], None],
    count: Callable[[Collection[str]], int],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Run Guild processes until none is left; whatever is raised, those that run are stopped first.

    Args:
        start_next: Starts a run; None where none can be started now.
        has_ended: Called with the directory and exit status of a run that has ended.
        count: Returns how many may run at once, of the ids of those that do.
        check: Called again and again; what it raises ends all.
    """
    running: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        while True:
            check()
            while len(running) < count({run.name for run in running}):
                if (started := start_next()) is None:
                    break
                running[started[0]] = started[1]
            if not running:
                return
            for run, code in _ended(running, check).items():
                del running[run]
                has_ended(run, code)
    finally:
        _stop_all(running)


def _ended(
    running: Mapping[Path, subprocess.Popen[bytes]], check: Callable[[], None]
) -> dict[Path, int]:
    """Wait for the end of a process; return directories and exit statuses, {} after a while without any."""
    until = time.monotonic() + _RETRY_SECONDS
    while time.monotonic() < until:
        check()
        codes = {run: process.poll() for run, process in running.items()}
        if ended := {run: code for run, code in codes.items() if code is not None}:
            return ended
        time.sleep(_POLL_SECONDS)
    return {}


def _stop_all(running: Mapping[Path, subprocess.Popen[bytes]]) -> None:
    """Stop the scripts of runs and wait for their Guild processes, which note the end."""
    while alive := [run for run, process in running.items() if process.poll() is None]:
        # Again and again: a script may not have been started yet.
        stop([script for script in map(process_of, alive) if script is not None])
        time.sleep(_POLL_SECONDS)


def process_of(run: Path) -> Any:
    """Return the process of a run's script; None if it does not run.

    An unrelated process that reuses the pid is left alone.
    """
    import psutil

    try:
        process = psutil.Process(int((run / ".guild" / "LOCK").read_text()))
        return process if process.environ().get("RUN_ID") == run.name else None
    except (OSError, ValueError, psutil.Error):
        return None


def stop(processes: Sequence[Any], seconds: float = STOP_SECONDS) -> None:
    """Send SIGTERM; after `seconds`, send SIGKILL to the remaining processes and their children.

    SIGTERM goes to the run alone, which ends its own children, such as the sender of its record.
    The processes are not reaped: their exit statuses are left to the parent.
    """
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    deadline = time.monotonic() + seconds
    while (remaining := [p for p in processes if _is_running(p)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            for member in [*process.children(recursive=True), process]:
                member.kill()


def _is_running(process: Any) -> bool:
    """Return whether a process is running; a zombie is not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
