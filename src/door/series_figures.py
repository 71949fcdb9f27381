"""Figures of a series of tasks, from arrays alone: the same bytes for the same data.

Readable on a white page and on a dark one: no background, grey text, no pale colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#808080"
# Okabe and Ito's colours without black and yellow, which vanish on one of the two pages; orange and sky
# blue are darker than theirs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08600", "#3897D3")


@dataclass(frozen=True)
class Course:
    """How success went in one series.

    Attributes:
        ends: [N] updates of the series at the ends of the tasks.
        curves: of each task, in the order of learning: updates of the series, and success there.
    """

    ends: Sequence[float]
    curves: Sequence[tuple[Sequence[float], Sequence[float]]]


def over_series(path: Path, tasks: Sequence[str], courses: Sequence[Course]) -> None:
    """Draws the success on every task over the whole series, a panel each, its own training shaded.

    Each task's training is equally wide, so that series of several seeds lie over one another.

    Args:
        path: SVG to write.
        tasks: N names, in the order of learning.
        courses: of each seed, a line in each panel.
    """
    count = len(tasks)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for j, (panel, task) in enumerate(zip(panels, tasks, strict=True)):
            colour = COLOURS[j % len(COLOURS)]
            panel.axvspan(j, j + 1, color=colour, alpha=0.2, linewidth=0)
            for course in courses:
                times, success = course.curves[j]
                x = np.interp(times, [0, *course.ends], range(count + 1))
                panel.plot(x, 100 * np.asarray(success), color=colour, linewidth=1.3, alpha=0.9)
            for end in range(1, count):
                panel.axvline(end, color=GREY, linewidth=0.5)
            panel.set_ylabel(f"{j} {task}", rotation=0, ha="right", va="center")
            panel.set(ylim=(-6, 106), yticks=(0, 50, 100))
            panel.tick_params(axis="y", labelsize=7)
            panel.tick_params(axis="x", length=0)
            panel.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.5)
            panel.spines[["top", "right"]].set_visible(False)
        lengths = np.array([np.diff([0, *course.ends]) for course in courses]).astype(int)
        told = [_span(own) for own in lengths.T]
        panels[-1].set_xticks(np.arange(count) + 0.5, [f"{n} updates" for n in told], fontsize=7)
        panels[-1].set_xlim(0, count)
        lines = f", a line for each of {len(courses)} seeds" if len(courses) > 1 else ""
        panels[0].set_title(f"success [%]; shaded: the task's own training{lines}", fontsize=9)

    _drawn(path, (7.5, 0.7 * count + 0.8), draw)


def _span(lengths: np.ndarray) -> str:
    low, high = lengths.min(), lengths.max()
    return f"{low}" if low == high else f"{low}–{high}"


def matrix(path: Path, tasks: Sequence[str], success: np.ndarray) -> None:
    """Draws success after learning each task (from above) on each task (across) as a heat map.

    Args:
        path: SVG to write.
        tasks: N names, in the order of learning.
        success: [N, N] rates.
    """
    from matplotlib import colormaps

    count = len(tasks)
    colours = colormaps["viridis"].resampled(32)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = np.arange(count + 1) - 0.5
        mesh = axes.pcolormesh(edges, edges, 100 * success, vmin=0, vmax=100, cmap=colours)
        bar = figure.colorbar(mesh, ax=axes, label="success [%]")
        bar.outline.set_visible(False)  # type: ignore[operator]
        for (i, j), rate in np.ndenumerate(success):
            ink = "#111111" if _luminance(colours(rate)[:3]) > 0.18 else "#ffffff"
            axes.text(j, i, f"{100 * rate:.0f}", color=ink, ha="center", va="center")
        axes.plot(*_staircase(count), color=COLOURS[1], linewidth=1.2)
        axes.set_xticks(range(count), tasks, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(count), tasks)
        axes.set(xlabel="success on", ylabel="after learning")
        axes.yaxis.set_inverted(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    _drawn(path, (0.7 * count + 2.4, 0.5 * count + 1.6), draw)


def _staircase(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The line between the tasks that are learned and those that are not yet."""
    corners = np.repeat(np.arange(count + 1) - 0.5, 2)
    return corners[2:], corners[1:-1]


def _drawn(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(ink, GREY) | {
        "svg.hashsalt": "door",
        "svg.fonttype": "none",
        "font.size": 9,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        metadata = {"Date": None, "Creator": None}
        figure.savefig(path, format="svg", transparent=True, metadata=metadata)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of sRGB shares (WCAG 2.1): black has more contrast than white above 0.18."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
