"""Landscapes of searches as SVG: the objective over every parameter and over a pair of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog.analysis import groups, searches
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.style import BLUE, GREY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

LOG_FROM = 30.0  # ratio of largest to smallest from which an axis is logarithmic
# Shading of a pair: means with Gaussian weights of width WIDTH, up to NEAR from a trial [share of an axis].
WIDTH, NEAR, CELLS, LEVELS = 0.12, 0.25, 32, 9
PAD = 0.06  # margin beyond the outermost trials, as a share of the axis
MAX_PANELS = 6


@dataclass(frozen=True)
class Landscape:
    """Figure of the trials of a search.

    Attributes:
        batch: The search; None without a record of its own.
        runs: Its trials, with the optimised metric as their objective.
        pair: Two parameters to draw against one another; by default the two numeric ones with the most values.
        label: Label of the objective, with its unit; by default its name.
    """

    batch: RunRecord | None
    runs: Sequence[RunRecord]
    pair: tuple[str, str] | None = None
    label: str | None = None

    def svg(self) -> str:
        """Return the figure as SVG."""
        names = groups.varying(self.runs)[:MAX_PANELS]
        columns = {
            name: _Column.from_runs(name, self.runs) for name in (*names, *(self.pair or ()))
        }
        objective = next((o for r in self.runs if (o := r.objective)), {})
        rate = objective.get("kind") == "rate"
        name = str(objective.get("name") or "objective")
        label = labels.named(name, "%" if rate else "", self.label)
        trials = _Trials.from_runs(self.runs, objective.get("goal") == "min")
        pair = self.pair or _pair(columns)
        panels = len(names) + (1 if pair else 0)
        n_columns = 2 if panels == 4 else min(3, panels)
        n_rows = math.ceil(panels / n_columns)

        def draw(page: Page) -> None:
            grid = page.add_gridspec(n_rows, n_columns)
            first = None
            for i, name in enumerate(names):
                axis = page.add_subplot(grid[i // n_columns, i % n_columns], sharey=first)
                first = first or axis
                _draw_parameter(axis, columns[name], trials)
                if rate:
                    style.percent(axis.yaxis)
                if i % n_columns == 0:
                    axis.set_ylabel(label)
                else:
                    axis.tick_params(labelleft=False)
            if pair:  # in the rest of the last row
                axis = page.add_subplot(grid[len(names) // n_columns, len(names) % n_columns :])
                _draw_pair(page, axis, [columns[n] for n in pair], trials, label, rate)
            _legend(page, trials)

        width = min(2.9 * n_columns + 0.4, style.WIDTH)
        return style.svg((width, 2.6 * n_rows + 0.6), draw)


@dataclass(frozen=True)
class _Column:
    """Positions of a parameter's values on an axis, a position per trial."""

    name: str
    places: Sequence[float]
    words: Sequence[str]  # of a parameter without numbers: the values at 0, 1, …
    logarithmic: bool

    @classmethod
    def from_runs(cls, name: str, runs: Sequence[RunRecord]) -> _Column:
        given = [run.flags.get(name) for run in runs]
        if all(values.sort_key(v)[0] == 0 for v in given):
            places = [float(v) for v in given]  # type: ignore[arg-type]
            low, high = min(places), max(places)
            return cls(name, places, (), low > 0 and high >= LOG_FROM * low)
        sort_keys = {labels.value(v): values.sort_key(v) for v in given}
        words = sorted(sort_keys, key=lambda word: sort_keys[word])
        return cls(name, [float(words.index(labels.value(v))) for v in given], words, False)

    def scaled(self) -> list[float]:
        """Return the positions scaled to [0, 1] of the axis."""
        places = [math.log(p) for p in self.places] if self.logarithmic else list(self.places)
        low, high = min(places), max(places)
        return [(p - low) / ((high - low) or 1.0) for p in places]

    def dress(self, axis: Axes, *, upright: bool = False) -> None:
        """Set the label, scale and tick labels of an axis."""
        which = axis.yaxis if upright else axis.xaxis
        label = axis.set_ylabel if upright else axis.set_xlabel
        if self.logarithmic:
            labels.logarithmic(axis, upright=upright)
        if self.words:
            which.set_ticks(range(len(self.words)), [labels.plain(w, 14) for w in self.words])
            limits = axis.set_ylim if upright else axis.set_xlim
            limits(-0.5, len(self.words) - 0.5)
        label(labels.named(self.name))


@dataclass(frozen=True)
class _Trials:
    """Results of the trials, by index: values of finished ones; initial and failed ones."""

    values: Mapping[int, float]
    initial: frozenset[int]
    failed: Sequence[int]
    best: int | None
    small_is_good: bool
    method: str

    @classmethod
    def from_runs(cls, runs: Sequence[RunRecord], small_is_good: bool) -> _Trials:
        values = {
            i: o["value"]
            for i, run in enumerate(runs)
            if run.status == FINISHED and (o := run.objective) and math.isfinite(o["value"])
        }
        names = [searches.origin(run) for run in runs]
        sign = 1 if small_is_good else -1
        best = min(values, key=lambda i: (sign * values[i], i), default=None)
        return cls(
            values,
            frozenset(i for i, name in enumerate(names) if name == "initial"),
            [i for i, run in enumerate(runs) if searches.has_failed(run)],
            best,
            small_is_good,
            next((name for name in names if name not in ("", "initial")), ""),
        )


