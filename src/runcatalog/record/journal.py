"""The journal: files in the run's directory, from which MLflow and TensorBoard data are derived.

Layout of ``RUN_DIR/journal``: ``run.json`` (constant facts), ``sessions.jsonl`` (starts and ends),
``metrics.jsonl`` (points, float64), ``events.jsonl`` (messages), ``progress.json`` (heartbeat), ``mlflow.json``
(delivery state by server). Readers ignore a last line that a crash cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.record.digest import CLOCK_PREFIX

HIDDEN = "[hidden]"  # replaces a secret
MAX_BYTES = 32 << 20  # limit of a JSON file and of a line; far above the size of real ones
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAME_CHARACTERS = frozenset("_-./ :")


class Point(NamedTuple):
    """A value of a metric.

    Attributes:
        time: Milliseconds since the epoch.
        step: Step of the value.
        name: Name of the metric.
        value: The value, float64.
    """

    time: int
    step: int
    name: str
    value: float


class MetricsFile:
    """The points of a run, appended line by line.

    The first value of a (name, step) counts: a resumed run that recomputes it writes nothing, and
    ``mismatches`` counts the values that differ.

    Args:
        path: The file; an incomplete last line is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mismatches = 0
        repair(path)
        self._last: dict[str, int] = {}
        self._index: dict[tuple[str, int], float] | None = None
        if path.exists() and path.stat().st_size:
            self._load()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def last_step(self) -> int:
        """The largest step of any metric; 0 without points."""
        return max(self._last.values(), default=0)

    def append(self, time_ms: int, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Write the new points as a line; return them.

        Raises:
            OSError: The file cannot be written, for example on a full disk.
            ValueError: MLflow would reject a name, or a step is not a non-negative integer.
        """
        step = _checked_step(step)
        new = {name: value for name, value in metrics.items() if self._is_new(name, step, value)}
        if new:
            values = {
                name: value if math.isfinite(value) else _non_finite_text(value)
                for name, value in new.items()
            }
            line = json.dumps({"t": time_ms, "step": step, "m": values}, separators=(",", ":"))
            _write_all(self._file, line.encode() + b"\n")
        return new

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync and close the file."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)

    def _is_new(self, name: str, step: int, value: float) -> bool:
        last = self._last.get(name)
        if last is None:
            _check_name(name)
        if last is None or step > last:  # the common case, which needs no index of all points
            self._last[name] = step
            if self._index is not None:
                self._index[name, step] = value
            return True
        if self._index is None:
            self._load()
        assert self._index is not None
        if (name, step) not in self._index:
            self._index[name, step] = value
            return True
        first = self._index[name, step]
        equal = first == value or (first != first and value != value)
        if not equal and not name.startswith(CLOCK_PREFIX):
            self.mismatches += 1
        return False

    def _load(self) -> None:
        self._index = {}
        for point in read_points(self.path):
            self._index.setdefault((point.name, point.step), point.value)
            self._last[point.name] = max(point.step, self._last.get(point.name, point.step))


def _checked_step(step: float) -> int:
    try:
        integer = int(step)
    except (TypeError, ValueError, OverflowError):
        integer = -1
    if integer != step or integer < 0:  # truncated, it could collide with another point
        raise ValueError(f"step {step!r}: a whole number from 0 on")
    return integer


def read_points(path: Path) -> Iterator[Point]:
    """Yield the points of a metrics file in the order of writing; none if it is missing."""
    for line, _ in read_lines(path):
        yield from points_of(line)


def points_of(line: dict[str, Any]) -> list[Point]:
    """Return the points of a line of a metrics file."""
    return [
        Point(line["t"], line["step"], name, _NON_FINITE[v] if isinstance(v, str) else float(v))
        for name, v in line["m"].items()
    ]


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (record, byte offset after it) of a JSON lines file, up to an incomplete line."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        end = start
        while raw := file.readline(MAX_BYTES):
            end += len(raw)
            if not raw.endswith(b"\n"):
                return
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(raw)
                if isinstance(record, dict):
                    yield record, end


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record as a line and sync it to disk."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _write_all(file, json.dumps(record, separators=(",", ":")).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def repair(path: Path) -> None:
    """Remove an incomplete last line."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - 4096)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write a JSON file atomically: readers see the old content or the new.

    Args:
        path: The file.
        value: The content; keys are sorted.
        durable: Sync it to disk.
    """
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it is missing, broken or larger than MAX_BYTES."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def plain(value: Any) -> Any:
    """Convert a value for strict JSON: numpy numbers to numbers, NaN and infinity to text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _non_finite_text(value)
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} cannot be part of a result")


@contextlib.contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Lock a file exclusively, across processes.

    Args:
        path: The lock file.
        timeout: Seconds to wait; None waits forever.

    Raises:
        TimeoutError: Another process kept the lock for the whole time.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = None if timeout is None else time.monotonic() + timeout
        while end is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{path}: another process has locked it") from None
                time.sleep(0.05)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def size_on_disk(path: Path) -> int:
    """Sync a file to disk and return its size in bytes; 0 without a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(file).st_size
        with contextlib.suppress(OSError):  # a read-only file system
            os.fsync(file)
        return size
    finally:
        os.close(file)


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(file: int, data: bytes) -> None:
    while data:  # a signal or a nearly full disk may cut a write short
        data = data[os.write(file, data) :]


def _non_finite_text(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _check_name(name: str) -> None:
    usable = all(letter.isalnum() or letter in _NAME_CHARACTERS for letter in name)
    if not name or not usable or len(name) > 250 or name.startswith("/") or ".." in name:
        raise ValueError(f"metric {name!r}: use letters, digits and _ - . / : and spaces")
