"""Files that no crash leaves half written, and locks across processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from runcatalog.numbers import json_number

MAX_BYTES = 32 << 20  # limit of a JSON file and of a line; far above the size of real ones


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write a JSON file atomically: readers see the old content or the new.

    Args:
        path: The file.
        value: The content; keys are sorted. Bytes of a path or argument that are not UTF-8 are read back as they were.
        durable: Sync it to disk.

    Raises:
        ValueError: The content is longer than :func:`read_json` reads.
    """
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    # What Python has in place of such bytes becomes an escape of JSON.
    content = text.encode("utf-8", "backslashreplace")
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path.name}: {len(content):,} bytes; at most {MAX_BYTES:,} are read")
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
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
        return json_number(float(value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
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


def write_all(file: int, data: bytes) -> None:
    """Write all of the data to an open file, by its descriptor."""
    while data:  # a signal or a nearly full disk may cut a write short
        data = data[os.write(file, data) :]
