"""Learning curves as SVG, with bands over seeds."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from runcatalog.analysis import groups
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FINISHED, Point, RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.style import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

GRID = 60  # steps at which the curves of several seeds are averaged
MAX_CURVES = 10


class Drawing(Protocol):
    """What the catalog writes as a figure.

    Attributes:
        runs: The runs that it shows.
    """

    runs: Sequence[RunRecord]

    def svg(self) -> str:
        """Draws it."""


@dataclass(frozen=True)
class Figure:
    """Learning curves that a template asks for.

    Attributes:
        runs: Runs that have the metric.
        metric: Its name. With a `*` in it: each metric that it fits is a line of its own, named by what the
            `*` stands for, and each run a panel.
        flags: Flags of which each combination is a line; by default all in which the runs differ.
        band: Names of the metrics, with a `*` too, that are the lower and the upper edge of a line's band.
        until: Last step shown; None for all.
        axis: What a step is; by default what the runs say.
        label: What the metric is called, with its unit; by default its name.
        edges: What the band is, for the legend.
    """

    runs: Sequence[RunRecord]
    metric: str
    flags: Sequence[str] | None = None
    band: tuple[str, str] | None = None
    until: int | None = None
    axis: str | None = None
    label: str | None = None
    edges: str | None = None

    def svg(self) -> str:
        """Draws it."""
        if "*" in self.metric:
            panels = [
                _Panel(title, _named_lines(run, self), self.axis or _axis([run]))
                for title, run in _latest(self.runs)
            ]
            name, title = self.metric.partition("*")[2].strip("/ "), ""
        else:
            by_operation = _panels(self.runs)
            panels = [_grouped(title, members, self) for title, members in by_operation]
            name, title = self.metric, ", ".join(_varied(by_operation, self.flags))
        rate = _is_rate(self.runs, self.metric)
        return _drawn(
            panels, labels.named(name, "%" if rate else "", self.label), title, self, rate
        )


@dataclass(frozen=True)
class _Line:
    """A curve and, unless its edges are the curve itself, its band over so many seeds."""

    label: str
    steps: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    seeds: int = 1

    @property
    def banded(self) -> bool:
        return self.low is not self.middle


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: Sequence[_Line]
    axis: str
    left_out: int = 0


def fitting(pattern: str, names: Sequence[str]) -> dict[str, str]:
    """Returns the names that fit a pattern with one `*`, by what the `*` stands for.

    "*/length" fits "a/length", but not "a/b/length": the `*` stands for no slash.
    """
    before, _, after = pattern.partition("*")
    found = {}
    for name in names:
        if fnmatch.fnmatchcase(name, pattern):
            middle = name[len(before) : len(name) - len(after)]
            if middle and "/" not in middle:
                found[middle] = name
    return found


def _drawn(panels: Sequence[_Panel], label: str, legend: str, wanted: Figure, rate: bool) -> str:
    # A line means the same in each panel: its place among all labels gives its colour.
    line_labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    beside = 1.5 if _has_legend(panels) else 0.0
    width = (3.2 if columns > 1 else 4.6) * columns + beside

    def draw(page: Page) -> None:
        axes = page.subplots(rows, columns, squeeze=False, sharey=True)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            _draw(axis, panel, line_labels)
            if len(panels) > 1:
                axis.set_title(labels.plain(panel.title))
        for axis in axes[:, 0]:
            axis.set_ylabel(label)
        if rate:
            style.percent(axes[0, 0].yaxis)
        _legend(page, panels, line_labels, legend, wanted)

    return style.svg((width, 2.9 * rows), draw)


def _draw(axis: Axes, panel: _Panel, line_labels: Sequence[str]) -> None:
    for line in panel.lines:
        colour, stroke = _style(line_labels.index(line.label))
        axis.plot(line.steps, line.middle, color=colour, linewidth=1.5, linestyle=stroke)
        if line.banded:
            axis.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    style.dress(axis, "both")
    axis.set_xlabel(labels.plain(panel.axis))


def _style(place: int) -> tuple[str, str]:
    """Colour and dashes: no two of the first twelve are alike, and the paler colours are never solid."""
    return COLOURS[place % len(COLOURS)], style.LINES[place // 4 % len(style.LINES)]


def _has_legend(panels: Sequence[_Panel]) -> bool:
    return any(line.label or line.banded for p in panels for line in p.lines)


def _legend(
    page: Page, panels: Sequence[_Panel], line_labels: Sequence[str], title: str, wanted: Figure
) -> None:
    """The legend, beside the panels: it covers no data."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not _has_legend(panels):
        return
    handles: list[Any] = []
    for place, name in enumerate(line_labels):
        if name:
            colour, stroke = _style(place)
            handles.append(
                Line2D(
                    [], [], color=colour, linestyle=stroke, label=labels.plain(name, labels.LABEL)
                )
            )
    banded = [line for p in panels for line in p.lines if line.banded]
    if banded:
        most = max(line.seeds for line in banded)
        told = labels.plain(wanted.edges or "") or (
            f"lowest to highest\nof {most} seeds" if most > 1 else ""
        )
        if told:
            handles.append(Patch(color=GREY, alpha=0.3, linewidth=0, label=told))
    if left_out := max(panel.left_out for panel in panels):
        handles.append(
            Line2D([], [], alpha=0, label=f"best {MAX_CURVES} of {MAX_CURVES + left_out}")
        )
    page.legend(
        handles=handles, title=labels.plain(title, labels.LABEL) or None, loc="outside right upper",
        alignment="left",
    )  # fmt: skip


def _panels(runs: Sequence[RunRecord]) -> list[tuple[str, list[RunRecord]]]:
    """One panel per operation, in order of name."""
    named: dict[str, list[RunRecord]] = {}
    for run in runs:
        named.setdefault(run.operation.rpartition(":")[2], []).append(run)
    return sorted(named.items())


