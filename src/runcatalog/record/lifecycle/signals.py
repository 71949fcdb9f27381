"""How a run ends: signals become exceptions, exceptions become a status and a reason."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from runcatalog.record.errors import Killed, RunFailed, UserError
from runcatalog.record.lifecycle.process import process_state

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"

NO_RESULT = "the script ended without a result"
NEVER_STARTED = "never started"  # begin of the reason of a run that lacked what it needs
GONE = "process gone (SIGKILL or os._exit)"  # the two cannot be distinguished afterwards

_PR_SET_PDEATHSIG = 1
_GUILD_CTRL_C = -16  # guild.exit_code.KEYBOARD_INTERRUPT
# Termination signals sent by users, shells and schedulers.
_TERMINATION = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
_TERMINATION_BY_DEFAULT = (signal.SIGUSR1, signal.SIGUSR2)  # unless a script handles them itself
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_MEMORY = ("can't allocate memory", os.strerror(errno.ENOMEM))  # the first is torch's
_NO_GPU_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class End(NamedTuple):
    """The end of a run.

    Attributes:
        status: FINISHED, FAILED or KILLED.
        reason: Reason in a line; "" for FINISHED.
    """

    status: str
    reason: str


def end_from_exception(error: BaseException) -> End:
    """Return the status and reason for an exception."""
    if isinstance(error, Killed):
        return End(KILLED, error.reason)
    if isinstance(error, KeyboardInterrupt):
        return End(KILLED, "Ctrl-C")
    text = " ".join(str(error).split())[:500]
    if isinstance(error, RunFailed | UserError):
        return End(FAILED, text)
    if isinstance(error, SystemExit):
        return End(FAILED, f"exit {error.code}" if error.code else NO_RESULT)
    if memory_reason := out_of_memory(error):
        return End(FAILED, memory_reason)
    if is_disk_full(error):
        name = Path(str(getattr(error, "filename", None) or "")).name
        return End(FAILED, cannot_write(name, error) if name else "disk full")
    name = type(error).__name__
    return End(FAILED, f"{name}: {text}" if text else name)


def out_of_memory(error: BaseException) -> str:
    """Return "out of memory" or "out of memory (GPU)" if the exception says so, else ""."""
    text = str(error)
    # By name, since torch may be missing
    is_torch_error = type(error).__name__ == "OutOfMemoryError"
    if is_torch_error or any(phrase in text for phrase in _NO_GPU_MEMORY):
        return "out of memory (GPU)"
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM  # fork or mmap
    if isinstance(error, MemoryError) or refused or any(phrase in text for phrase in _NO_MEMORY):
        return "out of memory"
    return ""


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an exception or its cause is a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return True
        # safetensors and torch write from Rust and C++, and pass on only the error's text.
        if any(os.strerror(number) in str(error) for number in _DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def cannot_write(target: str, error: BaseException) -> str:
    """Return the reason of a run that could not write something."""
    if is_disk_full(error):
        return f"disk full: cannot write {target}"
    return f"cannot write {target}: {getattr(error, 'strerror', None) or error}"


def end_from_exit_status(code: int) -> End | None:
    """Return the end that the exit status of a process implies, if the process wrote none.

    Args:
        code: Exit status as in Guild: negative for a signal, or a shell's 128 + number.

    Returns:
        The end; None if the status is neither 0 nor a signal's.
    """
    if code == 0:
        return End(FAILED, NO_RESULT)
    if code in (-signal.SIGINT, 128 + signal.SIGINT, _GUILD_CTRL_C):
        return End(KILLED, "Ctrl-C")
    shells = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    number = -code if code < 0 else code - 128 if code in shells else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return None
    return End(FAILED, f"crashed: {name}") if number in _CRASHES else End(KILLED, name)


class Signals:
    """Handlers that raise Killed in the main thread on termination signals, but never during a write.

    Attributes:
        can_checkpoint: Whether the script asks after each update if a checkpoint is due. Then SIGUSR1, the warning
            before a time limit, does not end the run at once.
        warned: Whether SIGUSR1 has arrived, and a checkpoint is wanted before the end.
    """

    def __init__(self) -> None:
        self.can_checkpoint = False
        self.warned = False
        self._pid = os.getpid()
        self._parent = os.getppid()
        self._lock = threading.RLock()
        self._depth = 0  # of blocks of the main thread, in which alone Python handles signals
        self._pending: Killed | None = None
        self._previous: dict[int, object] = {}

    def install(self) -> None:
        """Install the handlers, except for ignored signals (nohup) and outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (*_TERMINATION, *_TERMINATION_BY_DEFAULT):
            handler = signal.getsignal(number)
            may_replace = handler is signal.SIG_DFL or number in _TERMINATION
            if may_replace and handler is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Reinstall the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay signals until the block has ended, so that a write completes; a single thread at a time is in one."""
        with self._lock:
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
        # Not reached after an exception in the block, which ends the run itself.
        if self._pending and not self._depth:
            pending, self._pending = self._pending, None
            raise pending

    def end_if_warned(self) -> None:
        """Raise Killed if SIGUSR1 has arrived; called after a checkpoint."""
        if self.warned:
            raise Killed(signal.SIGUSR1, signal.SIGUSR1.name)

    def ignore(self) -> None:
        """Ignore further signals from now on: the end is being written."""
        self._depth += 1_000_000

    def _handle(self, number: int, frame: object) -> None:
        if os.getpid() != self._pid:  # a forked worker inherited the handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGUSR1 and self.can_checkpoint:
            self.warned = True
            return
        reason = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if number == signal.SIGTERM and self._is_orphan():
            reason += " (the process that started the run is gone)"
        self._pending = Killed(number, reason)
        if not self._depth:
            pending, self._pending = self._pending, None
            raise pending

    def _is_orphan(self) -> bool:
        """Return whether the parent is gone or exiting."""
        time.sleep(0.01)  # Linux sends the signal while the first of the parent's threads ends
        return os.getppid() != self._parent or process_state(self._parent)[0] in ("Z", "X")


def die_with_parent() -> None:
    """Make Linux send SIGTERM when the parent dies, so that killing ``guild run`` leaves no orphan."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
