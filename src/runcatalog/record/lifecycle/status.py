"""Status of a run, from the files in its directory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.numbers import is_int64, is_number
from runcatalog.record.digest import metrics_digest
from runcatalog.record.errors import UserError
from runcatalog.record.journal import METRICS, SESSIONS
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.journal.metrics import Point, metrics_digest_of
from runcatalog.record.journal.sessions import last_session
from runcatalog.record.lifecycle import crash, out_of_memory
from runcatalog.record.lifecycle.process import boot_id, is_alive, pid_namespace
from runcatalog.record.lifecycle.signals import (
    FAILED,
    FINISHED,
    GONE,
    KILLED,
    RUNNING,
    End,
    end_from_exit_status,
)
from runcatalog.record.untrusted import guild_attribute

LOST_AFTER = 15 * 60  # s without a heartbeat, after which a run on another host is lost
# What the status of a run raises whose files somebody has edited.
EDITED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_TAIL_BYTES = 65536  # of metrics.jsonl; contains its last line


class Status(NamedTuple):
    """State of a run.

    Attributes:
        status: RUNNING, FINISHED, FAILED or KILLED.
        reason: Reason of the end in a line; "" for RUNNING and FINISHED.
        ended: Milliseconds since the epoch; None for RUNNING.
    """

    status: str
    reason: str
    ended: int | None


def status_of(run_dir: str | os.PathLike[str]) -> Status:
    """Return the status of a run.

    A killed process writes no end. If it ran on this machine since the last boot, its absence shows that it
    ended, and Guild's exit status, a crash report or the kernel's counters give the reason. A run on another
    machine is lost once its heartbeat differs from this clock by more than 15 minutes.

    Args:
        run_dir: The run's directory.

    Raises:
        FileNotFoundError: The directory has no journal.
    """
    directory = Path(run_dir)
    session = last_session(directory)
    if session is None:
        path = directory / "journal" / SESSIONS
        raise FileNotFoundError(f"{path}: {damage_of(path).text() or 'no run was started here'}")
    result = read_json(directory / "result.json")
    if (
        result is not None
        and result.keys() >= {"status", "reason", "ended"}
        and result.get("session") == session["session"]
    ):
        return Status(result["status"], result["reason"], result["ended"])
    here = _is_this_kernel(session)
    if here and is_alive(session["pid"], session.get("pid_started", -1)):
        return Status(RUNNING, "", None)
    ended = session["started"] + int(1000 * elapsed(directory, session))
    end = _end_from_traces(directory, session, here)
    if end is None and here:
        end = End(KILLED, GONE)
    beat = heartbeat(directory, session)
    if end is None and _is_before_boot(session, beat):
        end = End(KILLED, "machine restarted")
    if end is None:
        if abs(time.time() * 1000 - beat) < LOST_AFTER * 1000:
            return Status(RUNNING, "", None)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(beat / 1000))
        end = End(KILLED, f"lost: no heartbeat since {when} UTC")
    return Status(end.status, end.reason, ended)


def checked_status(run_dir: Path) -> Status:
    """Return the status of a run whose files somebody may have edited.

    Raises:
        UserError: They have no valid one.
    """
    try:
        status = status_of(run_dir)
    except EDITED as error:
        text = f"{type(error).__name__}: {error}"
        raise UserError(f"{run_dir}: its journal is damaged ({text})") from None
    wrong = ""
    if status.status not in (RUNNING, FINISHED, FAILED, KILLED):
        wrong = f"status {str(status.status)[:80]!r}"
    elif not isinstance(status.reason, str):
        wrong = f"reason {str(status.reason)[:80]!r}"
    elif status.ended is not None and not is_int64(status.ended):
        wrong = f"end {str(status.ended)[:80]!r}"
    if wrong:
        raise UserError(f"{run_dir / 'result.json'}: invalid {wrong}: refused")
    return status


def has_other_points(
    run_dir: Path, result: dict[str, Any], points: Iterable[Point] | None = None
) -> bool:
    """Return whether the journal has other points than those of which the end of its last session has the digest.

    Args:
        run_dir: The run's directory.
        result: Content of its `result.json`; empty without one.
        points: The journal's points, if they have been read.
    """
    noted = (result.get("digest") or {}).get("metrics")
    if not noted or result.get("session") != (last_session(run_dir) or {}).get("session"):
        return False
    if points is None:
        return metrics_digest_of(run_dir) != noted
    return metrics_digest((point.name, point.step, point.value) for point in points) != noted


def save_kill_evidence(run_dir: Path) -> None:
    """Save this machine's evidence of a killed run's end, before its cgroup and the logs disappear.

    Call it soon after the end; later calls change nothing.
    """
    session = last_session(run_dir)
    path = run_dir / "journal" / "traces.json"
    if session and _is_this_kernel(session) and not _traces(run_dir, session):
        write_json(path, {"session": session["session"], "oom": out_of_memory.evidence(session)})


def heartbeat(directory: Path, session: dict[str, Any]) -> int:
    """Return the time of a session's last heartbeat by its machine's clock, in ms since the epoch."""
    return _progress(directory, session).get("t", session["started"])


def elapsed(directory: Path, session: dict[str, Any]) -> float:
    """Return the seconds from a session's start to its last write, by its own clock."""
    progress, started = _progress(directory, session), session["started"]
    seconds = [0.0, progress.get("seconds", (progress.get("t", started) - started) / 1000)]
    metrics = directory / "journal" / METRICS
    if metrics.exists():
        start = max(session.get("offset", 0), metrics.stat().st_size - _TAIL_BYTES)
        times = [line.get("t") for line, _ in read_lines(metrics, start)]
        seconds += [(at - started) / 1000 for at in times if type(at) is int]
    return max(seconds)


