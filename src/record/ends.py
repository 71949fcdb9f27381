"""How a run ends: signals become exceptions, exceptions become a status and a reason."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

from record.errors import RunFailed, UserError

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
_PR_SET_PDEATHSIG = 1


class Killed(BaseException):
    """A signal asked the run to end. Not an Exception, so that no ``except Exception`` swallows it.

    Args:
        number: Number of the signal.
        reason: What the record says.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class End(NamedTuple):
    """The end of a run.

    Attributes:
        status: FINISHED, FAILED or KILLED.
        reason: One line; empty for FINISHED.
    """

    status: str
    reason: str


def end_of(error: BaseException) -> End:
    """Returns the status and reason that an exception stands for."""
    if isinstance(error, Killed):
        return End(KILLED, error.reason)
    if isinstance(error, KeyboardInterrupt):
        return End(KILLED, "Ctrl-C")
    text = " ".join(str(error).split())[:500]
    if isinstance(error, RunFailed | UserError):
        return End(FAILED, text)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return End(FAILED, "out of memory")
    if type(error).__name__ == "OutOfMemoryError":  # torch's; torch itself may not be there
        return End(FAILED, "out of memory (GPU)")
    if isinstance(error, SystemExit):
        return End(FAILED, f"exit {error.code}")
    name = type(error).__name__
    return End(FAILED, f"{name}: {text}" if text else name)


class Signals:
    """Turns SIGTERM, SIGHUP and SIGINT into Killed in the main thread, but never inside a write."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._parent = os.getppid()
        self._depth = 0
        self._pending: Killed | None = None
        self._previous: dict[int, object] = {}

    def install(self) -> None:
        """Takes the signals over, unless they are ignored (nohup) or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Gives the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Lets a write end before a signal that arrives in it takes effect."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._pending and not self._depth and sys.exc_info()[0] is None:
                pending, self._pending = self._pending, None
                raise pending

    def ignore(self) -> None:
        """From here on the end is being written: further signals change nothing."""
        self._depth += 1_000_000

    def _handle(self, number: int, frame: object) -> None:
        if os.getpid() != self._pid:  # a forked worker inherited the handler: it just dies
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        reason = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if number == signal.SIGTERM and os.getppid() != self._parent:
            reason += " (the process that started the run is gone)"
        self._pending = Killed(number, reason)
        if not self._depth:
            pending, self._pending = self._pending, None
            raise pending


def die_with_parent() -> None:
    """Asks Linux for SIGTERM when the parent dies, so that killing ``guild run`` leaves no orphan."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
