"""Evidence that the kernel killed a process because memory ran out.

The killed process writes nothing, and its parent sees the same SIGKILL that a user sends. Linux leaves three
traces, strongest first: the kernel's log names the process; the cgroup's counter shows a kill of one of its few
processes; the machine's counter shows a kill anywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runcatalog.record.lifecycle.process import pid_namespace

KERNEL_LOG = Path("/dev/kmsg")
_INITIAL_NAMESPACE = (
    "pid:[4026531836]"  # PROC_PID_INIT_INO; other namespaces number processes differently
)
_RECORD_BYTES = 8192  # a read returns one record, and fails if it does not fit (man 4 kmsg)
_KILLED = re.compile(r"Killed process (\d+) \(")

PROCESS, CGROUP, MACHINE, NONE = "process", "cgroup", "machine", ""


def counts() -> dict[str, Any]:
    """Return the counters that :func:`evidence` compares with later.

    Returns:
        ``monotonic`` (seconds, as the kernel's log counts them), ``oom_file`` (the cgroup's
        counter file; "" without one), ``oom_cgroup`` and ``oom_machine`` (kills so far; None if unknown).
    """
    file = _cgroup_file()
    return {
        "monotonic": time.monotonic(),
        "oom_file": str(file or ""),
        "oom_cgroup": _count(file, "oom_kill") if file else None,
        "oom_machine": _count(Path("/proc/vmstat"), "oom_kill"),
    }


def evidence(session: Mapping[str, Any]) -> str:
    """Return the strongest evidence on this machine that the kernel killed a process.

    Args:
        session: The entry of ``sessions.jsonl``: process id and :func:`counts` at its start.

    Returns:
        ``process``: the kernel killed this process. ``cgroup``: it killed a process of the cgroup since the
        start. ``machine``: it killed a process of the machine, and the cgroup is unknown. "": no evidence.
    """
    in_log = _killed_in_log(session["pid"], session.get("monotonic"))
    if in_log is not None:
        return PROCESS if in_log else NONE
    for scope, file in ((CGROUP, session.get("oom_file")), (MACHINE, "/proc/vmstat")):
        before = session.get(f"oom_{scope}")
        now = _count(Path(file), "oom_kill") if file else None
        if before is not None and now is not None:
            return scope if now > before else NONE
    return NONE


def _killed_in_log(pid: int, since: float | None) -> bool | None:
    """Return whether the kernel's log names the process as killed; None if the log does not show it."""
    if since is None or pid_namespace() != _INITIAL_NAMESPACE:
        return None
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # readable only by root on most systems
        return None
    oldest = None
    try:
        while True:
            try:
                header, _, text = (
                    os.read(log, _RECORD_BYTES).decode("utf-8", "replace").partition(";")
                )
            except BrokenPipeError:  # overwritten while it was read
                continue
            except OSError:  # the end
                break
            seconds = int(header.split(",")[2]) / 1e6
            oldest = seconds if oldest is None else oldest
            match = _KILLED.search(text)
            # A second of tolerance: the log's clock is not exactly time.monotonic().
            if match and int(match[1]) == pid and seconds > since - 1:
                return True
    finally:
        os.close(log)
    # A full ring buffer drops its oldest entries.
    return False if oldest is not None and oldest <= since else None


def _cgroup_file() -> Path | None:
    """Return the file with the kernel's kill counter of this process's cgroup (version 2 or 1)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        groups: dict[str, str] = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            root, mount_point = before.split()[3:5]
            kind, _, options = after.split()[:3]
            if kind == "cgroup2":
                name, group = "memory.events", groups.get("")
            elif kind == "cgroup" and "memory" in options.split(","):
                name, group = "memory.oom_control", groups.get("memory")
            else:
                continue
            if group is None:
                continue
            # In a container the path may be relative to the host's root, of which only a part is mounted.
            relative = group.removeprefix(root) if root != "/" else group
            file = Path(mount_point) / relative.lstrip("/") / name
            if _count(file, "oom_kill") is not None:
                return file
    return None


def _count(file: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return None
