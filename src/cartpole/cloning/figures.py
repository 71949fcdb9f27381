"""Figures of behaviour cloning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cartpole.cloning.demonstrations import RESTRICTIONS, UNITS, VARIABLES
from cartpole.policy_gradient.env import MAX_STEPS
from runcatalog.plots import style
from runcatalog.plots.palette import Palette
from runcatalog.plots.style import BLUE, GREY, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED, REPORTED, EXCLUDED = BLUE, GREY, GREY
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
    with _panels(path, len(histograms), share_y=True) as (figure, panels):
        for panel, (name, shares) in zip(panels, histograms.items(), strict=True):
            width = MAX_STEPS / (len(shares) - 1)
            edges = width * np.arange(len(shares))
            panel.bar(edges, np.maximum(shares, LOWEST), width, align="edge", color=MEASURED)
            text = f"{100 * shares[-1]:.1f} % at {MAX_STEPS}"
            if name in reported:
                panel.plot(MAX_STEPS + width / 2, reported[name], "D", color=REPORTED, mfc="none")
                text += f"\nreported: {100 * reported[name]:.0f} %"
            panel.set(yscale="log", ylim=(LOWEST, 3), xlim=(0, MAX_STEPS + 3 * width))
            style.percent(panel.yaxis)
            panel.yaxis.set_minor_formatter(lambda share, _: "")
            panel.set_title(_words(name))
            panel.text(0.04, 0.96, text, transform=panel.transAxes, va="top", fontsize=8)
        figure.supylabel("episodes [%]", fontsize=9)
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
    with _panels(path, len(VARIABLES), columns=2) as (figure, panels):
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
            panel.set_xlabel(f"{_words(variable)} [{UNITS[column]}]")
            panel.set_xlim(edges[0], edges[-1])
            panel.set_title(f"kept: {kept}", fontsize=8)
        figure.supylabel("pairs [%]", fontsize=9)


def shares(
    path: Path,
    measured: Mapping[str, Mapping[str, np.ndarray]],
    intervals: Mapping[str, Mapping[str, tuple[float, float]]],
    reported: Sequence[tuple[str, str, Mapping[str, float]]] = (),
    palette: Palette | None = None,
) -> None:
    """Draw the shares that reach 500 steps: experts as points, means with intervals, reported values.

    Args:
        path: SVG to write.
        measured: Shares by expert, float64 [K], by restriction, by series.
        intervals: Of the means.
        reported: Marker, label and shares of reported results.
        palette: The project's colours.
    """
    from matplotlib.lines import Line2D

    with sheet(path, (style.WIDTH, 3.6), "cartpole") as figure:
        panel, names = figure.subplots(), list(RESTRICTIONS)
        colours = (palette or Palette()).colours_of(measured)
        offsets = np.linspace(-0.27, 0.27, len(measured))
        entries = []
        for offset, (name_of_series, by_name) in zip(offsets, measured.items(), strict=True):
            colour = colours[name_of_series]
            at = np.arange(len(names)) + offset
            for x, name in zip(at, names, strict=True):
                values = 100 * by_name[name]
                jitter = np.linspace(-0.03, 0.03, len(values))
                panel.plot(x + jitter, np.sort(values), ".", color=colour, alpha=0.35, markersize=4)
                low, high = intervals[name_of_series][name]
                style.interval(panel, x, 100 * low, 100 * high, colour)
            means = [100 * by_name[name].mean() for name in names]
            mark = {"linestyle": "", "marker": "o", "color": colour, "markersize": 5}
            style.series(panel, at, means, name_of_series, **mark)
            entries.append(Line2D([], [], **mark, label=name_of_series))
        entries.append(style.interval_key("95 % interval of the mean"))
        entries.append(Line2D([], [], linestyle="", marker=".", color=GREY, label="an expert"))
        for marker, label, by_name in reported:
            points = [(i, 100 * by_name[name]) for i, name in enumerate(names) if name in by_name]
            mark = {
                "marker": marker,
                "color": REPORTED,
                "mfc": "none",
                "linestyle": "",
                "zorder": 4,
            }
            panel.plot(*zip(*points, strict=True), **mark)
            entries.append(Line2D([], [], **mark, label=label))
        panel.set_xticks(range(len(names)), [_words(name).replace(" ", "\n") for name in names])
        panel.set(ylabel="reach 500 steps [%]", ylim=(-3, 103), xlabel="pairs restricted by")
        style.dress(panel)
        figure.legend(handles=entries, loc="outside right upper")


def coverage(
    path: Path,
    curves: Mapping[str, tuple[np.ndarray, ...]],
    palette: Palette | None = None,
) -> None:
    """Draw the share that reaches 500 steps over the width of the window from which pairs are taken.

    Args:
        path: SVG to write.
        curves: Widths relative to the source's, shares, and low and high ends of their intervals, float64 [i] each, by
            restriction.
        palette: The project's colours.
    """
    with sheet(path, (style.WIDTH, 3.2), "cartpole") as figure:
        panel = figure.subplots()
        colours = (palette or Palette()).colours_of(curves)
        for name, (widths, *ends) in curves.items():
            share, low, high = (100 * values for values in ends)
            style.band(panel, widths, low, high, colours[name])
            mark = {"color": colours[name], "linewidth": 1.5, "marker": "o", "markersize": 3}
            style.series(panel, widths, share, _words(name), **mark, label=_words(name))
        panel.set(xscale="log", ylim=(-3, 103), ylabel="reach 500 steps [%]")
        panel.set_xlabel("width of the window [times the source's]")
        panel.set_xticks(widths, [f"{width:g}" for width in widths])  # of all restrictions
        panel.minorticks_off()
        style.dress(panel, "both")
        handles = [*panel.get_legend_handles_labels()[0], style.band_key("95 % interval")]
        figure.legend(handles=handles, loc="outside right upper")


def labels(
    path: Path,
    curves: Mapping[str, Mapping[str, tuple[np.ndarray, ...]]],
    palette: Palette | None = None,
) -> None:
    """Draw the share of recovered clones over the number of labels, one panel per restriction, one line per method.

    Args:
        path: SVG to write.
        curves: Numbers of labels, shares, and low and high ends of their intervals, float [i] each, by method, by
            restriction.
        palette: The project's colours.
    """
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(method for by_method in curves.values() for method in by_method))
    colours = (palette or Palette()).colours_of(methods)
    with _panels(path, len(curves), columns=2, share_y=True) as (figure, panels):
        for panel, (name, by_method) in zip(panels, curves.items(), strict=True):
            for method, (queried, *ends) in by_method.items():
                share, low, high = (100 * values for values in ends)
                style.band(panel, queried, low, high, colours[method])
                style.series(panel, queried, share, method, color=colours[method], linewidth=1.5)
            panel.set_title(_words(name))
            panel.set(ylim=(-3, 103))
        entries = [
            Line2D([], [], color=colours[method], linewidth=1.5, label=method) for method in methods
        ]
        entries.append(style.band_key("95 % interval"))
        figure.supxlabel("labels of the expert", fontsize=9)
        figure.supylabel("clones that survive 99 % of the starts [%]", fontsize=9)
        figure.legend(handles=entries, loc="outside upper center", ncols=len(entries))


@contextlib.contextmanager
def _panels(
    path: Path, count: int, *, columns: int = 3, share_y: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    size = (style.WIDTH if columns > 1 else 4, 2.1 * rows + 0.3)
    with sheet(path, size, "cartpole") as figure:
        grid = figure.subplots(rows, columns, sharey=share_y, squeeze=False).flat
        panels = list(grid)
        for panel in panels[count:]:
            panel.set_visible(False)
        for panel in panels[:count]:
            style.dress(panel)
        yield figure, panels[:count]


def _words(name: str) -> str:
    return {"none": "no restriction"}.get(name, name.replace("_", " "))
