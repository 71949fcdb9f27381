"""Processes of this machine: liveness, start time, boot id and pid namespace."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CLOCK_ERROR = 2.0  # s by which the start of a process and the time of a file may differ


def is_alive(pid: int, started: float) -> bool:
    """Return whether the process with this pid and start (clock ticks since boot) still runs."""
    state, ticks = process_state(pid)
    return ticks == started and state not in ("Z", "X")


def is_alive_since(pid: int, moment: float) -> bool:
    """Return whether a process that ran at a moment (s since the epoch) still runs; its number may be used again.

    Args:
        pid: Its process number.
        moment: When the number was written down.
    """
    state, ticks = process_state(pid)
    if state in ("", "Z", "X"):
        return False
    if not hasattr(time, "CLOCK_BOOTTIME"):  # outside Linux the start is in seconds since the epoch
        return ticks <= moment + _CLOCK_ERROR
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + ticks / os.sysconf("SC_CLK_TCK") <= moment + _CLOCK_ERROR


def process_state(pid: int) -> tuple[str, int]:
    """Return (state letter, start in clock ticks since boot) of a process; ("", -1) without such a process."""
    try:
        # The name in parentheses may contain spaces; the fields after it do not (man 5 proc).
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
    """Return an id that changes with every boot of the machine; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the pid namespace; containers on one machine have different ones."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
