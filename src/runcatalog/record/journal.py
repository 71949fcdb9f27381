"""The journal: files in the run's directory, from which MLflow and TensorBoard data are derived.

Layout of ``RUN_DIR/journal``: ``run.json`` (constant facts), ``sessions.jsonl`` (starts and ends),
``metrics.jsonl`` (points, float64), ``events.jsonl`` (messages), ``progress.json`` (heartbeat), ``mlflow.json``
(delivery state by server). Readers ignore a last line that a crash cut off.

A line of a ``.jsonl`` file ends with ``,"n":NUMBER,"crc":"XXXXXXXX"}``: its number in the file, from 1, and the CRC-32
(zlib) of the bytes of the line before ``,"crc"``. So a changed, lost or repeated line is seen. Lines of earlier
versions have neither; after the first line that has them, all lines need them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import posixpath
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from runcatalog.record.digest import CLOCK_PREFIX, metrics_digest

HIDDEN = "[hidden]"  # replaces a secret
MAX_BYTES = 32 << 20  # limit of a JSON file and of a line; far above the size of real ones
METRICS, SESSIONS, EVENTS = "metrics.jsonl", "sessions.jsonl", "events.jsonl"
SENDER_LOG = "sender.log"  # of the process that sends a run to MLflow, which has it locked
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAME_CHARACTERS = frozenset("_-./ :")
_CRC = b',"crc":"'
_CRC_BYTES = len(_CRC) + 8 + len(b'"}\n')  # from there to the end of a line
_TAIL_BYTES = 1 << 14  # read to number a line that is appended
_SHOWN = 5  # numbers of damaged lines in a message


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


class Damage(NamedTuple):
    """What is wrong with a JSON lines file; false if nothing is.

    Attributes:
        lines: Positions of the lines that cannot be read, from 1: no JSON object, a wrong checksum or number, no
            checksum after a line that has one, fields of a wrong type, or longer than MAX_BYTES.
        missing: Number of numbered lines that are not there. Lines cut off at the end of the file leave no trace.
        total: Number of lines in the file; 0 if nothing is wrong.
    """

    lines: tuple[int, ...] = ()
    missing: int = 0
    total: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.missing)

    @property
    def count(self) -> int:
        """Number of lines that are lost."""
        return len(self.lines) + self.missing

    def text(self) -> str:
        """Return for example "2 of 2,001 lines cannot be read (1204, 1205), 3 lines are missing"."""
        parts = []
        if self.lines:
            more = ", …" if len(self.lines) > _SHOWN else ""
            numbers = ", ".join(map(str, self.lines[:_SHOWN])) + more
            noun = "line" if self.total == 1 else "lines"
            parts.append(f"{len(self.lines):,} of {self.total:,} {noun} cannot be read ({numbers})")
        if self.missing:
            parts.append(
                f"{self.missing:,} {'line is' if self.missing == 1 else 'lines are'} missing"
            )
        return ", ".join(parts)


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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mismatches = 0
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
        """The file's number of lines, its bytes and their CRC-32, for :func:`difference`."""
        return {"lines": self._number, "bytes": self._bytes, "crc": f"{self._crc:08x}"}

    def append(self, time_ms: int, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Write the new points as a line; return them.

        Raises:
            OSError: The file cannot be written, for example on a full disk.
            ValueError: MLflow would reject a name, or a step is not a non-negative integer.
        """
        step = checked_step(step)
        new = {name: value for name, value in metrics.items() if self._is_new(name, step, value)}
        if new:
            values = {
                name: value if math.isfinite(value) else _non_finite_text(value)
                for name, value in new.items()
            }
            content = {"t": time_ms, "step": step, "m": values}
            line = _checked_line(content, self._number + 1)
            _write_all(self._file, line)
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
        lines = number = 0
        is_whole = True
        for record, _, line_number in _scan(self.path):
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
            self.damage = damage(self.path)


def difference(path: Path, written: Mapping[str, Any]) -> str:
    """Return what is wrong in the part of a metrics file that was there at an earlier time; "" if it is unchanged.

    Args:
        path: The file.
        written: `MetricsFile.written` of that time.
    """
    size = written.get("bytes")
    if type(size) is int and f"{_prefix_crc(path, size):08x}" == written.get("crc"):
        return ""
    found = damage(path)
    lost = (written.get("lines") or 0) - _last_number(path)
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
        ValueError: It is not a whole number from 0 on.
    """
    try:
        integer = int(step)
    except (TypeError, ValueError, OverflowError):
        integer = -1
    if integer != step or integer < 0:  # truncated, it could collide with another point
        raise ValueError(f"step {step!r}: a whole number from 0 on")
    return integer


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
        if type(at) is not int or type(step) is not int:
            raise TypeError
        return [
            Point(at, step, name, _NON_FINITE[v] if isinstance(v, str) else float(v))
            for name, v in line["m"].items()
        ]
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{str(line)[:80]} is not a line of metrics") from None


def metrics_digest_of(run_dir: str | os.PathLike[str]) -> str:
    """Return the digest of the points in a run's journal, as in its ``result.json``."""
    points = read_points(Path(run_dir) / "journal" / METRICS)
    return metrics_digest((point.name, point.step, point.value) for point in points)


def damage(path: Path) -> Damage:
    """Return which lines of a JSON lines file are damaged or missing; `Damage()` for a whole or missing file.

    Args:
        path: The file; in a file with the name of the journal's metrics or sessions, fields are checked too.
    """
    return _damage(path, _USABLE.get(path.name, bool))


def read_metrics(path: Path) -> tuple[list[Point], Damage]:
    """Return the points of a metrics file, as :func:`read_points`, and its damage, in one pass."""
    points: list[Point] = []

    def is_usable(record: dict[str, Any]) -> bool:
        try:
            points.extend(points_of(record))
        except ValueError:
            return False
        return True

    found = _damage(path, is_usable)
    return points, found


def _damage(path: Path, is_usable: Callable[[dict[str, Any]], bool]) -> Damage:
    bad, missing, total, number = [], 0, 0, 0
    for record, _, line_number in _scan(path):
        total += 1
        if record is None or not is_usable(record):
            bad.append(total)
        missing += max(0, line_number - number - 1)
        number = line_number
    return Damage(tuple(bad), missing, total) if bad or missing else Damage()


def damage_before(path: Path, time_ms: Any) -> Damage:
    """Return the damage of a metrics file before the last good line that is not later than a time.

    Args:
        path: The file.
        time_ms: Milliseconds since the epoch; no damage is before anything but a number.
    """
    found = damage(path)
    if not found or not isinstance(time_ms, int):
        return Damage()
    last = number = missing = lost = 0
    for place, (record, _, line_number) in enumerate(_scan(path), 1):
        missing += max(0, line_number - number - 1)
        number = line_number
        if record is not None and _is_metrics(record) and record["t"] <= time_ms:
            last, lost = place, missing
    lines = tuple(bad for bad in found.lines if bad < last)
    return Damage(lines, lost, found.total) if lines or lost else Damage()


def is_session(record: dict[str, Any]) -> bool:
    """Return whether a line of ``sessions.jsonl`` has the fields of a session, of the right types."""
    whole = all(type(record.get(name)) is int for name in ("session", "started", "pid"))
    optional = {"offset": int, "earlier_seconds": int | float, "pid_started": int | float}
    optional |= {"host": str, "boot": str, "pid_namespace": str}
    return whole and all(
        isinstance(record[name], kind) for name, kind in optional.items() if name in record
    )


def _is_metrics(record: dict[str, Any]) -> bool:
    try:
        points_of(record)
    except ValueError:
        return False
    return True


_USABLE = {METRICS: _is_metrics, SESSIONS: is_session}


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (record, byte offset after it) of a JSON lines file, up to an incomplete line.

    Damaged lines are skipped, see :func:`damage`. Anything but a regular file counts as missing.

    Args:
        path: The file.
        start: Byte offset to begin at.
    """
    for record, end, _ in _scan(path, start):
        if record is not None:
            yield record, end


def _scan(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any] | None, int, int]]:
    """Yield (record, byte offset after it, number) of each complete line; the record of a damaged one is None.

    The number of a line without one is that of the line before, plus 1; a repeated line has the number of the line
    before.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        # Whether a line without checksum is damaged depends on the line before.
        before = os.pread(file.fileno(), min(start, _CRC_BYTES), max(0, start - _CRC_BYTES))
        is_checked = before.startswith(_CRC)
        last = number = 0  # of the last good line with a number, and of the last line
        file.seek(start)
        end = start
        while raw := file.readline(MAX_BYTES):
            end += len(raw)
            number += 1
            record = None
            if raw[-1] != 10:  # a newline
                if len(raw) < MAX_BYTES or not (rest := _skip_line(file)):
                    return
                end += rest
            elif raw[-19:-11] == _CRC:
                is_checked = True
                content = raw[:-19]
                if raw[-11:] == b'%08x"}\n' % zlib.crc32(content):
                    record = _parsed(content + b"}")
                if record is not None and type(own := record.get("n")) is int:
                    if own > last:
                        last = number = own
                    else:  # a line that is repeated
                        number, record = number - 1, None
            elif not is_checked:
                record = _parsed(raw)
            yield record, end, number


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(raw.decode())  # twice as fast as to let json find out the encoding
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _skip_line(file: IO[bytes]) -> int:
    """Read to the end of a line; return the number of bytes, 0 if the file ends before."""
    skipped = 0
    while raw := file.readline(MAX_BYTES):
        skipped += len(raw)
        if raw.endswith(b"\n"):
            return skipped
    return 0


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record as a line and sync it to disk; an incomplete last line is removed.

    The caller ensures that no other process appends at the same time.
    """
    repair(path)
    line = _checked_line(record, _last_number(path) + 1)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _write_all(file, line)
        os.fsync(file)
    finally:
        os.close(file)


def _checked_line(record: dict[str, Any], number: int) -> bytes:
    content = json.dumps(record | {"n": number}, separators=(",", ":"))[:-1].encode()
    return b'%b,"crc":"%08x"}\n' % (content, zlib.crc32(content))


def _last_number(path: Path) -> int:
    """Return the number of the last line, 0 without lines."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    number = 0
    for start in (max(0, size - _TAIL_BYTES), 0):
        is_sure = not start
        for record, _, line_number in _scan(path, start):
            number = line_number
            is_sure = is_sure or (record is not None and "n" in record)
        if is_sure:
            break
    return number


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
    """Return the content of a JSON file; None if it is missing, broken, not a regular file or above MAX_BYTES."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return None
            value = json.loads(file.read().decode())
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
        OSError: The file cannot be opened, or is a link: a copied directory could lead it anywhere.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o644)
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
        # A process forked meanwhile has the file open too, and would keep the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock of a file; False if the file cannot be opened or locked."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(file)
    return False


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        FileNotFoundError: It is missing or not a regular file: reading a pipe or a device could last forever.
        OSError: It cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket
            raise
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def size_on_disk(path: Path) -> int:
    """Sync a file to disk and return its size in bytes; 0 without a file."""
    try:
        file = open_regular(path)
    except OSError:
        return 0
    with file:
        size = os.fstat(file.fileno()).st_size
        with contextlib.suppress(OSError):  # a read-only file system
            os.fsync(file.fileno())
        return size


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


def is_metric_name(name: str) -> bool:
    """Return whether MLflow takes a metric of this name, which must also be a normal path."""
    usable = all(letter.isalnum() or letter in _NAME_CHARACTERS for letter in name)
    is_path = posixpath.normpath(name) == name and name != "." and ".." not in name
    return usable and is_path and len(name) <= 250 and not name.startswith("/")


def _check_name(name: str) -> None:
    if not is_metric_name(name):
        raise ValueError(
            f"metric {name!r}: use letters, digits and _ - . : and spaces, / only between parts of the name"
        )
