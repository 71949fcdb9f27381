"""The points of a run's metrics, in the order of writing."""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.numbers import is_int64, json_number
from runcatalog.record.digest import CLOCK_PREFIX, metrics_digest
from runcatalog.record.journal import METRICS
from runcatalog.record.journal.files import (
    open_regular,
    sync_directory,
    write_all,
)
from runcatalog.record.journal.lines import (
    Damage,
    checked_line,
    find_damage,
    last_number,
    read_lines,
    repair,
    scan,
)

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAME_CHARACTERS = frozenset("_-./ :")
_NAME_LENGTH = 250


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

    An existing file is replaced by a copy: what a suspended process of an earlier session still writes gets into the
    file that it has open, which nobody reads any more.

    Args:
        path: The file; an incomplete last line is removed.

    Attributes:
        damage: Damaged lines of earlier sessions.
        differing: Names of the values that differed in the newest append.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mismatches = 0
        self.differing: list[str] = []
        self.damage = Damage()
        self._last: dict[str, int] = {}
        self._index: dict[tuple[str, int], float] | None = None
        self._number = self._bytes = self._crc = 0
        self._file = _own_copy(path)
        try:
            self._bytes = os.fstat(self._file).st_size
            if self._bytes:
                self._crc = _prefix_crc(path, self._bytes)
                self._load()
        except BaseException:
            os.close(self._file)
            raise

    @property
    def last_step(self) -> int:
        """The largest step of any metric; 0 without points."""
        return max(self._last.values(), default=0)

    @property
    def written(self) -> dict[str, Any]:
        """The file's number of lines, its bytes and their CRC-32, for :func:`changes_since`."""
        return {"lines": self._number, "bytes": self._bytes, "crc": f"{self._crc:08x}"}

    def append(self, time_ms: int, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Write the new points as a line; return them.

        Raises:
            OSError: The file cannot be written, for example on a full disk.
            ValueError: MLflow would reject a name, or a step is not a non-negative integer.
        """
        step = checked_step(step)
        # Before the line, since it is not in the file yet; steps that grow need no index of all points.
        if self._index is None and any(step <= self._last.get(name, -1) for name in metrics):
            self._load()
        for name in metrics:
            if name not in self._last:
                _check_name(name)
        self.differing = []
        new = {name: value for name, value in metrics.items() if self._is_new(name, step, value)}
        if new:
            values = {name: json_number(value) for name, value in new.items()}
            content = {"t": time_ms, "step": step, "m": values}
            line = checked_line(content, self._number + 1)
            write_all(self._file, line)
            self._number += 1
            self._bytes += len(line)
            self._crc = zlib.crc32(line, self._crc)
        return new

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync and close the file."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1  # another file may get the number

    def _is_new(self, name: str, step: int, value: float) -> bool:
        last = self._last.get(name)
        if last is None or step > last:
            self._last[name] = step
            if self._index is not None:
                self._index[name, step] = value
            return True
        assert self._index is not None
        if (name, step) not in self._index:
            self._index[name, step] = value
            return True
        first = self._index[name, step]
        equal = first == value or (first != first and value != value)
        if not equal and not name.startswith(CLOCK_PREFIX):
            self.mismatches += 1
            self.differing.append(name)
        return False

    def _load(self) -> None:
        self._index = {}
        lines = number = 0
        is_whole = True
        for record, _, line_number in scan(self.path):
            lines, number = lines + 1, line_number
            try:
                points = points_of(record or {})
            except ValueError:
                is_whole = False
                continue
            for point in points:
                self._index.setdefault((point.name, point.step), point.value)
                self._last[point.name] = max(point.step, self._last.get(point.name, point.step))
        self._number = max(number, self._number)
        if not is_whole or lines != number:
            self.damage = find_damage(self.path, is_metrics)


def changes_since(path: Path, written: Mapping[str, Any]) -> str:
    """Return what is wrong in the part of a metrics file that was there at an earlier time; "" if it is unchanged.

    Args:
        path: The file.
        written: `MetricsFile.written` of that time.
    """
    size = written.get("bytes")
    if type(size) is int and f"{_prefix_crc(path, size):08x}" == written.get("crc"):
        return ""
    found = find_damage(path, is_metrics)
    lost = (written.get("lines") or 0) - last_number(path)
    parts = [found.text()] if found else []
    if lost > 0:
        parts.append(f"{lost:,} {'line is' if lost == 1 else 'lines are'} missing at its end")
    return ", ".join(parts) or "its lines are not those that were written"


def _prefix_crc(path: Path, size: int) -> int:
    """Return the CRC-32 of the first `size` bytes of a file; -1 if it is shorter or missing."""
    crc = 0
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        while size > 0 and (data := file.read(min(size, 1 << 20))):
            crc = zlib.crc32(data, crc)
            size -= len(data)
    return -1 if size else crc


def _own_copy(path: Path) -> int:
    """Replace a file by a copy without an incomplete last line; return the copy's descriptor, for appending."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    temporary = path.with_name(f".{path.name}.new")
    try:
        source = open_regular(path)
    except FileNotFoundError:
        return os.open(path, flags, 0o644)
    try:
        temporary.unlink(missing_ok=True)
        file = os.open(temporary, flags | os.O_EXCL, 0o644)
        with source, os.fdopen(file, "wb", closefd=False) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        repair(temporary)
        os.fsync(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    return file


def checked_step(step: Any) -> int:
    """Return a step as an integer.

    Raises:
        ValueError: It is not a whole number from 0 on, or a database cannot hold it.
    """
    try:
        integer = int(step)
    except (TypeError, ValueError, OverflowError):
        integer = -1
    # Truncated, it could collide with another point.
    if integer != step or integer < 0 or not is_int64(integer):
        raise ValueError(f"step {step!r}: a whole number from 0 to 2**63 - 1")
    return integer


def checked_value(name: str, value: Any) -> float:
    """Return a metric's value as a float.

    Raises:
        ValueError: It is not a number; the error names the metric, of many that are logged in one call.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one: torch's
        text = " ".join(str(value).split())[:80]
        raise ValueError(f"metric {name!r}: not a number but {text}") from None


def read_points(path: Path) -> Iterator[Point]:
    """Yield the points of a metrics file in the order of writing, without damaged lines; none if it is missing."""
    for line, _ in read_lines(path):
        with contextlib.suppress(ValueError):
            yield from points_of(line)


def points_of(line: dict[str, Any]) -> list[Point]:
    """Return the points of a line of a metrics file.

    Raises:
        ValueError: A field is missing or of a wrong type.
    """
    try:
        at, step = line["t"], line["step"]
        if not (is_int64(at) and is_int64(step)):
            raise TypeError
        return [
            Point(at, step, name, _NON_FINITE[v] if isinstance(v, str) else float(v))
            for name, v in line["m"].items()
        ]
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{str(line)[:80]} is not a line of metrics") from None


def is_metrics(record: dict[str, Any]) -> bool:
    """Return whether a line of a metrics file has its fields, of the right types."""
    try:
        points_of(record)
    except ValueError:
        return False
    return True


def metrics_digest_of(run_dir: str | os.PathLike[str]) -> str:
    """Return the digest of the points in a run's journal, as in its ``result.json``."""
    points = read_points(Path(run_dir) / "journal" / METRICS)
    return metrics_digest((point.name, point.step, point.value) for point in points)


def read_metrics(path: Path) -> tuple[list[Point], Damage]:
    """Return the points of a metrics file, as :func:`read_points`, and its damage, in one pass."""
    points: list[Point] = []

    def is_usable(record: dict[str, Any]) -> bool:
        try:
            points.extend(points_of(record))
        except ValueError:
            return False
        return True

    found = find_damage(path, is_usable)
    return points, found


def is_metric_name(name: str) -> bool:
    """Return whether MLflow takes a metric of this name, which must also be a normal path."""
    usable = all(letter.isalnum() or letter in _NAME_CHARACTERS for letter in name)
    is_path = posixpath.normpath(name) == name and name != "." and ".." not in name
    return usable and is_path and len(name) <= _NAME_LENGTH and not name.startswith("/")


def _check_name(name: str) -> None:
    if len(name) > _NAME_LENGTH:
        raise ValueError(f"metric {name[:40]!r}…: {len(name)} characters, at most {_NAME_LENGTH}")
    if not is_metric_name(name):
        raise ValueError(
            f"metric {name!r}: use letters, digits and _ - . : and spaces, / only between parts of the name"
        )
