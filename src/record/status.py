"""What has become of a run, from its directory alone."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from record.ends import KILLED, RUNNING
from record.journal import read_json, read_lines

LOST_AFTER = 15 * 60  # s; a run on another host that gave no sign for so long is lost


class Status(NamedTuple):
    """State of a run.

    Attributes:
        status: RUNNING, FINISHED, FAILED or KILLED.
        reason: Why it ended, one line; empty for RUNNING and FINISHED.
        ended: Milliseconds since the epoch; None while it runs.
    """

    status: str
    reason: str
    ended: int | None


def status_of(run_dir: str | os.PathLike[str]) -> Status:
    """Returns the true status of a run.

    A run that was killed with SIGKILL writes no end. If its process is gone on this machine it is KILLED;
    on another machine it is KILLED once its heartbeat is older than 15 minutes.

    Args:
        run_dir: The run's directory.

    Raises:
        FileNotFoundError: There is no journal.
    """
    directory = Path(run_dir)
    session = last_session(directory)
    if session is None:
        raise FileNotFoundError(
            f"{directory / 'journal' / 'sessions.jsonl'}: no run was started here"
        )
    result = read_json(directory / "result.json")
    if result and result.get("session") == session["session"]:
        return Status(result["status"], result["reason"], result["ended"])
    beat = heartbeat(directory, session)
    if session["host"] == socket.gethostname():
        if session["boot"] == boot_id() and is_alive(session["pid"], session["pid_started"]):
            return Status(RUNNING, "", None)
        return Status(KILLED, "process gone (SIGKILL or machine crash)", beat)
    if time.time() * 1000 - beat < LOST_AFTER * 1000:
        return Status(RUNNING, "", None)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(beat / 1000))
    return Status(KILLED, f"lost: no heartbeat since {when} UTC", beat)


def last_session(directory: Path) -> dict[str, Any] | None:
    """Returns the newest entry of ``sessions.jsonl``, or None."""
    session = None
    for line, _ in read_lines(directory / "journal" / "sessions.jsonl"):
        session = line
    return session


def heartbeat(directory: Path, session: dict[str, Any]) -> int:
    """Returns the last sign of life of a session, in milliseconds since the epoch."""
    progress = read_json(directory / "journal" / "progress.json") or {}
    times = [session["started"], progress.get("t", 0)]
    metrics = directory / "journal" / "metrics.jsonl"
    if metrics.exists():  # the points keep their times when a journal is copied, its files may not
        start = max(0, metrics.stat().st_size - 65536)
        times += [line.get("t", 0) for line, _ in read_lines(metrics, start)]
    return max(times)


def is_alive(pid: int, started: float) -> bool:
    """Says whether a process that began at ``started`` (clock ticks since boot) still runs."""
    state, ticks = process_state(pid)
    return ticks == started and state not in ("Z", "X")


def process_state(pid: int) -> tuple[str, int]:
    """Returns (state letter, start in clock ticks since boot) of a process; ("", -1) without one."""
    try:
        # The name in parentheses may hold spaces; the fields after it do not (man 5 proc).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        pass
    try:
        import psutil

        process = psutil.Process(pid)
        state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "R"
        return state, int(process.create_time())
    except Exception:
        return "", -1


def boot_id() -> str:
    """Returns an id that changes with every boot of the machine; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