def wall_seconds(directory: Path, session: dict[str, Any]) -> float:
    """Return the total duration of a run's sessions, without the time between them, in seconds."""
    result = read_json(directory / "result.json") or {}
    seconds = result.get("wall_seconds")
    if result.get("session") == session["session"] and is_number(seconds):
        return float(seconds)
    return session.get("earlier_seconds", 0) + elapsed(directory, session)


def _is_this_kernel(session: dict[str, Any]) -> bool:
    """Return whether the session's pid is valid on this kernel and in this namespace."""
    boot, own = session.get("boot", ""), pid_namespace()
    if boot != boot_id() or session.get("pid_namespace", own) != own:
        return False
    return bool(boot) or session.get("host") == socket.gethostname()


def _is_before_boot(session: dict[str, Any], beat: int) -> bool:
    """Return whether this machine has restarted since the session's last heartbeat."""
    if session.get("host") != socket.gethostname() or not session.get("boot"):
        return False
    if session["boot"] == boot_id() or not hasattr(time, "CLOCK_BOOTTIME"):
        return False
    # A later heartbeat is from another machine of that name, such as a clone that shares the disk.
    return beat / 1000 < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _end_from_traces(directory: Path, session: dict[str, Any], here: bool) -> End | None:
    """Return the end according to a crash report, Guild's exit status or the kernel; None without any."""
    if report := crash.reason(directory):
        return End(FAILED, report)
    code = _guild_exit(directory, session)
    end = None if code is None else end_from_exit_status(code) or End(FAILED, f"exit status {code}")
    if end is not None and end.reason != "SIGKILL":
        return end
    traces = _traces(directory, session)
    evidence = (
        traces.get("oom")
        if traces
        else out_of_memory.evidence(session)
        if here
        else out_of_memory.NONE
    )
    if evidence in (out_of_memory.PROCESS, out_of_memory.CGROUP):
        return End(FAILED, "out of memory (killed by the kernel)")
    if evidence == out_of_memory.MACHINE:
        reason = end.reason if end else GONE
        return End(KILLED, f"{reason}; the machine ran out of memory meanwhile")
    return end


def _traces(directory: Path, session: dict[str, Any]) -> dict[str, Any]:
    traces = read_json(directory / "journal" / "traces.json") or {}
    return traces if traces.get("session") == session["session"] else {}


def _guild_exit(directory: Path, session: dict[str, Any]) -> int | None:
    """Return the exit status that Guild recorded for this session; None without one."""
    stopped, code = (guild_attribute(directory, name) for name in ("stopped", "exit_status"))
    if not isinstance(stopped, int) or not isinstance(code, int):
        return None
    # In microseconds. Guild leaves the values of an earlier session in place.
    return code if stopped // 1000 >= session["started"] else None


def _progress(directory: Path, session: dict[str, Any]) -> dict[str, Any]:
    progress = read_json(directory / "journal" / "progress.json") or {}
    current = progress.get("session", session["session"]) == session["session"]
    return progress if current else {}
