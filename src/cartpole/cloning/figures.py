"""Figures of behaviour cloning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cartpole.cloning.demonstrations import RESTRICTIONS, UNITS, VARIABLES
from cartpole.policy_gradient.env import MAX_STEPS
from runcatalog.plots.style import COLOURS, GREY, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED, REPORTED, EXCLUDED = COLOURS[0], COLOURS[1], GREY
LOWEST = 1e-4  # share at the bottom of a logarithmic axis


def lifetimes(
    path: Path, histograms: Mapping[str, np.ndarray], reported: Mapping[str, float]
) -> None:
    """Draw histograms of lifetimes, one panel per data set, with the reported share at 500 steps.

    Args:
        path: SVG to write.
        histograms: Shares in bins of ten steps, the last bin for 500, by restriction.
        reported: Reported share at 500 steps, by restriction.
    """
    with _panels(path, len(histograms), 2.0, share_y=True) as (figure, panels):
        for panel, (name, shares) in zip(panels, histograms.items(), strict=True):
            width = MAX_STEPS / (len(shares) - 1)
            edges = width * np.arange(len(shares))
            panel.bar(edges, np.maximum(shares, LOWEST), width, align="edge", color=MEASURED)
            panel.plot(
                [], [], "s", color=MEASURED, label=f"measured {100 * shares[-1]:.1f} % at 500"
            )
            if name in reported:
                label = f"reported {100 * reported[name]:.0f} %"
                panel.plot(MAX_STEPS + width / 2, reported[name], "D", color=REPORTED, label=label)
            panel.set(yscale="log", ylim=(LOWEST, 2), xlim=(0, MAX_STEPS + 2 * width))
            panel.set_title(_words(name), fontsize=9)
            panel.legend(loc="upper left", fontsize=7)
        panels[0].set_ylabel("share of episodes")
        figure.supxlabel("steps until the pole falls", fontsize=9)


def distributions(
    path: Path, by_variable: Mapping[str, np.ndarray], axes: Mapping[str, float], scale: float = 1.0
) -> None:
    """Draw the distributions of state variables; values that a restriction excludes are grey.

    Args:
        path: SVG to write.
        by_variable: Shares in equal bins of [-a, a], by variable.
        axes: a by variable, in its unit.
        scale: Factor of the restrictions' half-widths.
    """
    with _panels(path, len(VARIABLES), 2.3) as (_, panels):
        for panel, (column, variable) in zip(panels, enumerate(VARIABLES), strict=True):
            shares = by_variable[variable]
            edges = np.linspace(-axes[variable], axes[variable], len(shares) + 1)
            panel.stairs(100 * shares, edges, fill=True, color=MEASURED)
            restriction = RESTRICTIONS[variable]
            assert restriction is not None
            kept = restriction.scaled(scale)
            low, high = kept.centre - kept.half_width, kept.centre + kept.half_width
            for left, right in ((edges[0], low), (high, edges[-1])):
                panel.axvspan(left, right, color=EXCLUDED, alpha=0.35, zorder=2)
            panel.set_title(f"{_words(variable)} [{UNITS[column]}]", fontsize=9)
            panel.set_xlim(edges[0], edges[-1])
            panel.set_xlabel(f"kept: {kept}", fontsize=7)
        panels[0].set_ylabel("pairs [%]")


def shares(
    path: Path,
    measured: Mapping[str, Mapping[str, np.ndarray]],
    intervals: Mapping[str, Mapping[str, tuple[float, float]]],
    reported: Sequence[tuple[str, str, Mapping[str, float]]] = (),
) -> None:
    """Draw the shares that reach 500 steps: experts as points, means with intervals, reported values.

    Args:
        path: SVG to write.
        measured: Shares by expert, float64 [K], by restriction, by series.
        intervals: Of the means.
        reported: Marker, label and shares of reported results.
    """
    with _panels(path, 1, 3.6, width=9) as (figure, panels):
        panel, names = panels[0], list(RESTRICTIONS)
        colours = [colour for colour in COLOURS if colour != REPORTED]
        offsets = np.linspace(-0.27, 0.27, len(measured))
        for index, (series, by_name) in enumerate(measured.items()):
            color = colours[index % len(colours)]
            at = np.arange(len(names)) + offsets[index]
            for x, name in zip(at, names, strict=True):
                values = 100 * by_name[name]
                jitter = np.linspace(-0.03, 0.03, len(values))
                panel.plot(x + jitter, np.sort(values), ".", color=color, alpha=0.35, markersize=4)
                low, high = intervals[series][name]
                panel.plot([x, x], [100 * low, 100 * high], color=color, linewidth=2)
            means = [100 * by_name[name].mean() for name in names]
            panel.plot(at, means, "o", color=color, markersize=5, label=series)
        for marker, label, by_name in reported:
            points = [(i, 100 * by_name[name]) for i, name in enumerate(names) if name in by_name]
            panel.plot(*zip(*points, strict=True), marker, color=REPORTED, mfc="none", label=label)
        panel.set_xticks(range(len(names)), [_words(name) for name in names])
        panel.set(ylabel="reach 500 steps [%]", ylim=(-3, 103), xlabel="pairs restricted by")
        panel.grid(axis="y", alpha=0.3)
        figure.legend(loc="outside right upper", fontsize=7)


def labels(
    path: Path, curves: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], target: float
) -> None:
    """Draw survival over the number of labels, one panel per restriction, one line per method.

    Args:
        path: SVG to write.
        curves: Numbers of labels [i] and mean shares [i] by method, by restriction.
        target: Share of a fully successful clone.
    """
    with _panels(path, len(curves), 2.3, share_y=True) as (_, panels):
        for panel, (name, by_method) in zip(panels, curves.items(), strict=True):
            for method, (queried, survived) in by_method.items():
                panel.plot(queried, 100 * survived, marker=".", label=method)
            panel.axhline(100 * target, color="0.5", linestyle=":", linewidth=1)
            panel.set_title(_words(name), fontsize=9)
            panel.set(ylim=(-3, 103), xlabel="labels of the expert")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("reach 500 steps [%]")
        panels[-1].legend(loc="lower right", fontsize=7)


@contextlib.contextmanager
def _panels(
    path: Path, columns: int, height: float, *, width: float = 12, share_y: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    size = (min(width, max(4, 2.5 * columns if columns > 1 else width)), height)
    with sheet(path, size, "cartpole") as figure:
        panels = figure.subplots(1, columns, sharey=share_y, squeeze=False)
        for panel in panels.flat:
            panel.tick_params(labelsize=7)
        yield figure, list(panels.flat)


def _words(name: str) -> str:
    return {"none": "no restriction"}.get(name, name.replace("_", " "))
