"""Figures of in-context learning, from arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from darkroom.distillation.scores import Line
from runcatalog.plots.style import COLOURS, GREY, dress, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STROKES = ("-", ":", "--", "-.")


def in_context(
    path: Path, lines: Sequence[Line], source: tuple[np.ndarray, np.ndarray] | None = None
) -> None:
    """Draws normalised returns by episode, and by environment step beside the source agents'.

    Args:
        path: SVG to write.
        lines: Each with its interval.
        source: Environment steps of a task, and the mean normalised return of its agent then.
    """
    # A colour for each size, a stroke for each kind of tasks; beside the figure there is room for ten of them.
    names = [line.label.partition(", ")[::2] for line in lines]
    rooms = [*dict.fromkeys(room for room, _ in names)]
    kinds = [*dict.fromkeys(kind for _, kind in names)]
    with sheet(path, (11, 3.6), "darkroom") as figure:
        left, right = figure.subplots(1, 2)
        for (room, kind), line in zip(names, lines, strict=True):
            colour = COLOURS[rooms.index(room) % len(COLOURS)]
            style = STROKES[kinds.index(kind) % len(STROKES)]
            for axes, x in ((left, np.arange(1, len(line.curve) + 1)), (right, line.steps)):
                axes.fill_between(x, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
                axes.plot(x, line.curve, style, color=colour, linewidth=1.5, label=line.label)
        if source is not None:
            right.plot(*source, color=GREY, linewidth=1.5, label="source agents")
        _ends(left, "episode in the context")
        _ends(right, "environment steps of a task")
        right.set_xscale("log")
        right.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=7)


def by_goal(
    path: Path, rooms: Mapping[int, np.ndarray], marked: Mapping[int, Sequence[int]] | None = None
) -> None:
    """Draws a room of each size with the normalised return at its goals.

    Args:
        path: SVG to write.
        rooms: Value of each cell by size, float [size^2]; NaN where there is none.
        marked: Goals with a dot, by size.
    """
    with sheet(path, (3.2 * len(rooms) + 0.6, 3.2), "darkroom") as figure:
        panels = figure.subplots(1, len(rooms), squeeze=False)[0]
        image = None
        for axes, (size, values) in zip(panels, sorted(rooms.items()), strict=True):
            image = axes.imshow(values.reshape(size, size), cmap="viridis", vmin=0, vmax=1)
            rows, columns = np.divmod(np.asarray((marked or {}).get(size, ()), int), size)
            axes.plot(columns, rows, "o", color="white", markeredgecolor="black", markersize=4)
            axes.set_title(f"{size} × {size}", fontsize=9)
            axes.set(xlabel="column", ylabel="row")
        figure.colorbar(image, ax=list(panels), shrink=0.8, label="normalised return")


def paths(path: Path, size: int, goals: np.ndarray, cells: np.ndarray) -> None:
    """Draws where agents went, a row for each and a column for each episode.

    Args:
        path: SVG to write.
        size: Side of the room.
        goals: Cells, int [T].
        cells: Those of each episode in their order, int [T, episodes, steps + 1]; -1 behind its end.
    """
    agents, episodes = cells.shape[:2]
    # Ways there and back lie beside each other, rooms a cell apart.
    aside, apart = np.linspace(-0.2, 0.2, cells.shape[2]), size + 1
    with sheet(path, (0.5 * episodes, 0.5 * agents + 0.4), "darkroom") as figure:
        axes = figure.subplots()
        for agent, episode in np.ndindex(agents, episodes):
            right, down = apart * episode, apart * agent
            walked = cells[agent, episode][cells[agent, episode] >= 0]
            rows, columns = np.divmod(walked, size)
            row, column = divmod(int(goals[agent]), size)
            shown = aside[: len(walked)]
            walls = np.array([0, size, size, 0, 0]) - 0.5
            axes.plot(right + walls, down + np.roll(walls, 1), color=GREY, linewidth=0.5)
            axes.plot(right + columns + shown, down + rows + shown, color=COLOURS[0], linewidth=1)
            axes.plot(right + column, down + row, "*", color=COLOURS[1], markersize=5)
        axes.set(xlim=(-1, apart * episodes - 1), ylim=(apart * agents - 1, -1), yticks=())
        axes.set_xticks(apart * np.arange(episodes) + size // 2, range(1, episodes + 1), fontsize=8)
        axes.set(aspect="equal", xlabel="episode in the context; star: the goal")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


def bars(path: Path, plays: Mapping[str, Sequence[tuple[float, float]]], label: str) -> None:
    """Draws a bar, the weighted mean, with its points for each name; a point's area is its weight.

    Args:
        path: SVG to write.
        plays: Values with their weights by name.
        label: Of the axis.
    """
    with sheet(path, (7, 0.35 * len(plays) + 1), "darkroom") as figure:
        axes = figure.subplots()
        for index, each in enumerate(plays.values()):
            values, weights = np.array(each).T
            mean = np.average(values, weights=weights)
            axes.barh(index, mean, color=COLOURS[0], alpha=0.5)
            axes.scatter(values, np.full(len(values), index), 3 * weights, COLOURS[1], zorder=3)
            axes.annotate(f"{mean:.2f}", (0.01, index), color=GREY, fontsize=8, va="center")
        axes.set_yticks(range(len(plays)), list(plays), fontsize=8)
        axes.invert_yaxis()
        lowest = min(value for each in plays.values() for value, _ in each)
        axes.set(xlabel=label, xlim=(min(0, lowest), 1.02))
        axes.grid(axis="x", alpha=0.3)


def _ends(axes: Axes, label: str) -> None:
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1)
    axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        "optimal", (0.99, 1.01), xycoords=("axes fraction", "data"), ha="right", fontsize=7
    )
    axes.annotate(
        "random", (0.99, 0.01), xycoords=("axes fraction", "data"), ha="right", fontsize=7
    )
    axes.set(xlabel=label, ylabel="normalised return", ylim=(-0.08, 1.08))
    dress(axes)
