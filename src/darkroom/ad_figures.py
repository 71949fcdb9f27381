"""Figures of in-context learning, from arrays alone: the same bytes for the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.ad_scores import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#808080"  # of text and lines: readable on a white page and on a dark one
_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")


def in_context(
    path: Path, lines: Sequence[Line], source: tuple[np.ndarray, np.ndarray] | None = None
) -> None:
    """Draws normalised returns by episode, and by environment step beside the source agents'.

    Args:
        path: SVG to write.
        lines: Each with its interval.
        source: Environment steps of a task, and the mean normalised return of its agent then.
    """
    figure = _figure((10, 3.6))
    left, right = figure.subplots(1, 2)
    for colour, line in zip(COLOURS, lines, strict=False):
        for axes, x in ((left, np.arange(1, len(line.curve) + 1)), (right, line.steps)):
            axes.fill_between(x, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(x, line.curve, color=colour, linewidth=1.5, label=line.label)
    if source is not None:
        right.plot(*source, color=GREY, linewidth=1.5, label="source agents")
    _ends(left, "episode in the context")
    _ends(right, "environment steps of a task")
    right.set_xscale("log")
    right.legend(loc="upper left", fontsize=7)
    _save(figure, path)


def by_goal(
    path: Path, rooms: Mapping[int, np.ndarray], marked: Mapping[int, Sequence[int]] | None = None
) -> None:
    """Draws a room of each size with the normalised return at its goals.

    Args:
        path: SVG to write.
        rooms: Value of each cell by size, float [size^2]; NaN where there is none.
        marked: Goals with a dot, by size.
    """
    figure = _figure((3.2 * len(rooms) + 0.6, 3.2))
    panels = figure.subplots(1, len(rooms), squeeze=False)[0]
    image = None
    for axes, (size, values) in zip(panels, sorted(rooms.items()), strict=True):
        image = axes.imshow(values.reshape(size, size), cmap="viridis", vmin=0, vmax=1)
        rows, columns = np.divmod(np.asarray((marked or {}).get(size, ()), int), size)
        axes.plot(columns, rows, "o", color="white", markeredgecolor="black", markersize=4)
        axes.set_title(f"{size} × {size}", fontsize=9)
        axes.set(xlabel="column", ylabel="row")
    figure.colorbar(image, ax=list(panels), shrink=0.8, label="normalised return")
    _save(figure, path)


def bars(path: Path, shares: Mapping[str, np.ndarray], label: str) -> None:
    """Draws a bar with its points for each name.

    Args:
        path: SVG to write.
        shares: Values of several runs, float [n], by name.
        label: Of the axis.
    """
    figure = _figure((7, 0.35 * len(shares) + 1))
    axes = figure.subplots()
    for index, values in enumerate(shares.values()):
        axes.barh(index, values.mean(), color=COLOURS[0], alpha=0.5)
        axes.plot(values, np.full(len(values), index), ".", color=COLOURS[1])
    axes.set_yticks(range(len(shares)), list(shares), fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel=label, xlim=(min(0, *map(np.min, shares.values())), 1.02))
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


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
    axes.grid(alpha=0.3)


def _figure(size: tuple[float, float]) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "darkroom"
    matplotlib.rcParams.update(dict.fromkeys(_INK, GREY) | {"legend.frameon": False})
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None}, transparent=True)
