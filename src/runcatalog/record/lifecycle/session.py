"""One start of a run and its clock: what a reader needs to know whether its process is still there."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from runcatalog.record import journal
from runcatalog.record.config import Config
from runcatalog.record.errors import UserError
from runcatalog.record.lifecycle import out_of_memory, process, status
from runcatalog.record.provenance import environment


class Clock:
    """A clock that goes on evenly from the moment it is made, whatever the machine's clock is set to.

    Args:
        not_before: Milliseconds since the epoch; a machine's clock that is behind that begins there.

    Attributes:
        started: Milliseconds since the epoch.
    """

    def __init__(self, not_before: int = 0) -> None:
        self.started = max(int(time.time() * 1000), not_before)
        self._begin = _ticks()

    def seconds(self) -> float:
        """Returns the seconds since it was made, a suspended machine's included."""
        return _ticks() - self._begin

    def now(self) -> int:
        """Returns milliseconds since the epoch."""
        return self.started + int(1000 * self.seconds())


class Session(NamedTuple):
    """One start of a run.

    Attributes:
        number: 1 for the first.
        pid: Process that it runs in.
        clock: Began with it.
        earlier_seconds: Sum of the sessions before, each up to its last sign of life.
    """

    number: int
    pid: int
    clock: Clock
    earlier_seconds: float


def place(config: Config) -> tuple[Path, str]:
    """Returns the run's directory and id."""
    resume = Path(config.resume).resolve() if config.resume else None
    guild = Path(os.environ["RUN_DIR"]).resolve() if os.environ.get("RUN_DIR") else None
    if guild and resume and guild != resume:
        raise UserError(
            f"--resume: under Guild a run is continued with `guild run --restart {resume.name[:8]}`"
        )
    directory = guild or resume
    if resume and not (resume / "journal" / "run.json").exists():
        raise UserError(f"--resume {config.resume}: no run there (journal/run.json is missing)")
    if directory is None:
        new = uuid.uuid4().hex
        return environment.project_root() / "runs" / new[:8], new
    given = os.environ.get("RUN_ID", "") if guild else ""
    return directory, given if re.fullmatch("[0-9a-f]{32}", given) else uuid.uuid4().hex


def begin(directory: Path) -> Session:
    """Appends a start to ``sessions.jsonl``; the caller has made sure that no other is going on.

    Raises:
        OSError: It cannot be written.
    """
    path = directory / "journal" / "sessions.jsonl"
    metrics = directory / "journal" / "metrics.jsonl"
    before = status.last_session(directory)
    earlier, ended = 0.0, 0
    if before is not None:
        earlier = status.wall_seconds(directory, before)
        ended = status.status_of(directory).ended or before["started"]
    journal.repair(path)
    session = Session(before["session"] + 1 if before else 1, os.getpid(), Clock(ended), earlier)
    line = {
        "session": session.number,
        "started": session.clock.started,
        "pid": session.pid,
        "pid_started": process.process_state(session.pid)[1],
        "pid_namespace": process.pid_namespace(),
        "boot": process.boot_id(),
        "host": socket.gethostname(),
        "earlier_seconds": earlier,
        "offset": metrics.stat().st_size
        if metrics.exists()
        else 0,  # the points before are others'
        **out_of_memory.counts(),
    }
    journal.append_line(path, line)
    return session


def _ticks() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux; the monotonic clock stands still in a suspend
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
