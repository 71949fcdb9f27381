"""Processes of this machine: liveness, start time, boot id and pid namespace."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int, started: float) -> bool:
    """Return whether the process with this pid and start (clock ticks since boot) still runs."""
    state, ticks = process_state(pid)
    return ticks == started and state not in ("Z", "X")


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
