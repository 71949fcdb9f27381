"""The journal: what a run leaves in its directory, and the only truth about it.

Layout of ``RUN_DIR/journal``: ``run.json`` (facts that do not change), ``sessions.jsonl`` (every start
and end), ``metrics.jsonl`` (the points, float64), ``events.jsonl`` (remarks), ``progress.json``
(heartbeat), ``mlflow.json`` (what has been sent where). A line that a crash cut off is no line.
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

MAX_BYTES = 32 << 20  # of a JSON file, and of a line: far more than any run writes
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAME_CHARACTERS = frozenset("_-./ :")


class Point(NamedTuple):
    """One value of one metric.

    Attributes:
        time: Milliseconds since the epoch.
        step: Step that it belongs to.
        name: Name of the metric.
        value: The value, float64.
    """

    time: int
    step: int
    name: str
    value: float


class MetricsFile:
    """The points of a run, appended line by line.

    The first value of a (name, step) counts: a resumed run that computes it again writes nothing, and
    a differing value is counted in ``mismatches``.

    Args:
        path: The file; a last line that a crash cut off is removed.
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
        """Writes the points that are new as one line, and returns them.

        Raises:
            OSError: The disk is full or gone.
            ValueError: A name that MLflow would not take, or a step that is no whole number from 0 on.
        """
        step = _whole(step)
        new = {name: value for name, value in metrics.items() if self._is_new(name, step, value)}
        if new:
            values = {
                name: value if math.isfinite(value) else _text(value) for name, value in new.items()
            }
            line = json.dumps({"t": time_ms, "step": step, "m": values}, separators=(",", ":"))
            _write_all(self._file, line.encode() + b"\n")
        return new

    def sync(self) -> None:
        """Waits until every point is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Syncs and closes the file."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)

    def _is_new(self, name: str, step: int, value: float) -> bool:
        last = self._last.get(name)
        if last is None:
            _check_name(name)
        if last is None or step > last:  # the usual case needs no index of all points
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
        before = self._index[name, step]
        same = before == value or (before != before and value != value)
        if not same and not name.startswith(CLOCK_PREFIX):
            self.mismatches += 1
        return False

    def _load(self) -> None:
        self._index = {}
        for point in read_points(self.path):
            self._index.setdefault((point.name, point.step), point.value)
            self._last[point.name] = max(point.step, self._last.get(point.name, point.step))


def _whole(step: float) -> int:
    try:
        whole = int(step)
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if whole != step or whole < 0:  # cut to a whole one, it could be that of a point that is there
        raise ValueError(f"step {step!r}: a whole number from 0 on")
    return whole


def read_points(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Point]:
    """Yields the points of a metrics file, in the order in which they were written.

    Args:
        path: The file; no points if it is missing.
        start: Byte offset of a line to begin at.
        stop: Byte offset to end at (by default the last complete line).
    """
    for line, end in read_lines(path, start):
        if stop is not None and end > stop:
            return
        yield from points_of(line)


def points_of(line: dict[str, Any]) -> list[Point]:
    """Returns the points of one line of a metrics file."""
    return [
        Point(line["t"], line["step"], name, _NON_FINITE[v] if isinstance(v, str) else float(v))
        for name, v in line["m"].items()
    ]


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields (record, byte offset after it) of a JSON lines file; a cut-off line ends it."""
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
    """Appends a record as one line, and waits until it is on the disk."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _write_all(file, json.dumps(record, separators=(",", ":")).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def repair(path: Path) -> None:
    """Cuts off what a crash left of a last line."""
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
    """Writes a JSON file so that a reader sees the old content or the new, never half.

    Args:
        path: The file.
        value: What to write; keys are sorted.
        durable: Wait until it is on the disk.
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
    """Returns the content of a JSON file, or None if it is missing, broken or beyond MAX_BYTES."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def plain(value: Any) -> Any:
    """Returns a value as strict JSON can hold it: numpy numbers as numbers, NaN and infinity as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _text(value)
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} cannot be part of a result")


@contextlib.contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Holds a lock file; two processes that do the same thing do it one after the other.

    Args:
        path: The lock file.
        timeout: Seconds to wait; None waits for ever.

    Raises:
        TimeoutError: Another process held the lock all the time.
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
                    raise TimeoutError(f"{path}: another process holds it") from None
                time.sleep(0.05)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def size_on_disk(path: Path) -> int:
    """Waits until what a file holds now is on the disk, and returns how much that is; 0 without a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(file).st_size
        with contextlib.suppress(OSError):  # a file system that is only read
            os.fsync(file)
        return size
    finally:
        os.close(file)


def sync_directory(path: Path) -> None:
    """Waits until the names in a directory are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(file: int, data: bytes) -> None:
    while data:  # a signal or a nearly full disk may cut a write short
        data = data[os.write(file, data) :]


def _text(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _check_name(name: str) -> None:
    usable = all(letter.isalnum() or letter in _NAME_CHARACTERS for letter in name)
    if not name or not usable or len(name) > 250 or name.startswith("/") or ".." in name:
        raise ValueError(f"metric {name!r}: use letters, digits and _ - . / : and spaces")
