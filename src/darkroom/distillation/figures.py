"""Figures of in-context learning, drawn from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from darkroom.distillation.scores import LearningCurve
from runcatalog.plots.style import COLOURS, GREY, dress, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STROKES = ("-", ":", "--", "-.")


def in_context(
    path: Path,
    curves: Sequence[LearningCurve],
    source: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Draw normalised returns by episode, and by environment step with the source agents' curve.

    Args:
        path: SVG to write.
        curves: Curves with their intervals; up to ten have room in the legend.
        source: Environment steps of a task, and the mean normalised return of the source agents.
    """
    # One colour per room size, one stroke per kind of tasks.
    names = [curve.label.partition(", ")[::2] for curve in curves]
    rooms = [*dict.fromkeys(room for room, _ in names)]
    kinds = [*dict.fromkeys(kind for _, kind in names)]
    with sheet(path, (11, 3.6), "darkroom") as figure:
        left, right = figure.subplots(1, 2)
        for (room, kind), curve in zip(names, curves, strict=True):
            colour = COLOURS[rooms.index(room) % len(COLOURS)]
            stroke = STROKES[kinds.index(kind) % len(STROKES)]
            for axes, x in ((left, np.arange(1, len(curve.values) + 1)), (right, curve.steps)):
                axes.fill_between(x, curve.low, curve.high, color=colour, alpha=0.25, linewidth=0)
                axes.plot(x, curve.values, stroke, color=colour, linewidth=1.5, label=curve.label)
        if source is not None:
            right.plot(*source, color=GREY, linewidth=1.5, label="source agents")
        _mark_bounds(left, "episode in the context")
        _mark_bounds(right, "environment steps of a task")
        right.set_xscale("log")
        right.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=7)


def by_goal(
    path: Path, rooms: Mapping[int, np.ndarray], marked: Mapping[int, Sequence[int]] | None = None
) -> None:
    """Draw a room per size with the normalised return at its goals.

    Args:
        path: SVG to write.
        rooms: Value of every cell by size, float [size^2]; NaN without a value.
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
    """Draw the paths of agents, a row per agent and a column per episode.

    Args:
        path: SVG to write.
        size: Side of the room.
        goals: Cells, int [T].
        cells: Cells of every episode in their order, int [T, episodes, steps + 1]; -1 after its end.
    """
    agents, episodes = cells.shape[:2]
    # Ways there and back are drawn side by side, rooms a cell apart.
    offsets, spacing = np.linspace(-0.2, 0.2, cells.shape[2]), size + 1
    with sheet(path, (0.5 * episodes, 0.5 * agents + 0.4), "darkroom") as figure:
        axes = figure.subplots()
        for agent, episode in np.ndindex(agents, episodes):
            right, down = spacing * episode, spacing * agent
            walked = cells[agent, episode][cells[agent, episode] >= 0]
            rows, columns = np.divmod(walked, size)
            row, column = divmod(int(goals[agent]), size)
            offset = offsets[: len(walked)]
            walls = np.array([0, size, size, 0, 0]) - 0.5
            axes.plot(right + walls, down + np.roll(walls, 1), color=GREY, linewidth=0.5)
            axes.plot(right + columns + offset, down + rows + offset, color=COLOURS[0], linewidth=1)
            axes.plot(right + column, down + row, "*", color=COLOURS[1], markersize=5)
        axes.set(
            xlim=(-1, spacing * episodes - 1), ylim=(spacing * agents - 1, -1), yticks=(),
        )  # fmt: skip
        axes.set_xticks(
            spacing * np.arange(episodes) + size // 2, range(1, episodes + 1), fontsize=8
        )
        axes.set(aspect="equal", xlabel="episode in the context; star: the goal")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


def bars(path: Path, scores: Mapping[str, Sequence[tuple[float, float]]], label: str) -> None:
    """Draw a bar per name, the weighted mean, with its points; a point's area is its weight.

    Args:
        path: SVG to write.
        scores: Values with their weights by name.
        label: Label of the axis.
    """
    with sheet(path, (7, 0.35 * len(scores) + 1), "darkroom") as figure:
        axes = figure.subplots()
        for index, points in enumerate(scores.values()):
            values, weights = np.array(points).T
            mean = np.average(values, weights=weights)
            axes.barh(index, mean, color=COLOURS[0], alpha=0.5)
            axes.scatter(values, np.full(len(values), index), 3 * weights, COLOURS[1], zorder=3)
            axes.annotate(f"{mean:.2f}", (0.01, index), color=GREY, fontsize=8, va="center")
        axes.set_yticks(range(len(scores)), list(scores), fontsize=8)
        axes.invert_yaxis()
        lowest = min(value for points in scores.values() for value, _ in points)
        axes.set(xlabel=label, xlim=(min(0, lowest), 1.02))
        axes.grid(axis="x", alpha=0.3)


def _mark_bounds(axes: Axes, label: str) -> None:
    """Mark the normalised returns of optimal and random actions, and label the axes."""
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1)
    axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
    for text, height in (("optimal", 1.01), ("random", 0.01)):
        axes.annotate(
            text, (0.99, height), xycoords=("axes fraction", "data"), ha="right", fontsize=7
        )
    axes.set(xlabel=label, ylabel="normalised return", ylim=(-0.08, 1.08))
    dress(axes)
