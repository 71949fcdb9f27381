"""Figures of a series of tasks, from arrays alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runcatalog.plots.palette import Palette
from runcatalog.plots.style import GREY, VERMILION, drawn, dress, heat_map, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SeriesCurves:
    """Learning curves of all tasks over one series.

    Attributes:
        ends: [N] updates of the series at the ends of the tasks.
        curves: Per task, in the order of learning: updates of the series, and success there.
    """

    ends: Sequence[float]
    curves: Sequence[tuple[Sequence[float], Sequence[float]]]


def success_curves(
    path: Path,
    tasks: Sequence[str],
    seeds: Sequence[SeriesCurves],
    palette: Palette | None = None,
) -> None:
    """Draw the success on every task over the whole series, a panel per task; its own training is shaded.

    All trainings have the same width, so that the lines of several seeds can be compared.

    Args:
        path: SVG to write.
        tasks: N names, in the order of learning.
        seeds: One series per seed, a line in every panel.
        palette: The project's colours.
    """
    count = len(tasks)
    colours = (palette or Palette()).colours_of(tasks)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for j, (panel, task) in enumerate(zip(panels, tasks, strict=True)):
            colour = colours[task]
            panel.axvspan(j, j + 1, color=colour, alpha=0.2, linewidth=0)
            for seed in seeds:
                times, success = seed.curves[j]
                x = np.interp(times, [0, *seed.ends], range(count + 1))
                series(panel, x, 100 * np.asarray(success), task, color=colour, linewidth=1.3)
            for end in range(1, count):
                panel.axvline(end, color=GREY, linewidth=0.5)
            panel.set_ylabel(f"{j} {task}", rotation=0, ha="right", va="center")
            panel.set(ylim=(-6, 106), yticks=(0, 50, 100))
            panel.tick_params(axis="y", labelsize=8)
            panel.tick_params(axis="x", length=0)
            dress(panel)
        lengths = np.array([np.diff([0, *seed.ends]) for seed in seeds]).astype(int)
        labels = [f"{_range_text(updates)} updates" for updates in lengths.T]
        panels[-1].set_xticks(np.arange(count) + 0.5, labels, fontsize=8)
        panels[-1].set_xlim(0, count)
        lines = f", a line for each of {len(seeds)} seeds" if len(seeds) > 1 else ""
        panels[0].set_title(f"success [%]; shaded: the task's own training{lines}")

    drawn(path, (7.5, 0.7 * count + 0.8), draw, "door")


def _range_text(lengths: np.ndarray) -> str:
    low, high = lengths.min(), lengths.max()
    return f"{low}" if low == high else f"{low}–{high}"


def matrix(path: Path, tasks: Sequence[str], success: np.ndarray) -> None:
    """Draw the success after learning a task (rows) on all tasks (columns) as a heat map.

    Args:
        path: SVG to write.
        tasks: N names, in the order of learning.
        success: [N, N] rates.
    """
    count = len(tasks)

    def draw(figure: Figure) -> None:
        axes = heat_map(figure, success)
        label = "below the line: tasks learned so far"
        axes.plot(*_staircase(count), color=VERMILION, linewidth=1.5, label=label)
        figure.legend(loc="outside upper center")
        axes.set_xticks(range(count), tasks, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(count), tasks)
        axes.set(xlabel="success on", ylabel="after learning")

    drawn(path, (0.7 * count + 2.4, 0.5 * count + 1.8), draw, "door")


def _staircase(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of the line between the tasks that are learned and those that are not yet."""
    corners = np.repeat(np.arange(count + 1) - 0.5, 2)
    return corners[2:], corners[1:-1]
