"""A live view of running jobs in the terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from runcatalog.cli.job_progress import STALE, Job, Jobs
from runcatalog.text import terminal

INTERVAL = 1.0  # s between frames
BAR = 12  # characters
_ENDED = 4  # one line in so many is for runs that have ended
# Columns in the order in which a narrow terminal gives them up, the first first.
_DROPPED = ("done", "last sign", "bar", "steps/s", "label", "metric", "operation")
_LONGEST = {"operation": 26, "label": 24, "metric": 26}  # cells
_STYLES = {"": "", "head": "\x1b[1m", "good": "\x1b[32m", "bad": "\x1b[31m"}


class Line(NamedTuple):
    """A line of the view and its style, one of _STYLES."""

    text: str
    style: str = ""


def frame(
    jobs: Jobs,
    metrics: Mapping[str, Sequence[str]],
    now: float,
    width: int | None = None,
    height: int | None = None,
) -> list[Line]:
    """Returns the view.

    Args:
        jobs: What is going on.
        metrics: Metrics to look for first, by operation.
        now: Seconds since the epoch.
        width: Cells of a line; None for any.
        height: Most lines; None for any.
    """
    ended = [_end_line(job, metrics) for job in jobs.ended]
    room = None if height is None else max(1, height - 3)
    if room is not None:
        ended = ended[: max(1, room // _ENDED)] if jobs.running else ended[:room]
        room = max(1, room - len(ended) - bool(ended))
    running = sorted(jobs.running, key=lambda job: job.silent(now) < STALE)
    silent = sum(job.silent(now) >= STALE for job in running)
    lines = [Line(_summary(len(running), silent, len(jobs.ended), now), "head")]
    if running:
        fits = room is None or len(running) <= room
        hidden = 0 if fits else len(running) - max(1, (room or 0) - 1)
        shown = running[: len(running) - hidden]
        table = _table([_cells(job, metrics, now) for job in shown], width)
        styles = ["head", *("bad" if job.silent(now) >= STALE else "" for job in shown)]
        lines += map(Line, table, styles)
        if hidden:
            lines.append(Line(f"… {hidden} more: a higher window or --once shows them"))
    if ended:
        lines += [Line(""), *ended]
    return [Line(terminal.cut(t, width) if width else t, style) for t, style in lines[:height]]


def once(jobs: Jobs, metrics: Mapping[str, Sequence[str]], width: int | None) -> None:
    """Prints the view."""
    jobs.refresh()
    for line in frame(jobs, metrics, time.time(), width):
        print(line.text)


def watch(jobs: Jobs, metrics: Mapping[str, Sequence[str]]) -> None:
    """Shows the view until Ctrl-C, and leaves its last state on the screen."""
    last: list[Line] = []
    with contextlib.suppress(KeyboardInterrupt), _Screen() as screen:
        while True:
            jobs.refresh()
            size = shutil.get_terminal_size()
            last = frame(jobs, metrics, time.time(), size.columns, size.lines)
            screen.draw(last)
            time.sleep(INTERVAL)
    for line in last:
        print(line.text)


class _Screen:
    """The terminal's other screen, without a cursor; whatever ends it, both come back."""

    def __init__(self) -> None:
        self._plain = bool(os.environ.get("NO_COLOR"))
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Screen:
        for number, handler in (
            (signal.SIGTERM, _leave),
            (signal.SIGHUP, _leave),
            (signal.SIGTSTP, self._pause),
        ):
            self._before[number] = signal.signal(number, handler)
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop this
        self._close()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def draw(self, lines: Sequence[Line]) -> None:
        """Shows lines in place of those before."""
        shown = []
        for text, style in lines:
            code = "" if self._plain else _STYLES[style]
            shown.append(f"{code}{text}\x1b[0m\x1b[K" if code else f"{text}\x1b[K")
        _write("\x1b[H" + "\r\n".join(shown) + "\x1b[J")

    def _open(self) -> None:
        _write("\x1b[?1049h\x1b[?25l\x1b[2J")

    def _close(self) -> None:
        _write("\x1b[?25h\x1b[?1049l")

    def _pause(self, number: int, stack: FrameType | None) -> None:
        """Ctrl-Z: gives the terminal back until the shell goes on with it."""
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()


def _leave(number: int, stack: FrameType | None) -> None:
    sys.exit(128 + number)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _summary(running: int, silent: int, ended: int, now: float) -> str:
    parts = [f"{running} running" if running else "nothing is running"]
    if silent:
        parts.append(f"{silent} without a sign of life")
    if ended:
        parts.append(f"{ended} ended meanwhile")
    return f"{', '.join(parts)} · {time.strftime('%H:%M:%S', time.gmtime(now))} UTC"


def _cells(job: Job, metrics: Mapping[str, Sequence[str]], now: float) -> dict[str, str]:
    silent, share = job.silent(now), job.share
    told = job.metric(metrics.get(job.operation, ()))
    speed, left = job.steps_per_second, job.left(now)
    waiting = "" if left is None else _clock(left)
    if silent >= STALE:
        waiting = f"silent {_clock(silent)}"
    return {
        "run": job.run[:8],
        "operation": job.operation + (" batch" if job.is_batch else ""),
        "label": job.label,
        "bar": "" if share is None else _bar(share),
        "%": "" if share is None else f"{int(100 * share)} %",
        "done": _done(job),
        "steps/s": "" if speed is None else terminal.number(speed, 3),
        "metric": f"{terminal.cut(told[0], 16)} {terminal.number(told[1])}"
        if told
        else _begun(job),
        "left": waiting,
        "last sign": f"{_clock(silent)} ago" if job.sign else "",
    }


def _clock(seconds: float) -> str:
    """Returns "0:07", "12:30" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(share: float) -> str:
    full = int(BAR * share)
    return "#" * full + "." * (BAR - full)


def _done(job: Job) -> str:
    if job.total <= 0:
        return ""
    return f"{terminal.number(job.done)}/{terminal.number(job.total)} {job.unit}"


def _begun(job: Job) -> str:
    """What there is to say of a job without metrics."""
    return f"{terminal.number(job.done)} trials done" if job.is_batch else "starting"


def _table(cells: Sequence[dict[str, str]], width: int | None) -> list[str]:
    names = list(cells[0])
    cells = [
        {n: terminal.cut(terminal.clean(c), _LONGEST.get(n, 60)) for n, c in each.items()}
        for each in cells
    ]
    for dropped in (None, *_DROPPED):
        names = [name for name in names if name != dropped]
        rows = [[each[name] for name in names] for each in cells]
        made = terminal.table(names, rows, right=("%", "steps/s", "left", "last sign"))
        if width is None or max(map(terminal.width, made)) <= width:
            return made
    return terminal.table(names, rows, right=("%", "left"), cells=width)


def _end_line(job: Job, metrics: Mapping[str, Sequence[str]]) -> Line:
    status, reason, ended = job.status
    told = job.metric(metrics.get(job.operation, ()))
    parts = [f"{job.run[:8]}  {terminal.clean(job.operation)}  {status}"]
    if reason:
        parts.append(terminal.clean(reason))
    elif told:
        parts.append(f"{terminal.clean(told[0])} {terminal.number(told[1])}")
    if ended and job.begun:
        parts.append(f"after {terminal.duration((ended - job.begun) / 1000)}")
    return Line("  ".join(parts), "good" if status == "FINISHED" else "bad")