def _draw_parameter(axis: Axes, column: _Column, trials: _Trials) -> None:
    """Draw the objective over a parameter, with failed trials at the bottom."""
    for i, value in sorted(trials.values.items()):
        _mark(axis, column.places[i], value, trials, i)
    if trials.failed:
        places = [column.places[i] for i in trials.failed]
        foot = axis.get_xaxis_transform()
        axis.plot(
            places,
            [0.03] * len(places),
            "x",
            color=VERMILION,
            transform=foot,
            clip_on=False,
        )
    values = list(trials.values.values())
    if values and min(values) > 0 and max(values) >= LOG_FROM * min(values):
        labels.logarithmic(axis, upright=True)
    axis.margins(0.08)
    style.dress(axis, "both")
    column.dress(axis)


def _mark(axis: Axes, x: float, y: float, trials: _Trials, i: int, face: Any = None) -> None:
    """Draw a trial: an initial one hollow, the best one as a star; `face` is the colour of its value, if any."""
    colour = BLUE
    best = i == trials.best
    fill = face or ("none" if i in trials.initial and not best else colour)
    edge = VERMILION if best else (GREY if face else colour)
    axis.plot(
        [x], [y], "*" if best else "o", markersize=12 if best else (7 if face else 5),
        markerfacecolor=fill, markeredgecolor=edge, zorder=4 if best else 3,
    )  # fmt: skip


def _draw_pair(
    page: Page, axis: Axes, pair: Sequence[_Column], trials: _Trials, label: str, rate: bool
) -> None:
    """Draw trials over two parameters, coloured by the objective; the shade is the mean of nearby trials."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    x, y = pair
    x.dress(axis)
    y.dress(axis, upright=True)
    axis.spines[["top", "right"]].set_visible(False)
    values = trials.values
    if values:
        low, high = min(values.values()), max(values.values())
        kind = LogNorm if low > 0 and high >= LOG_FROM * low else Normalize
        colours = ScalarMappable(kind(low, high), style.colours(reverse=trials.small_is_good))
        _shade(axis, pair, values, colours)
        for i, value in sorted(values.items()):
            _mark(axis, x.places[i], y.places[i], trials, i, colours.to_rgba(value))  # type: ignore[arg-type]
        bar = page.colorbar(colours, ax=axis)
        bar.outline.set_visible(False)
        bar.set_label(label)
        if rate:
            style.percent(bar.ax.yaxis)
        elif kind is LogNorm:
            labels.logarithmic(bar.ax, upright=True)
    failed = trials.failed
    axis.plot([x.places[i] for i in failed], [y.places[i] for i in failed], "x", color=VERMILION)


def _shade(axis: Axes, pair: Sequence[_Column], values: Mapping[int, float], colours: Any) -> None:
    """Shade the mean of nearby trials, up to the distance NEAR from a trial."""
    from matplotlib.path import Path

    known = sorted(values)
    x, y = (column.scaled() for column in pair)
    points = [(x[i], y[i]) for i in known]
    known_values = [values[i] for i in known]
    grid = [(1 + 2 * PAD) * i / (CELLS - 1) - PAD for i in range(CELLS)]
    surface = [[nearby(points, known_values, (a, b)) for a in grid] for b in grid]
    across, up = ([_place(column, g) for g in grid] for column in pair)
    axis.set_xlim(across[0], across[-1])
    axis.set_ylim(up[0], up[-1])
    norm = colours.norm
    levels = [norm.inverse(i / LEVELS) for i in range(LEVELS + 1)]
    if len(set(levels)) < len(levels):  # the values are equal, or differ by their rounding alone
        return
    shade = axis.contourf(
        across, up, surface, levels=levels, norm=norm, cmap=colours.cmap, alpha=0.45
    )
    size = 1 + 2 * PAD
    circles = [
        Path.circle(((a + PAD) / size, (b + PAD) / size), NEAR / size, readonly=True)
        for a, b in points
    ]
    axis.set_title("shade: mean of nearby trials; no shade: none is near", fontsize=8)
    shade.set_clip_path(Path.make_compound_path(*circles), axis.transAxes)


def nearby(
    points: Sequence[tuple[float, float]], values: Sequence[float], at: tuple[float, float]
) -> float:
    """Return the mean of values with Gaussian weights of their distance to a point.

    Args:
        points: Points in the unit square, at least one.
        values: Value per point.
        at: Point in the unit square.
    """
    squares = [math.dist(point, at) ** 2 for point in points]
    nearest = min(squares)  # so that the largest weight is 1
    weights = [math.exp((nearest - square) / (2 * WIDTH**2)) for square in squares]
    return statistics.mean([w * v for w, v in zip(weights, values, strict=True)]) / statistics.mean(
        weights
    )


def _place(column: _Column, share: float) -> float:
    """Return the position at a share of the axis from a parameter's smallest to its largest value."""
    low, high = min(column.places), max(column.places)
    if column.logarithmic:
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return low + share * ((high - low) or 1.0)


def _pair(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    """Return the two parameters with the most distinct numbers; None if fewer than two have three or more."""
    numeric = [c for c in columns.values() if not c.words and len(set(c.places)) > 2]
    ranked = sorted(numeric, key=lambda c: (-len(set(c.places)), c.name))
    return (ranked[0].name, ranked[1].name) if len(ranked) > 1 else None


def _legend(page: Page, trials: _Trials) -> None:
    from matplotlib.lines import Line2D

    def entry(marker: str, label: str, **more: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, label=label, **more)

    handles: list[Any] = []
    if trials.initial:
        handles.append(entry("o", "initial", markerfacecolor="none", markeredgecolor=BLUE))
    proposed = f"proposed by {labels.plain(trials.method, 20)}" if trials.method else "trial"
    handles.append(entry("o", proposed, color=BLUE))
    handles.append(entry("*", "best", color=BLUE, markersize=11, markeredgecolor=VERMILION))
    if trials.failed:
        handles.append(entry("x", "failed", color=VERMILION))
    page.legend(handles=handles, loc="outside lower center", ncols=len(handles))
