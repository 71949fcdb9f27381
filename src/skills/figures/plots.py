"""Figures of agents from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runcatalog.model.statistics import wilson
from runcatalog.plots import labels, style
from runcatalog.plots.style import BLUE, COLOURS, GREY, VERMILION, drawn, dress, heat_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chain:
    """Learning curves of consecutive stages.

    Attributes:
        ends: Environment steps at which each stage ended, by name, in order.
        success: Environment steps, and the success rates of the validations.
        lr: Environment steps, and Adam's step sizes.
        episodes: Number of episodes of a validation; 0 if it is not known.
    """

    ends: Mapping[str, float]
    success: tuple[Sequence[float], Sequence[float]]
    lr: tuple[Sequence[float], Sequence[float]]
    episodes: int = 0


def gate(path: Path, experts: Sequence[str], episodes: Mapping[str, np.ndarray]) -> None:
    """Draw the gate's weights over one episode of every verb.

    Args:
        path: SVG to write.
        experts: Names of the K experts.
        episodes: Weights by verb, float [steps, K].
    """

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(episodes), sharey=True, squeeze=False)[0]
        for panel, (verb, weights) in zip(panels, episodes.items(), strict=True):
            edges = np.arange(len(weights) + 1)
            heights = np.concatenate([weights, weights[-1:]]).T
            panel.stackplot(
                edges, 100 * heights, colors=COLOURS, labels=experts, step="post", linewidth=0
            )
            panel.set(xlim=(0, len(weights)), ylim=(0, 100), title=verb.upper())
            panel.set_xlabel("step of the episode")
            panel.spines[:].set_visible(False)
        panels[0].set_ylabel("weight of each expert [%]")
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside right center", title="expert")

    drawn(path, (2.1 * len(episodes) + 1.2, 2.6), draw, "skills")


def matrix(path: Path, rows: Sequence[str], columns: Sequence[str], success: np.ndarray) -> None:
    """Draw success rates as a heat map.

    Args:
        path: SVG to write.
        rows: Names of the R rows, from the top.
        columns: Names of the C columns.
        success: Rates, float [R, C]; NaN for empty cells.
    """

    def draw(figure: Figure) -> None:
        axes = heat_map(figure, success, digits=1)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.xaxis.tick_top()

    drawn(path, (0.75 * len(columns) + 1.9, 0.36 * len(rows) + 0.7), draw, "skills")


def chain(path: Path, curves: Chain) -> None:
    """Draw success over a chain of stages, and the learning rate below."""
    # A short stage beside long ones has no room for its name, which then stands in the row above.
    ends = [end / 1e6 for end in curves.ends.values()]
    middles = [(begin + end) / 2 for begin, end in pairwise([0, *ends])]
    rows = rows_of(middles, [0.022 * ends[-1] * len(name) for name in curves.ends])

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        steps, rates = curves.success
        above.plot(np.asarray(steps) / 1e6, 100 * np.asarray(rates), color=BLUE, linewidth=1.3)
        if n := curves.episodes:
            ends_of_95 = np.array([wilson(rate * n, n) for rate in rates])
            style.band(above, np.asarray(steps) / 1e6, *100 * ends_of_95.T, BLUE)
            key = style.band_key(f"95 % interval of {n} validation episodes")
            above.legend(handles=[key], loc="lower right")
        above.set(ylabel="success [%]", ylim=(0, 102))
        steps, sizes = curves.lr
        below.plot(np.asarray(steps) / 1e6, sizes, color=VERMILION, linewidth=1.3)
        below.set(yscale="log", ylabel="learning rate", xlabel="environment steps [M]")
        labels.logarithmic(below, upright=True)
        below.set_yticks([min(sizes), max(sizes)])
        for name, middle, row, end in zip(curves.ends, middles, rows, ends, strict=True):
            for panel in (above, below):
                panel.axvline(end, color=GREY, linewidth=0.6, linestyle=":")
            above.annotate(
                name, (middle, 1), (0, 3 + 11 * row), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="bottom",
            )  # fmt: skip
        above.set_xlim(0, ends[-1])
        for panel in (above, below):
            dress(panel)

    drawn(path, (min(style.WIDTH, max(5.5, 1.1 * len(curves.ends))), 3.8), draw, "skills")


def rows_of(middles: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Return the lowest row of each text in which it overlaps no earlier one.

    Args:
        middles: Centre of each text, ascending.
        widths: Width of each, in the same unit.
    """
    ends: list[float] = []  # right end of the last text of a row
    rows = []
    for middle, width in zip(middles, widths, strict=True):
        row = next((r for r, end in enumerate(ends) if end <= middle - width / 2), len(ends))
        ends[row : row + 1] = [middle + width / 2]
        rows.append(row)
    return rows
