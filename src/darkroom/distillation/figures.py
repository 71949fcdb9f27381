"""Figures of in-context learning, drawn from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from darkroom.distillation.scores import LearningCurve
from darkroom.rooms.grid import NO_KEY, key_and_goal, needs_key
from runcatalog.plots import style
from runcatalog.plots.labels import logarithmic
from runcatalog.plots.palette import Palette
from runcatalog.plots.style import BLUE, GREY, VERMILION, dress, sheet

BOUNDS = {"optimal actions: 1": 1.0, "random actions: 0": 0.0}  # of the normalised return


def in_context(
    path: Path,
    curves: Sequence[LearningCurve],
    source: tuple[np.ndarray, np.ndarray] | None = None,
    explorer: LearningCurve | None = None,
    palette: Palette | None = None,
    over: str = "tasks",
) -> None:
    """Draw normalised returns by episode, and by environment step with the source agents' curve.

    Args:
        path: SVG to write.
        curves: Curves with their intervals; up to ten have room in the legend.
        source: Environment steps of a task, and the mean normalised return of the source agents.
        explorer: Curve of scripted explorers.
        palette: The project's colours and dashes.
        over: What the intervals are over.
    """
    from matplotlib.lines import Line2D

    # One colour per text before a comma, such as a size of rooms; one dash per text after it, such as a kind of tasks.
    names = [curve.label.partition(", ")[::2] for curve in curves]
    palette = palette or Palette()
    colours = palette.colours_of(room for room, _ in names)
    dashes = palette.dashes_of(kind for _, kind in names)
    with sheet(path, (style.WIDTH, 3.4), "darkroom") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        entries = []
        for (room, kind), curve in zip(names, curves, strict=True):
            stroke = {"color": colours[room], "linestyle": dashes[kind], "linewidth": 1.5}
            entries.append(Line2D([], [], **stroke, label=curve.label))
            for axes, x in ((left, np.arange(1, len(curve.values) + 1)), (right, curve.steps)):
                style.band(axes, x, curve.low, curve.high, colours[room])
                style.series(axes, x, curve.values, room, **stroke)
        entries.append(style.band_key(f"95 % interval over {over}"))
        if source is not None:
            right.plot(*source, color=GREY, linewidth=1.8)
            entries.append(Line2D([], [], color=GREY, linewidth=1.8, label="source agents"))
        if explorer is not None:
            stroke = {"color": "black", "linestyle": ":", "linewidth": 1.5}
            left.plot(np.arange(1, len(explorer.values) + 1), explorer.values, **stroke)
            right.plot(explorer.steps, explorer.values, **stroke)
            entries.append(Line2D([], [], **stroke, label=explorer.label))
        for axes in (left, right):
            style.references(axes, BOUNDS)
            axes.set(ylim=(-0.08, 1.08))
            dress(axes)
        left.set(xlabel="episode in the context", ylabel="normalised return")
        right.set(xlabel="environment steps of a task", xscale="log")
        logarithmic(right)
        entries += style.reference_keys(BOUNDS)
        figure.legend(handles=entries, loc="outside right upper")


def by_goal(
    path: Path, rooms: Mapping[int, np.ndarray], marked: Mapping[int, Sequence[int]] | None = None
) -> None:
    """Draw a room per size with the normalised return at its goals.

    Args:
        path: SVG to write.
        rooms: Value of every cell by size, float [size^2]; NaN without a value.
        marked: Cells with a dot, by size.
    """
    width = min(3.2 * len(rooms) + 0.6, style.WIDTH)
    with sheet(path, (width, 3.2), "darkroom") as figure:
        panels = figure.subplots(1, len(rooms), squeeze=False)[0]
        image = None
        for axes, (size, values) in zip(panels, sorted(rooms.items()), strict=True):
            image = axes.imshow(values.reshape(size, size), cmap="viridis", vmin=0, vmax=1)
            rows, columns = np.divmod(np.asarray((marked or {}).get(size, ()), int), size)
            axes.plot(columns, rows, "o", color="white", markeredgecolor="black", markersize=4)
            axes.set_title(f"{size} × {size}")
            axes.set(xlabel="column", ylabel="row")
        figure.colorbar(image, ax=list(panels), shrink=0.8, label="normalised return")


def paths(path: Path, size: int, tasks: np.ndarray, cells: np.ndarray) -> None:
    """Draw the paths of agents, a row per agent and a column per episode.

    Args:
        path: SVG to write.
        size: Side of the room.
        tasks: Tasks, int [T].
        cells: Cells of every episode in their order, int [T, episodes, steps + 1]; -1 after its end.
    """
    agents, episodes = cells.shape[:2]
    # Ways there and back are drawn side by side, rooms a cell apart.
    offsets, spacing = np.linspace(-0.2, 0.2, cells.shape[2]), size + 1
    side = min(0.5, style.WIDTH / episodes)
    with sheet(path, (side * episodes, side * agents + 0.5), "darkroom") as figure:
        axes = figure.subplots()
        for agent, episode in np.ndindex(agents, episodes):
            right, down = spacing * episode, spacing * agent
            walked = cells[agent, episode][cells[agent, episode] >= 0]
            rows, columns = np.divmod(walked, size)
            key, goal = key_and_goal(int(tasks[agent]), size)
            row, column = divmod(goal, size)
            offset = offsets[: len(walked)]
            walls = np.array([0, size, size, 0, 0]) - 0.5
            axes.plot(right + walls, down + np.roll(walls, 1), color=GREY, linewidth=0.5)
            axes.plot(right + columns + offset, down + rows + offset, color=BLUE, linewidth=1)
            axes.plot(right + column, down + row, "*", color=VERMILION, markersize=5)
            if key != NO_KEY:
                row, column = divmod(key, size)
                axes.plot(right + column, down + row, "o", color="black", markersize=2.5)
        axes.set(
            xlim=(-1, spacing * episodes - 1), ylim=(spacing * agents - 1, -1), yticks=(),
        )  # fmt: skip
        axes.set_xticks(
            spacing * np.arange(episodes) + size // 2, range(1, episodes + 1), fontsize=8
        )
        dot = ", dot: the key" if needs_key(tasks, size).any() else ""
        axes.set(aspect="equal", xlabel=f"episode in the context; star: the goal{dot}")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


def dots(
    path: Path,
    scores: Mapping[str, Sequence[tuple[float, float]]],
    label: str,
) -> None:
    """Draw the values of each name as points, with their range and their weighted mean, also as a number.

    Args:
        path: SVG to write.
        scores: Values with their weights by name; a point's area is its weight.
        label: Label of the axis.
    """
    from matplotlib.lines import Line2D

    with sheet(path, (style.WIDTH, 0.28 * len(scores) + 1.2), "darkroom") as figure:
        axes = figure.subplots()
        ends = []
        for index, points in enumerate(scores.values()):
            values, weights = np.array(points).T
            mean = float(np.average(values, weights=weights))
            if len(values) > 1:
                style.interval(axes, index, min(values), max(values), GREY, flat=True)
            axes.scatter(
                values, np.full(len(values), index), 3 * weights, VERMILION, alpha=0.7, zorder=3,
                linewidth=0,
            )  # fmt: skip
            axes.plot([mean], [index], "D", color=BLUE, markersize=5, zorder=4)
            ends.append(f"{mean:.2f} (n = {len(values)})")
        axes.set_yticks(range(len(scores)), list(scores))
        axes.set(xlabel=label, ylim=(len(scores) - 0.5, -0.5))
        lowest = min(value for points in scores.values() for value, _ in points)
        axes.set_xlim(min(0, lowest), 1.02)
        numbers = axes.secondary_yaxis("right")
        numbers.set_yticks(range(len(scores)), ends)
        numbers.tick_params(length=0)
        numbers.spines[:].set_visible(False)
        dress(axes, "both")
        entries = [
            Line2D(
                [],
                [],
                marker="D",
                linestyle="",
                color=BLUE,
                markersize=5,
                label="mean of n rollouts",
            ),
            style.interval_key("lowest to highest"),
            Line2D([], [], marker="o", linestyle="", color=VERMILION, alpha=0.7, label="a rollout"),
        ]
        figure.legend(handles=entries, loc="outside upper center", ncols=3)
