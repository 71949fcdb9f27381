"""The progress of a run: its recent speed, and a line that is rewritten on a terminal."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque

from runcatalog import terminal_output
from runcatalog.numbers import amount, duration, number

RECENT = 60.0  # s that a speed is taken over
REDRAW = 0.2  # s between two states of the line


class Speed:
    """Change of a number per second, over the last RECENT seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """Add the value at a time [s]; a time before the last one begins anew."""
        samples = self._samples
        if samples and at < samples[-1][0]:
            samples.clear()
        samples.append((at, value))
        while len(samples) > 2 and at - samples[1][0] >= RECENT:
            samples.popleft()

    def clear(self) -> None:
        """Forget all values."""
        self._samples.clear()

    @property
    def last(self) -> tuple[float, float] | None:
        """Time and value that were added last."""
        return self._samples[-1] if self._samples else None

    @property
    def per_second(self) -> float | None:
        """The speed; None for fewer than two values."""
        samples = self._samples
        if len(samples) < 2 or samples[-1][0] - samples[0][0] <= 0:
            return None
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


def progress_text(done: float, total: float, unit: str, per_second: float | None) -> str:
    """Return "update 40 of 90, 1.2 updates/s, 42 s left"."""
    text = f"{unit} {amount(done)} of {amount(total)}"
    if per_second and math.isfinite(per_second) and per_second > 0:
        if per_second >= 0.1:
            text += f", {number(per_second, 2)} {unit}s/s"
        if done < total:
            text += f", {duration((total - done) / per_second)} left"
    return text


class ProgressLine:
    """The progress in one line that is rewritten in the terminal of a run; nothing where there is none.

    The line is written to the terminal itself, so that files with the output do not have it.
    """

    def __init__(self) -> None:
        self._terminal: int | None = None  # opened when there is something to show
        self._speed = Speed()
        self._shown = False
        self._drawn_at = -math.inf

    def show(self, done: float, total: float, unit: str) -> None:
        """Show a state, at most every REDRAW seconds."""
        if self._terminal is None:
            self._terminal = _open_terminal()
        if self._terminal < 0:
            return
        now = time.monotonic()
        self._speed.add(now, done)
        if now - self._drawn_at < REDRAW and done < total:
            return
        self._drawn_at = now
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._terminal) != os.getpgrp():
                return  # a job in the background
            width = os.get_terminal_size(self._terminal).columns or 80
            text = progress_text(done, total, unit, self._speed.per_second)
            os.write(self._terminal, f"\r{text[: width - 1]}\x1b[K".encode())
            self._shown = True

    def clear(self) -> None:
        """Remove the line, before other text."""
        if self._shown and self._terminal is not None:
            self._shown = False
            with contextlib.suppress(OSError):
                os.write(self._terminal, b"\r\x1b[K")

    def close(self) -> None:
        """Remove the line and close the terminal."""
        self.clear()
        if self._terminal is not None and self._terminal >= 0:
            os.close(self._terminal)
        self._terminal = -1


def _open_terminal() -> int:
    """Return a file descriptor of the terminal that shows this process's output; -1 without one."""
    if terminal_output.is_shown():
        with contextlib.suppress(OSError):
            return os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    return -1
