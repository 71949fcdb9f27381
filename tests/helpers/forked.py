"""Runs a function in a forked copy of the test's process, which has the imports and compiled kernels already."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest


def killed(function: Callable[[], Any]) -> None:
    """Run a function that kills its process, and check that it did, by SIGKILL.

    Args:
        function: Called in the child process; its output goes to the test's.
    """
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process ended before it was killed"
    assert os.WTERMSIG(status) == signal.SIGKILL


def kill_at_call(patch: pytest.MonkeyPatch, owner: type, method: str, number: int) -> None:
    """Let the `number`-th call of a method end the process like `kill -9`."""
    original, calls = getattr(owner, method), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    patch.setattr(owner, method, counted)
