"""Progress of running jobs, read from their journals and Guild's files without MLflow."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.guild.runs import GuildRun
from runcatalog.model.project import Project
from runcatalog.numbers import is_number
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.journal.metrics import points_of
from runcatalog.record.lifecycle.status import RUNNING, Status, last_session, status_of
from runcatalog.record.output.console import last_lines
from runcatalog.record.output.progress import RECENT, RECENT_SHARE, Speed

TAIL = 1 << 16  # bytes at the end of a journal that are read for a new run
RESCAN = 2.0  # s between scans for new runs
STALE = 120.0  # s without a sign after which a run is suspect: four heartbeats
SETTLE = 5.0  # s in which a final status may still change: Guild writes exit statuses last
_STEP = re.compile(r"^step: +(\d{1,18})$", re.MULTILINE)  # as Guild reads it
# Errors of reading a journal or Guild's files that are damaged, half-written or gone.
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
_LIKELY = ("rate", "return", "reward", "length", "accuracy", "loss")


@dataclass
class Job:
    """A run that is running, or has ended since the view was opened.

    Attributes:
        directory: The run's directory.
        run: Its id.
        operation: As typed after `guild run`, or the script's name.
        label: Its label, including Guild's automatic one.
        begun: When its session began, milliseconds since the epoch.
        done, total, unit: Progress that the script reports; total 0 without a report.
        sign: Last sign of life, milliseconds since the epoch.
        last: Last value of each metric.
        step: Last step that a run without a journal has printed; "" without one.
        status: Running, or how it ended.
        is_batch: Whether it is a batch; `done` then counts trials.
    """

    directory: Path
    run: str
    operation: str = ""
    label: str = ""
    begun: int = 0
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    sign: int = 0
    last: dict[str, float] = field(default_factory=dict)
    step: str = ""
    status: Status = Status(RUNNING, "", None)  # noqa: RUF009  an immutable tuple
    is_batch: bool = False
    ended_at: float = 0.0  # by this process's clock
    _session: int = 0
    _reported: int = 0  # time of the last progress report, milliseconds since the epoch
    _offset: int = 0
    _written: tuple[int, int] = (0, 0)
    _steps: Speed = field(default_factory=Speed)
    _progress: Speed = field(default_factory=Speed)

    @property
    def has_journal(self) -> bool:
        """Whether a session of the run has begun in its journal."""
        return self._session > 0

    @property
    def share(self) -> float | None:
        """Share that is done, 0 … 1; None without a report."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else None

    @property
    def steps_per_second(self) -> float | None:
        """Speed as the script logs it, else the rate of its metrics' steps."""
        for name, value in self.last.items():
            if name.endswith("steps_per_second"):
                return value
        return self._steps.per_second

    def left(self, now: float) -> float | None:
        """Return the seconds left at the recent speed; None if that is not known.

        Args:
            now: Seconds since the epoch.
        """
        if self.total <= 0 or self.status.status != RUNNING:
            return None
        if self.done >= self.total:
            return 0.0
        rate, last = self._progress.per_second, self._progress.last
        if rate is None and self._session == 1 and last and last[0] > 0:
            rate = self.done / last[0]  # on average, so far
        if not rate:
            return None
        passed = min(max(0.0, now - self._reported / 1000), RECENT)
        left = max(0.0, (self.total - self.done) / rate - passed)
        return left if math.isfinite(left) else None

    def silent(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return max(0.0, now - self.sign / 1000) if self.sign else 0.0

    def metric(self, preferred: Iterable[str]) -> tuple[str, float] | None:
        """Return name and last value of the main metric; None without metrics.

        Args:
            preferred: Names, most preferred first.
        """
        names = [name for name in self.last if not name.startswith("time/")]
        likely = [
            n for part in _LIKELY for n in sorted(names, key=lambda n: (len(n), n)) if part in n
        ]
        for name in (*preferred, *likely, *sorted(names)):
            if name in self.last:
                return name, self.last[name]
        return None

    def refresh(self) -> None:
        """Read what was written since the last call."""
        session = last_session(self.directory)
        if session is None:
            return
        if session["session"] != self._session:
            self._begin(session)
        path = self.directory / "journal" / "progress.json"
        written = _signature(path)
        if written != self._written:
            self._written = written
            self._read_progress(read_json(path) or {})
        self._read_metrics()
        self.status = _checked(status_of(self.directory))

    def _begin(self, session: Mapping[str, Any]) -> None:
        self._session = session["session"]
        self.begun = self.sign = _whole(session["started"])
        facts = read_json(self.directory / "journal" / "run.json") or {}
        self.run = str(facts.get("id") or self.run)
        self.operation = self.operation or str(facts.get("operation") or "")
        metrics = self.directory / "journal" / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        self._offset = max(0, size - TAIL)
        self._written = (0, 0)
        self._steps.clear()
        self._progress.clear()

    def _read_progress(self, progress: Mapping[str, Any]) -> None:
        if progress.get("session", self._session) != self._session:
            return
        self.sign = max(self.sign, _whole(progress.get("t")))
        done, total = _number(progress.get("done")), _number(progress.get("total"))
        if done is None or total is None:
            return
        self.done, self.total, self.unit = done, total, str(progress.get("unit") or "")
        self._reported = _whole(progress.get("t"))
        seconds = _number(progress.get("seconds"))
        if seconds is None:
            seconds = (_whole(progress.get("t")) - self.begun) / 1000
        self._progress.add(seconds, done, RECENT_SHARE * total)

    def _read_metrics(self) -> None:
        path = self.directory / "journal" / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < self._offset:  # an incomplete last line was removed after a crash
            self._offset = size
        for line, end in read_lines(path, self._offset) if size > self._offset else ():
            self._offset = end
            try:
                points = points_of(line)
            except _UNREADABLE:
                continue  # the rest of a line that the tail begins in
            self.last |= {point.name: point.value for point in points}
            at, step = (_whole(points[0].time), _number(points[0].step)) if points else (0, None)
            self.sign = max(self.sign, at)
            if step is not None and at >= self.begun:
                self._steps.add(at / 1000, step)


class Jobs:
    """Running jobs in a Guild home and in the project's runs/ folder.

    Args:
        project: The project.
        home: Guild's home; None without one.

    Attributes:
        running: Running jobs, by start.
        ended: Jobs that have ended since the view was opened, the latest first.
    """

    def __init__(self, project: Project, home: Path | None) -> None:
        self._folders = [(home / "runs", True)] if home else []
        self._folders.append((project.root / "runs", False))
        # State of runs that are not running, by path
        self._known: dict[str, tuple[object, ...]] = {}
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, Job] = {}
        self._scanned = 0.0

    @property
    def running(self) -> list[Job]:
        return sorted(self._jobs.values(), key=lambda job: (job.begun or job.sign, job.run))

    @property
    def ended(self) -> list[Job]:
        return sorted(self._ended.values(), key=lambda job: -job.ended_at)

    def refresh(self) -> None:
        """Look for new runs and read the progress of those that are known."""
        now = time.monotonic()
        if not self._scanned or now - self._scanned >= RESCAN:
            self._scanned = now
            for folder, is_guild in self._folders:
                self._scan(folder, is_guild)
        for path, job in [*self._jobs.items()]:
            self._refresh(path, job)
        for job in self._ended.values():
            if now - job.ended_at < SETTLE and not job.is_batch:
                with contextlib.suppress(*_UNREADABLE):  # its status stays as it is
                    job.refresh()

    def _refresh(self, path: str, job: Job) -> None:
        try:
            if job.is_batch or not (job.directory / "journal" / "sessions.jsonl").exists():
                _refresh_guild(job)
            else:
                job.refresh()
        except _UNREADABLE:
            why = (
                "its journal cannot be read" if job.directory.exists() else "its directory is gone"
            )
            job.status = Status("KILLED", why, None)
        if job.status.status != RUNNING:
            job.ended_at = time.monotonic()
            self._known[path] = _state(path)
            self._ended[path] = self._jobs.pop(path)

    def _scan(self, folder: Path, is_guild: bool) -> None:
        try:
            paths = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
        except OSError:
            return
        for path in paths:
            if path in self._jobs:
                continue
            state = _state(path)
            if self._known.get(path) == state:
                continue
            job = _job(Path(path), is_guild)
            if job is None:
                self._known[path] = state
            else:
                self._jobs[path] = job
                self._ended.pop(path, None)  # resumed


