"""Figures of agents, from arrays alone: the same bytes for the same data.

Readable on a white page and on a dark one: no background, grey text, no pale colour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#808080"
# Okabe and Ito's colours without black and yellow, which vanish on one of the two pages; orange and sky
# blue are darker than theirs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08600", "#3897D3")


@dataclass(frozen=True)
class Chain:
    """How stages were learned one after the other.

    Attributes:
        ends: Environment steps at which each stage ended, by name, in order.
        success: Environment steps and the validation's success rate then.
        lr: Environment steps and Adam's step size then.
    """

    ends: Mapping[str, float]
    success: tuple[Sequence[float], Sequence[float]]
    lr: tuple[Sequence[float], Sequence[float]]


def gate(path: Path, experts: Sequence[str], episodes: Mapping[str, np.ndarray]) -> None:
    """Draws what a gate gave its experts over one episode of each verb.

    Args:
        path: SVG to write.
        experts: K names.
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
        figure.legend(*names, loc="outside right center", frameon=False, title="expert")

    _drawn(path, (2.1 * len(episodes) + 1.2, 2.6), draw)


def matrix(path: Path, rows: Sequence[str], columns: Sequence[str], success: np.ndarray) -> None:
    """Draws success rates as a heat map.

    Args:
        path: SVG to write.
        rows: R names, from above.
        columns: C names.
        success: Rates, float [R, C]; NaN where there is none.
    """
    from matplotlib import colormaps

    colours = colormaps["viridis"].resampled(32)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = [np.arange(len(names) + 1) - 0.5 for names in (columns, rows)]
        mesh = axes.pcolormesh(*edges, 100 * success, vmin=0, vmax=100, cmap=colours)
        bar = figure.colorbar(mesh, ax=axes, label="success [%]")
        bar.outline.set_visible(False)  # type: ignore[operator]
        for (i, j), rate in np.ndenumerate(success):
            if not np.isnan(rate):
                # Black has more contrast than white on the colours from green to yellow.
                ink = "#111111" if rate > 0.45 else "#ffffff"
                axes.text(j, i, f"{100 * rate:.1f}", color=ink, ha="center", va="center")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.xaxis.tick_top()
        axes.yaxis.set_inverted(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    _drawn(path, (0.75 * len(columns) + 1.9, 0.36 * len(rows) + 0.7), draw)


def chain(path: Path, found: Chain) -> None:
    """Draws success over a chain of stages, with the learning rate under it."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        steps, rates = found.success
        above.plot(
            np.asarray(steps) / 1e6, 100 * np.asarray(rates), color=COLOURS[0], linewidth=1.3
        )
        above.set(ylabel="success [%]", ylim=(0, 102))
        steps, sizes = found.lr
        below.plot(np.asarray(steps) / 1e6, sizes, color=COLOURS[1], linewidth=1.3)
        below.set(yscale="log", ylabel="learning rate", xlabel="environment steps [M]")
        begin = 0.0
        for name, end in found.ends.items():
            for panel in (above, below):
                panel.axvline(end / 1e6, color=GREY, linewidth=0.6, linestyle=":")
            above.text((begin + end) / 2e6, 3, name, ha="center", va="bottom")
            begin = end
        above.set_xlim(0, begin / 1e6)
        for panel in (above, below):
            _dress(panel)

    _drawn(path, (max(4.5, 1.1 * len(found.ends)), 3.6), draw)


def _dress(panel: Axes) -> None:
    panel.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)


def _drawn(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(ink, GREY) | {
        "svg.hashsalt": "skills",
        "svg.fonttype": "none",
        "font.size": 9,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        metadata = {"Date": None, "Creator": None}
        figure.savefig(path, format="svg", transparent=True, metadata=metadata)
