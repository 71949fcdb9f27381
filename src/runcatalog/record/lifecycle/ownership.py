"""Ownership of a run's directory: only the process of the newest session may write to it."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from runcatalog.record import journal
from runcatalog.record.errors import OwnershipLost
from runcatalog.record.journal.files import locked, open_regular
from runcatalog.record.lifecycle import status

LOCK = "start.lock"  # in the journal
LOCK_TIMEOUT = 120.0  # s to wait for another process that starts, saves or ends the run
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)  # the last one: deleted on a shared folder


class Ownership:
    """Checks that a session is still the newest of its run.

    A process that was suspended, or whose machine was taken for lost, may wake up after another process has continued
    the run. It then has to stop without writing.

    Args:
        directory: The run's directory.
        number: The session's number.
        started: Its start, milliseconds since the epoch.

    Attributes:
        is_lost: Whether a check has failed.
    """

    def __init__(self, directory: Path, number: int, started: int) -> None:
        self._directory = directory
        self._path = directory / "journal" / journal.SESSIONS
        self._number, self._started = number, started
        self._stamp: tuple[int, ...] = ()
        self._reason = ""

    @property
    def is_lost(self) -> bool:
        return bool(self._reason)

    def check(self) -> None:
        """Check the ownership without a lock, by the state of ``sessions.jsonl``; it costs microseconds.

        On a folder shared by machines the state may be some seconds old (NFS caches it for 3 to 60 seconds), and
        another session may begin right after the check. Points are safe nevertheless, since each session has a
        metrics file of its own (:class:`runcatalog.record.journal.MetricsFile`); for all else use :meth:`locked`.

        Raises:
            OwnershipLost: Another process has continued the run, or its directory was deleted.
        """
        try:
            state = os.stat(self._path)
        except OSError as error:
            self._lose_if_deleted(error)
            raise
        self._compare(state)

    @contextlib.contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
        """Check the ownership and keep it during the block: no other session begins meanwhile.

        Raises:
            OwnershipLost: As for :meth:`check`.
            TimeoutError: Another process kept the lock for `timeout` seconds.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self._directory / "journal" / LOCK, timeout))
                # Unlike stat, opening a file on NFS asks the server for its state.
                with open_regular(self._path) as file:
                    state = os.fstat(file.fileno())
            except OSError as error:
                self._lose_if_deleted(error)
                raise
            self._compare(state)
            yield

    def _compare(self, state: os.stat_result) -> None:
        if self._reason:
            raise OwnershipLost(self._reason)
        stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
        if stamp == self._stamp:
            return
        last = status.last_session(self._directory)
        if last is not None:
            number, started = last["session"], last["started"]
            if number > self._number or (number == self._number and started != self._started):
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(started / 1000))
                self._lose(
                    f"this run was continued by another process (pid {last['pid']} on "
                    f"{last.get('host', 'an unknown host')}, started {when} UTC); this process "
                    "stops and has written nothing more"
                )
        self._stamp = stamp

    def _lose_if_deleted(self, error: OSError) -> None:
        if error.errno in _GONE:
            self._lose("its directory was deleted while it ran; this process stops")

    def _lose(self, reason: str) -> None:
        self._reason = f"{self._directory}: {reason}"
        raise OwnershipLost(self._reason) from None
