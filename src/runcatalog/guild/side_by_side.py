"""Guild runs in processes of their own, several at once: trials of batches and searches, runs that a run starts."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

STOP_SECONDS = 30.0  # time for a run to write its last checkpoint
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 5.0  # after which a place may have become free

Started = tuple[str, "subprocess.Popen[bytes]"]


def run_side_by_side(
    start_next: Callable[[], Started | None],
    has_ended: Callable[[str, int], None],
    count: Callable[[Collection[str]], int],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Run Guild processes until none is left; whatever is raised, those that run are stopped first.

    Args:
        start_next: Starts a process and returns its name and itself; None where none can be started now.
        has_ended: Called with the name and exit status of a process that has ended.
        count: Returns how many may run at once, of the names of those that do.
        check: Called again and again; what it raises ends all.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while True:
            check()
            while len(running) < count(running.keys()) and (started := start_next()) is not None:
                running[started[0]] = started[1]
            if not running:
                return
            for name, code in _ended(running, check).items():
                del running[name]
                has_ended(name, code)
    finally:
        _stop_all(running.values())


def _ended(
    running: dict[str, subprocess.Popen[bytes]], check: Callable[[], None]
) -> dict[str, int]:
    """Wait for the end of a process; return names and exit statuses, {} after a while without any."""
    until = time.monotonic() + _RETRY_SECONDS
    while time.monotonic() < until:
        check()
        codes = {name: process.poll() for name, process in running.items()}
        if ended := {name: code for name, code in codes.items() if code is not None}:
            return ended
        time.sleep(_POLL_SECONDS)
    return {}


def _stop_all(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """Stop the scripts of runs and wait for their Guild processes, which note the end."""
    import psutil

    while alive := [process for process in processes if process.poll() is None]:
        scripts: list[Any] = []
        for process in alive:  # again and again: a script may not have been started yet
            with contextlib.suppress(psutil.NoSuchProcess):
                scripts += psutil.Process(process.pid).children()
        stop(scripts)
        time.sleep(_POLL_SECONDS)


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
