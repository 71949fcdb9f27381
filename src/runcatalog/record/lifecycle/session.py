"""Sessions: a session per start of a run, with its clock and the data that identifies its process."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.record.config import Config
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.lines import append_line
from runcatalog.record.lifecycle import out_of_memory, process, status
from runcatalog.record.lifecycle.ownership import Ownership
from runcatalog.record.provenance import environment


class Clock:
    """A monotonic clock that later changes of the machine's clock do not affect.

    Args:
        not_before: Milliseconds since the epoch; the clock starts there if the machine's clock is behind.

    Attributes:
        started: Milliseconds since the epoch.
    """

    def __init__(self, not_before: int = 0) -> None:
        self.started = max(int(time.time() * 1000), not_before)
        self._begin = _ticks()

    def seconds(self) -> float:
        """Return the seconds since the start, including time in which the machine was suspended."""
        return _ticks() - self._begin

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return self.started + int(1000 * self.seconds())


class Session(NamedTuple):
    """A start of a run.

    Attributes:
        number: 1 for the first.
        pid: Id of its process.
        clock: Its clock, started with it.
        ownership: Checks that it is still the newest session.
        earlier_seconds: Total duration of the earlier sessions, up to their last heartbeats.
    """

    number: int
    pid: int
    clock: Clock
    ownership: Ownership
    earlier_seconds: float


def locate(config: Config) -> tuple[Path, str]:
    """Return the run's directory and id."""
    resume = Path(config.resume).resolve() if config.resume else None
    guild_directory = Path(os.environ["RUN_DIR"]).resolve() if os.environ.get("RUN_DIR") else None
    if guild_directory and resume and guild_directory != resume:
        raise UserError(
            f"--resume: under Guild a run is continued with `guild run --restart {resume.name[:8]}`"
        )
    directory = guild_directory or resume
    if resume and not (resume / "journal" / "run.json").exists():
        raise UserError(f"--resume {config.resume}: no run (journal/run.json is missing)")
    if directory is None:
        run_id = uuid.uuid4().hex
        return environment.project_root() / "runs" / run_id[:8], run_id
    guild_id = os.environ.get("RUN_ID", "") if guild_directory else ""
    return directory, guild_id if re.fullmatch("[0-9a-f]{32}", guild_id) else uuid.uuid4().hex


def start_session(directory: Path, flags: Mapping[str, Any] | None = None) -> Session:
    """Append a start to ``sessions.jsonl``; the caller ensures that no other session is running.

    Args:
        directory: The run's directory.
        flags: Flags, by name, that differ from those of the run's first start.

    Raises:
        OSError: The file cannot be written.
    """
    path = directory / "journal" / "sessions.jsonl"
    metrics = directory / "journal" / "metrics.jsonl"
    previous = status.last_session(directory)
    earlier_seconds, not_before = 0.0, 0
    if previous is not None:
        earlier_seconds = status.wall_seconds(directory, previous)
        not_before = status.status_of(directory).ended or previous["started"]
    number, clock = previous["session"] + 1 if previous else 1, Clock(not_before)
    ownership = Ownership(directory, number, clock.started)
    session = Session(number, os.getpid(), clock, ownership, earlier_seconds)
    line = {
        "session": session.number,
        "started": session.clock.started,
        "pid": session.pid,
        "pid_started": process.process_state(session.pid)[1],
        "pid_namespace": process.pid_namespace(),
        "boot": process.boot_id(),
        "host": socket.gethostname(),
        "earlier_seconds": earlier_seconds,
        # Where the points of this session begin.
        "offset": metrics.stat().st_size if metrics.exists() else 0,
        **out_of_memory.counts(),
    }
    if moved := environment.moved_facts(read_json(directory / "journal" / "run.json")):
        line["moved"] = moved
    if flags:
        line["flags"] = dict(flags)
    append_line(path, line)
    return session


def _ticks() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux; the monotonic clock stops during a suspend
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