def _latest(runs: Sequence[RunRecord]) -> list[tuple[str, RunRecord]]:
    """The last run of each operation and flags, the seed apart, with its title; in order of that."""
    found = {}
    for title, members in _panels(runs):
        for group in groups.groups(members):
            more = labels.point(group.point, named=True)
            found[f"{title} {more}".strip()] = group.trials[-1]
    return sorted(found.items())


def _named_lines(run: RunRecord, wanted: Figure) -> list[_Line]:
    """A line for each metric that fits a name with a `*`."""

    def points(name: str | None) -> list[Point]:
        curve = run.metrics[name].curve if name in run.metrics else ()
        return [p for p in curve if wanted.until is None or p[0] <= wanted.until]

    names = list(run.metrics)
    edges = [fitting(name, names) for name in wanted.band or ()]
    made = []
    for label, name in sorted(fitting(wanted.metric, names).items())[:MAX_CURVES]:
        known = dict(points(name))
        low, high = (dict(points(edge.get(label))) for edge in edges) if edges else ({}, {})
        steps = sorted(
            s for s in known if math.isfinite(known[s]) and (not low or (s in low and s in high))
        )
        middle = [known[s] for s in steps]
        both = ([low[s] for s in steps], [high[s] for s in steps]) if low else (middle, middle)
        made.append(_Line(label, steps, middle, *both))
    return made


def _grouped(title: str, runs: Sequence[RunRecord], wanted: Figure) -> _Panel:
    """A line for each point of a sweep, over its seeds; of many points, the best."""
    ranked = groups.groups(runs, wanted.flags)
    best = ranked[:MAX_CURVES]
    # In the order of the point, not of its rank.
    best.sort(key=lambda g: [values.sort_key(v) for v in g.point.values()])
    lines = []
    for group, label in zip(best, labels.points([g.point for g in best]), strict=True):
        curves = [
            [
                point
                for point in trial.metrics[wanted.metric].curve
                if wanted.until is None or point[0] <= wanted.until
            ]
            for trial in group.trials
        ]
        # A run that a rule ended early would leave the mean to the slower seeds; one that failed has no last word.
        held = [trial.status == FINISHED for trial in group.trials]
        lines.append(_Line(label, *band(curves, held), seeds=len(curves)))
    return _Panel(title, lines, wanted.axis or _axis(runs), len(ranked) - len(best))


def _varied(
    panels: Sequence[tuple[str, Sequence[RunRecord]]], flags: Sequence[str] | None
) -> list[str]:
    """Returns the flags that tell lines apart: in what only panels differ, no line is named by."""
    if flags is not None:
        return list(flags)
    return sorted({name for _, runs in panels for name in groups.varying(runs)})


def _is_rate(runs: Sequence[RunRecord], metric: str) -> bool:
    """Whether a metric is a share: so called, or an objective of that kind, with values in [0, 1]."""
    named = metric.endswith("_rate") or any(
        o["name"] == metric and o.get("kind") == "rate" for r in runs if (o := r.objective)
    )
    if not named or "*" in metric:
        return False
    return all(0 <= v <= 1 for r in runs for _, v in r.metrics[metric].curve if math.isfinite(v))


def _axis(runs: Sequence[RunRecord]) -> str:
    """What a step is, where the runs' objectives say so of their last one."""
    told = set()
    for run in runs:
        objective = run.objective or {}
        last = max((metric.curve[-1][0] for metric in run.metrics.values()), default=None)
        if objective.get("at") == last:
            told.add(str(objective.get("axis") or "step"))
    return told.pop().replace("_", " ") if len(told) == 1 else "step"


def band(
    curves: Sequence[Sequence[Point]],
    held: Sequence[bool] | None = None,
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Returns steps, mean, lowest and highest value over seeds.

    Curves of different steps are interpolated at GRID steps from the first to the last of all; a
    single curve is returned as it is.

    Args:
        curves: (step, value) per seed, by step; points that are not finite are passed over.
        held: Per curve, whether it keeps its last value where others go on; by default none does,
            and the rest is over those that go on.
    """
    ends = held or [False] * len(curves)
    kept = [
        (clean, keeps)
        for curve, keeps in zip(curves, ends, strict=True)
        if (clean := [p for p in curve if math.isfinite(p[1])])
    ]
    clean = [curve for curve, _ in kept]
    if not clean:
        return [], [], [], []
    if len(clean) == 1:
        steps, own = [float(s) for s, _ in clean[0]], [v for _, v in clean[0]]
        return steps, own, own, own
    first, last = min(c[0][0] for c in clean), max(c[-1][0] for c in clean)
    shared = {s for c in clean for s, _ in c}
    grid = (
        sorted(float(s) for s in shared)
        if len(shared) <= GRID
        else [first + (last - first) * i / (GRID - 1) for i in range(GRID)]
    )
    steps, middle, low, high = [], [], [], []
    for step in grid:
        here = [v for c, keeps in kept if (v := _at(c, step, keeps)) is not None]
        if here:
            steps.append(step)
            middle.append(statistics.mean(here))
            low.append(min(here))
            high.append(max(here))
    return steps, middle, low, high


def _at(curve: Sequence[Point], step: float, keeps: bool) -> float | None:
    """Linear interpolation; None outside of the curve, unless it keeps its last value."""
    if keeps and step > curve[-1][0]:
        return curve[-1][1]
    if not curve[0][0] <= step <= curve[-1][0]:
        return None
    for (s0, v0), (s1, v1) in pairwise(curve):
        if s0 <= step <= s1:
            return v0 + (v1 - v0) * (step - s0) / (s1 - s0)
    return curve[-1][1]