def _job(directory: Path, is_guild: bool) -> Job | None:
    """Job of the run in a directory; None if it is not running."""
    job = Job(directory, directory.name)
    locks = (directory / ".guild" / name for name in ("LOCK", "LOCK.remote"))
    if is_guild and not any(lock.exists() for lock in locks):
        return None  # Guild keeps a lock while a run is running
    try:
        guild = GuildRun(directory.name, str(directory))
        if is_guild and not guild.is_waiting:
            job.operation = guild.proto_operation or guild.operation
            job.label = str(guild.attr("label") or "")
            job.is_batch = bool(guild.proto_operation)
        if (directory / "journal" / "sessions.jsonl").exists() and not job.is_batch:
            return job if status_of(directory).status == RUNNING else None
        is_running = is_guild and not guild.is_waiting and guild.end()[0] == RUNNING
        return job if is_running else None
    except _UNREADABLE:
        return None  # half-written, or no run: read again when it changes


def _refresh_guild(job: Job) -> None:
    """Refresh a batch, or a run that does not record yet, from Guild's files."""
    guild = GuildRun(job.directory.name, str(job.directory))
    status, reason = guild.end()
    job.begun = job.begun or _whole(guild.started)
    job.sign = int(time.time() * 1000) if status == RUNNING else job.sign
    job.status = _checked(Status(status, reason, None))
    if not job.is_batch:
        steps = _STEP.findall(last_lines(job.directory / ".guild" / "output"))
        job.step = steps[-1] if steps else job.step
    else:
        states = [
            GuildRun(t, str(job.directory.parent / t)).attr("exit_status") for t in guild.trials
        ]
        job.done = sum(state is not None for state in states)
        job.total, job.unit = _number(guild.attr("max_trials")) or 0.0, "trial"
        if job.total < len(states):
            job.total = 0.0


def _state(path: str) -> tuple[object, ...]:
    """Signature that changes when a run begins, is resumed or is restarted."""
    return (_signature(f"{path}/journal/sessions.jsonl"), _signature(f"{path}/.guild"))


def _signature(path: str | Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _number(value: Any) -> float | None:
    """Return a finite number of an untrusted JSON file; None for any other value."""
    if is_number(value):
        with contextlib.suppress(OverflowError):  # an integer of 400 digits
            if math.isfinite(number := float(value)):
                return number
    return None


def _whole(value: Any) -> int:
    number = _number(value)
    return int(number) if number is not None and abs(number) < 1e18 else 0


def _checked(status: Status) -> Status:
    """Return a status from an untrusted file with values of the right types."""
    ended = None if status.ended is None else _whole(status.ended)
    return Status(str(status.status), str(status.reason), ended)


def metrics_of(project: Project) -> dict[str, list[str]]:
    """Return the words in the columns of `guild compare`, by operation."""
    words = {}
    for operation in project.operations().values():
        columns = [c for c in operation.compare if not c.startswith(("=", "."))]
        words[operation.name] = [word for column in columns for word in column.split()]
    return words
