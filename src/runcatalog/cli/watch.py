"""Live view of running jobs in the terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runcatalog.cli.job_progress import STALE, Job, Jobs
from runcatalog.text import terminal

INTERVAL = 1.0  # s between frames
BAR = 12  # cells
_ENDED = 4  # a quarter of the lines is for runs that have ended
# Columns in the order in which a narrow terminal loses them.
_DROPPED = ("done", "last sign", "bar", "steps/s", "label", "metric", "operation")
_LONGEST = {"operation": 26, "label": 24, "metric": 26}  # cells
_RIGHT = ("%", "steps/s", "left", "last sign")
_ANY = 1 << 12  # cells of a line where no terminal limits it


def frame(
    jobs: Jobs,
    metrics: Mapping[str, Sequence[str]],
    now: float,
    width: int | None = None,
    height: int | None = None,
) -> RenderableType:
    """Return the view.

    Args:
        jobs: Running and ended jobs.
        metrics: Preferred metrics by operation.
        now: Seconds since the epoch.
        width: Cells of a line; None for any.
        height: Most lines; None for any.
    """
    ended: list[RenderableType] = [_end_line(job, metrics) for job in jobs.ended]
    room = None if height is None else max(1, height - 3)
    if room is not None:
        ended = ended[: max(1, room // _ENDED)] if jobs.running else ended[:room]
        room = max(1, room - len(ended) - bool(ended))
    running = sorted(jobs.running, key=lambda job: job.silent(now) < STALE)
    silent = sum(job.silent(now) >= STALE for job in running)
    parts: list[RenderableType] = [_summary(len(running), silent, len(jobs.ended), now)]
    if running:
        fits = room is None or len(running) <= room
        hidden = 0 if fits else len(running) - max(1, (room or 0) - 1)
        parts.append(_table(running[: len(running) - hidden], metrics, now, width))
        if hidden:
            parts.append(_line(f"… {hidden} more: enlarge the window or use --once"))
    if ended:
        parts += [Text(), *ended]
    return Group(*parts)


def once(jobs: Jobs, metrics: Mapping[str, Sequence[str]], width: int | None) -> None:
    """Print the view."""
    jobs.refresh()
    Console(width=width or _ANY).print(frame(jobs, metrics, time.time(), width))


def watch(jobs: Jobs, metrics: Mapping[str, Sequence[str]]) -> None:
    """Show the view until Ctrl-C, and leave its last state on the screen."""
    view: RenderableType = ""
    with contextlib.suppress(KeyboardInterrupt), _Screen() as screen:
        while True:
            jobs.refresh()
            size = shutil.get_terminal_size()
            view = frame(jobs, metrics, time.time(), size.columns, size.lines)
            with _pauses_deferred():
                screen.update(view, refresh=True)
            time.sleep(INTERVAL)
    Console().print(view)


class _Screen:
    """The terminal's alternate screen without a cursor; both are restored however it ends."""

    def __init__(self) -> None:
        self._live = Live(
            Text(), console=Console(highlight=False), screen=True, auto_refresh=False,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._before: dict[int, object] = {}

    def __enter__(self) -> Live:
        for number, handler in (
            (signal.SIGTERM, _leave),
            (signal.SIGHUP, _leave),
            (signal.SIGTSTP, self._pause),
        ):
            self._before[number] = signal.signal(number, handler)
        with _pauses_deferred():
            self._live.start()
        return self._live

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop this
        with _pauses_deferred():
            self._live.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _pause(self, number: int, stack: FrameType | None) -> None:
        """Ctrl-Z: restore the terminal until the shell resumes the process."""
        console = self._live.console
        with _pauses_deferred():
            console.show_cursor(True)
            console.set_alt_screen(False)
            os.kill(os.getpid(), signal.SIGSTOP)
            console.set_alt_screen(True)
            console.show_cursor(False)
            self._live.refresh()


@contextlib.contextmanager
def _pauses_deferred() -> Iterator[None]:
    """Let Ctrl-Z wait for the end of a block that writes: a write must not begin in the middle of another."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, stack: FrameType | None) -> None:
    sys.exit(128 + number)


def _line(text: str, style: str = "") -> Text:
    """Return text on a single line without control characters, truncated to the available width."""
    return Text(terminal.clean(text), style=style, no_wrap=True, overflow="ellipsis")


def _summary(running: int, silent: int, ended: int, now: float) -> Text:
    parts = [f"{running} running" if running else "nothing is running"]
    if silent:
        parts.append(f"{silent} without a sign of life")
    if ended:
        parts.append(f"{ended} ended meanwhile")
    return _line(f"{', '.join(parts)} · {time.strftime('%H:%M:%S', time.gmtime(now))} UTC", "bold")


def _table(
    shown: Sequence[Job], metrics: Mapping[str, Sequence[str]], now: float, width: int | None
) -> Table:
    """Return a table with a row per job and as many columns as fit."""
    cells = [_cells(job, metrics, now) for job in shown]
    names = [name for name in cells[0] if any(row[name] for row in cells)]
    console = Console(width=_ANY, height=100)
    for dropped in (None, *_DROPPED):
        names = [name for name in names if name != dropped]
        table = Table(box=None, padding=(0, len(terminal.GAP), 0, 0), pad_edge=False)
        for name in names:
            table.add_column(
                _line(name),
                justify="right" if name in _RIGHT else "left",
                min_width=8 if name == "run" else None,
            )
        for job, row in zip(shown, cells, strict=True):
            style = "red" if job.silent(now) >= STALE else ""
            table.add_row(*(row[name] for name in names), style=style)
        if width is None or Measurement.get(console, console.options, table).maximum <= width:
            break
    return table


def _cells(
    job: Job, metrics: Mapping[str, Sequence[str]], now: float
) -> dict[str, RenderableType | None]:
    """Return the cells of a row by column; None for an empty cell."""
    silent, share, speed, left = job.silent(now), job.share, job.steps_per_second, job.left(now)
    metric = job.metric(metrics.get(job.operation, ()))
    texts = {
        "run": job.run[:8],
        "operation": job.operation + (" batch" if job.is_batch else ""),
        "label": job.label,
        "bar": "",
        "%": "" if share is None else f"{int(100 * share)} %",
        "done": _done(job),
        "steps/s": "" if speed is None else terminal.number(speed, 3),
        "metric": _begun(job, now) if metric is None else _metric(*metric),
        "left": "" if left is None else _clock(left),
        "last sign": f"{_clock(silent)} ago" if job.sign else "",
    }
    if silent >= STALE:
        texts["left"] = f"silent {_clock(silent)}"
    cells: dict[str, RenderableType | None] = {
        name: _line(terminal.cut(shown, _LONGEST.get(name, 60))) if shown else None
        for name, text in texts.items()
        for shown in [terminal.clean(text)]
    }
    if share is not None:
        cells["bar"] = ProgressBar(1.0, share, width=BAR)
    return cells


def _clock(seconds: float) -> str:
    """Return "0:07", "12:30" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _metric(name: str, value: float) -> str:
    return f"{terminal.cut(terminal.clean(name), 16)} {terminal.number(value)}"


def _done(job: Job) -> str:
    if job.total <= 0:
        return ""
    return f"{terminal.number(job.done)}/{terminal.number(job.total)} {job.unit}"


def _begun(job: Job, now: float) -> str:
    """State of a job without metrics; a script that records nothing has no others."""
    if job.is_batch:
        return f"{terminal.number(job.done)} trials done"
    if job.has_journal or not job.begun:
        return "starting"
    age = f"running {_clock(max(0.0, now - job.begun / 1000))}"
    return f"{age}, step {job.step}" if job.step else age


def _end_line(job: Job, metrics: Mapping[str, Sequence[str]]) -> Text:
    status, reason, ended = job.status
    metric = job.metric(metrics.get(job.operation, ()))
    parts = [job.run[:8], job.operation, status]
    if reason:
        parts.append(reason)
    elif metric:
        parts.append(f"{metric[0]} {terminal.number(metric[1])}")
    if ended and job.begun:
        parts.append(f"after {terminal.duration((ended - job.begun) / 1000)}")
    text = "  ".join(map(terminal.clean, parts))
    return Text(text, "green" if status == "FINISHED" else "red", no_wrap=True, overflow="ellipsis")
