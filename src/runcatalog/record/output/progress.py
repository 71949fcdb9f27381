"""The progress of a run: its recent speed, a line that is rewritten on a terminal, and lines in a log."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque

from runcatalog.numbers import amount, duration, number, plural
from runcatalog.record.output import terminal_output

RECENT = 60.0  # s that a speed is taken over, at least
RECENT_SHARE = 0.1  # of the total that the speed of a run is taken over, at least: so it has pauses for validations
_SPACING = 1.0  # s between two values that are remembered
REDRAW = 0.2  # s between two states of the line on a terminal
LOG_SECONDS = 60.0  # least time between two lines in a log
LOG_PARTS = 10  # lines in a log of a long run, one per tenth of it …
LOG_LONGEST = 600.0  # … and at least one in this time [s]


class Speed:
    """Change of a number per second, over the last RECENT seconds or longer."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float, change: float = 0.0) -> None:
        """Add the value at a time [s]; a time before the last one begins anew.

        Args:
            at, value: Time and value.
            change: Change of the value that the speed is taken over, at least, as far as values reach back.
        """
        samples = self._samples
        if samples and at < samples[-1][0]:
            samples.clear()
        if len(samples) > 1 and at - samples[-2][0] < _SPACING:
            samples.pop()
        samples.append((at, value))
        while (
            len(samples) > 2
            and at - samples[1][0] >= RECENT
            and abs(value - samples[1][1]) >= change
        ):
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


def done_text(done: float, total: float, unit: str) -> str:
    """Return "update 40 of 90", or "40 %" for the unit "per cent"."""
    if unit == "per cent":
        return f"{number(100 * done / total, 3)} %"
    return f"{unit} {amount(done)} of {amount(total)}"


def progress_text(done: float, total: float, unit: str, per_second: float | None) -> str:
    """Return "update 40 of 90, 1.2 updates/s, 42 s left"."""
    text = done_text(done, total, unit)
    if per_second and math.isfinite(per_second) and per_second > 0:
        if per_second >= 0.1 and unit != "per cent":
            text += f", {number(per_second, 2)} {plural(unit)}/s"
        if done < total:
            text += f", {duration((total - done) / per_second)} left"
    return text


class ProgressLine:
    """The progress of a run: on a terminal one line that is rewritten, in a log a line now and then.

    The line on a terminal is written to the terminal itself, so that files with the output do not have it. Nothing is
    shown for the children of a run, whose progress their parent shows.
    """

    def __init__(self) -> None:
        self._terminal: int | None = None  # opened when there is something to show
        self._speed = Speed()
        self._shown = False
        self._drawn_at = -math.inf
        self._logged_at: float | None = (
            None  # time of the last line in a log, at first that of the first report
        )
        self._logged_part = 0
        self._first_report = True

    def show(self, done: float, total: float, unit: str) -> None:
        """Show a state: on a terminal at most every REDRAW seconds, in a log at most every LOG_SECONDS."""
        if self._terminal is None:
            self._terminal = _open_terminal()
        if self._terminal < 0 and not terminal_output.is_log():
            return
        now = time.monotonic()
        if self._first_report:  # compilation precedes or follows it
            self._first_report = False
        else:
            self._speed.add(now, done, RECENT_SHARE * total)
        if self._terminal < 0:
            self._log(now, done, total, unit)
            return
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

    def _log(self, now: float, done: float, total: float, unit: str) -> None:
        part = int(LOG_PARTS * done / total) if total > 0 else 0
        if self._logged_at is None:
            self._logged_at, self._logged_part = now, part
        waited = now - self._logged_at
        due = waited >= LOG_SECONDS and part != self._logged_part
        if done < total and (due or waited >= LOG_LONGEST):
            self._logged_at, self._logged_part = now, part
            with contextlib.suppress(OSError, ValueError):  # the output's reader has gone
                print(progress_text(done, total, unit, self._speed.per_second), flush=True)

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
