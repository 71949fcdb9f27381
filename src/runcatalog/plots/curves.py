"""Learning curves as SVG, with bands over seeds."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runcatalog.analysis import groups
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FINISHED, Point, RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.palette import Palette
from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

GRID = 60  # steps at which the curves of several seeds are averaged
MAX_CURVES = 10
MAX_NAMED = 16  # curves of one run, which have a panel per method
_REPORTED: dict[str, Any] = {"markersize": 6, "fillstyle": "none"}
_MARKERS = ("D", "o", "s", "^", "v", "P", "X", "*")  # of reported values, by the dash of their line
_FLAG = re.compile(r"(\S+) ([\d.e-]+)")  # "lr 0.001" in the name of a metric


class Drawing(Protocol):
    """Interface of the generated page's figures."""

    @property
    def runs(self) -> Sequence[RunRecord]:
        """The runs in the figure."""

    def svg(self) -> str:
        """Return the figure as SVG."""


@dataclass(frozen=True)
class Figure:
    """Learning curves of a template's `figure` call.

    Attributes:
        runs: Runs with the metric.
        metric: Name of the metric. With a `*`: every matching metric is a line, named by the text that the `*` matches,
            and every run is a panel.
        flags: Flags whose combinations are separate lines; by default all in which the runs differ.
        band: Names of the metrics, possibly with a `*`, for the lower and upper edge of a line's band.
        until: Last step shown; None for all.
        axis: Unit of a step; by default from the runs' results.
        label: Label of the metric, with its unit; by default its name and unit.
        unit: Unit of the metric; a share is drawn in percent.
        edges: Description of the band in the legend.
        per: Number of steps of the metric in a step of the axis, by name of a line ("rloo": 10); by default 1.
        references: Horizontal lines by name: a value, or the name of a metric in the runs' results ("chance").
        reported: (step, value) that a source reported, by name of a line.
        palette: The project's colours and dashes.
    """

    runs: Sequence[RunRecord]
    metric: str
    flags: Sequence[str] | None = None
    band: tuple[str, str] | None = None
    until: int | None = None
    axis: str | None = None
    label: str | None = None
    unit: str = ""
    edges: str | None = None
    per: Mapping[str, float] = field(default_factory=dict)
    references: Mapping[str, float | str] = field(default_factory=dict)
    reported: Mapping[str, Sequence[float]] = field(default_factory=dict)
    palette: Palette = field(default_factory=Palette)

    def svg(self) -> str:
        """Return the figure as SVG."""
        if "*" in self.metric:
            panels = [
                _Panel(title, _named_lines(run, self), self.axis or _axis([run]))
                for title, run in _latest(self.runs)
            ]
            if len(panels) == 1:
                panels = _by_method(panels[0])
            name, title = self.metric.partition("*")[2].strip("/ "), ""
        else:
            by_operation = _panels(self.runs)
            panels = [_grouped(title, members, self) for title, members in by_operation]
            name, title = self.metric, ", ".join(_varied(by_operation, self.flags))
        rate = is_rate(self.runs, self.metric)
        label = labels.named(name, "%" if rate else self.unit, self.label)
        return _drawn(panels, label, title, self, rate)

    def heights(self) -> dict[str, float]:
        """Return the heights of the references, without those that no run has."""
        return reference_values(self.references, self.runs)


@dataclass(frozen=True)
class _Line:
    """A curve with its band over seeds; without a band, `low` and `high` are the curve itself.

    `method` gives the colour and `setting` the dash. `unit` is "run" if some of the `seeds` are the same.
    `carried_forward` tells whether a run stopped earlier than the others and is in the mean with its last value.
    """

    label: str
    method: str
    setting: str
    steps: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    seeds: int = 1
    unit: str = "seed"
    carried_forward: bool = False

    @property
    def banded(self) -> bool:
        return self.low is not self.middle


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: Sequence[_Line]
    axis: str
    left_out: int = 0


def reference_values(
    references: Mapping[str, float | str], runs: Sequence[RunRecord]
) -> dict[str, float]:
    """Return the values of reference lines by name, without those that no run has.

    Args:
        references: By name a value, or the name of a metric in the runs' results, of which the mean is taken.
        runs: The runs.
    """
    lines = {}
    for name, given in references.items():
        values = [given] if isinstance(given, int | float) else _results(runs, given)
        if values:
            lines[name] = statistics.mean(values)
    return lines


def fitting(pattern: str, names: Sequence[str]) -> dict[str, str]:
    """Return the names that match a pattern with a `*`, by the text that the `*` matches.

    "*/length" matches "a/length" but not "a/b/length": the `*` does not match a slash.
    """
    before, _, after = pattern.partition("*")
    matches = {}
    for name in names:
        if fnmatch.fnmatchcase(name, pattern):
            middle = name[len(before) : len(name) - len(after)]
            if middle and "/" not in middle:
                matches[middle] = name
    return matches


def _drawn(panels: Sequence[_Panel], label: str, legend: str, request: Figure, rate: bool) -> str:
    lines = {line.label: line for panel in panels for line in panel.lines}
    strokes = _strokes(list(lines.values()), request.palette)
    heights = request.heights()
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    entries = _legend(panels, strokes, heights, request, rate)
    legend_width = 1.8 if entries else 0.0
    width = min((3.3 if columns > 1 else 4.8) * columns + legend_width, style.WIDTH)

    def draw(page: Page) -> None:
        axes = page.subplots(rows, columns, squeeze=False, sharey=True)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            _draw(axis, panel, strokes, request)
            style.references(axis, heights)
            if len(panels) > 1:
                axis.set_title(labels.plain(panel.title))
        for axis in axes[:, 0]:
            axis.set_ylabel(label)
        if rate:
            axes[0, 0].set_ylim(-0.03, 1.03)
            style.percent(axes[0, 0].yaxis)
        if entries:  # to the right of the panels, where it covers no data
            page.legend(
                handles=entries, title=labels.wrapped(legend) or None, loc="outside right upper",
                alignment="left",
            )  # fmt: skip

    return style.svg((width, 2.9 * rows), draw)


def _draw(axis: Axes, panel: _Panel, strokes: Mapping[str, Any], request: Figure) -> None:
    for line in panel.lines:
        stroke = strokes[line.label]
        if line.banded:
            style.band(axis, line.steps, line.low, line.high, stroke["color"])
        style.series(axis, line.steps, line.middle, line.method or line.setting, **stroke)
        if line.label in request.reported:
            step, value = request.reported[line.label]
            mark = {**_REPORTED, "marker": _markers(strokes)[line.label], "color": stroke["color"]}
            axis.plot([step], [value], linestyle="", zorder=4, **mark)
    style.dress(axis, "both")
    labels.steps(axis)
    axis.set_xlabel(labels.plain(panel.axis))


def _strokes(lines: Sequence[_Line], palette: Palette) -> dict[str, dict[str, Any]]:
    """Return colour and dash by label: a colour per method, a dash per setting; both by what alone varies."""
    methods = {line.label: line.method for line in lines}
    settings = {line.label: line.setting for line in lines}
    if len(set(methods.values())) == 1 and len(set(settings.values())) > 1:
        methods = settings
    colours = palette.colours_of(methods.values())
    dashes = palette.dashes_of(name for name in settings.values() if name)
    return {
        line.label: {
            "color": colours[methods[line.label]],
            "linestyle": dashes.get(settings[line.label], "-"),
            "linewidth": 1.5,
        }
        for line in lines
    }


def _markers(strokes: Mapping[str, Any]) -> dict[str, str]:
    """Return the marker of a reported value by label: one per dash, so that it tells the lines of a panel apart."""
    dashes = list(dict.fromkeys(repr(stroke["linestyle"]) for stroke in strokes.values()))
    marker = dict(zip(dashes, cycle(_MARKERS), strict=False))
    return {label: marker[repr(stroke["linestyle"])] for label, stroke in strokes.items()}


def _legend(
    panels: Sequence[_Panel],
    strokes: Mapping[str, Any],
    heights: Mapping[str, float],
    request: Figure,
    rate: bool,
) -> list[Any]:
    """Return the entries of the legend."""
    from matplotlib.lines import Line2D

    lines = [line for panel in panels for line in panel.lines]
    seeds = {line.label: sorted(n.seeds for n in lines if n.label == line.label) for line in lines}
    banded = [line for line in lines if line.banded]
    equal = len({line.seeds for line in lines}) == 1
    unit = "run" if any(line.unit == "run" for line in lines) else "seed"
    entries: list[Any] = []
    markers = _markers(strokes)
    for label, stroke in strokes.items():
        count = "" if equal else f" ({_seeds(seeds[label], unit)})".lstrip()
        if text := labels.wrapped(label) + (f" {count}" if count else ""):
            mark = _REPORTED | {"marker": markers[label]} if label in request.reported else {}
            entries.append(Line2D([], [], **stroke, **mark, label=text.strip()))
    if banded:
        text = (
            f"lowest to highest\nof {banded[0].seeds} {unit}s"
            if equal
            else f"lowest to highest {unit}"
        )
        entries.append(style.band_key(labels.wrapped(request.edges or "") or text))
    if any(line.carried_forward for line in banded):
        entries.append(Line2D([], [], alpha=0, label="mean: stopped runs\nkeep their last value"))
    if left_out := max(panel.left_out for panel in panels):
        text = f"best {MAX_CURVES} of {MAX_CURVES + left_out}"
        entries.append(Line2D([], [], alpha=0, label=text))
    if set(request.reported) & set(strokes):
        entries.append(Line2D([], [], alpha=0, label="markers: reported by\nthe source"))
    names = {
        name: f"{100 * height:.3g} %" if rate else markdown.amount(height)
        for name, height in heights.items()
    }
    return entries + style.reference_keys(labels.wrapped(f"{n}: {v}") for n, v in names.items())


def _seeds(counts: Sequence[int], unit: str) -> str:
    """Return "1 seed", or "1–3 seeds" for a line with other numbers of seeds in other panels."""
    low, high = counts[0], counts[-1]
    return f"{low} {unit}{'s' * (low > 1)}" if low == high else f"{low}–{high} {unit}s"


def _panels(runs: Sequence[RunRecord]) -> list[tuple[str, list[RunRecord]]]:
    """Return (title, runs) of a panel per operation, by name."""
    titles = labels.operations(run.operation for run in runs)
    named: dict[str, list[RunRecord]] = {}
    for run in runs:
        named.setdefault(titles[run.operation], []).append(run)
    return sorted(named.items())


def _latest(runs: Sequence[RunRecord]) -> list[tuple[str, RunRecord]]:
    """Return (title, last run) for every operation and combination of flags except the seed, by title."""
    latest = {}
    for title, members in _panels(runs):
        for group in groups.groups(members):
            more = labels.point(group.point, named=True)
            latest[f"{title} {more}".strip()] = group.trials[-1]
    return sorted(latest.items())


def _named_lines(run: RunRecord, request: Figure) -> list[_Line]:
    """Return a line per metric that matches a name with a `*`.

    The band is interpolated where the line has points, since a record keeps other points of each curve.
    """

    def points(name: str | None) -> list[Point]:
        curve = run.metrics[name].curve if name in run.metrics else ()
        return sorted((step, value) for step, value in curve if math.isfinite(value))

    names = list(run.metrics)
    edges = [fitting(name, names) for name in request.band or ()]
    lines = []
    for label, name in sorted(fitting(request.metric, names).items())[:MAX_NAMED]:
        per = request.per.get(label, 1)
        line = [(s, v) for s, v in points(name) if s / per <= (request.until or math.inf)]
        if not line:
            continue
        steps, middle = map(list, zip(*line, strict=True))
        both = [middle, middle]
        if edges and all(band := [points(edge.get(label)) for edge in edges]):
            both = [
                np.interp(steps, [s for s, _ in edge], [v for _, v in edge]).tolist()
                for edge in band
            ]
        method, _, setting = label.partition(" ")
        if match := _FLAG.fullmatch(setting):
            setting = f"{match[1]}={labels.value(float(match[2]))}"
        axis = [step / per for step in steps]
        lines.append(_Line(label, method, setting, axis, middle, both[0], both[1]))
    return lines


def _by_method(panel: _Panel) -> list[_Panel]:
    """Return a panel per method if there are several with several settings, else the given one."""
    lines: dict[str, list[_Line]] = {}
    for line in panel.lines:
        lines.setdefault(line.method, []).append(line)
    if len(lines) == 1 or max(map(len, lines.values())) == 1:
        return [panel]
    return [_Panel(method, own, panel.axis) for method, own in lines.items()]


def _grouped(title: str, runs: Sequence[RunRecord], request: Figure) -> _Panel:
    """Return a panel with a line per point of a sweep, over its seeds; at most MAX_CURVES, the best."""
    ranked = groups.groups(runs, request.flags)
    best = ranked[:MAX_CURVES]
    # Drawn in the order of their flags, not of their rank.
    best.sort(key=lambda g: [values.sort_key(v) for v in g.point.values()])
    lines = []
    for group, label in zip(best, labels.points([g.point for g in best]), strict=True):
        curves = [
            [
                point
                for point in trial.metrics[request.metric].curve
                if request.until is None or point[0] <= request.until
            ]
            for trial in group.trials
        ]
        # The last value of an early-stopped run is carried forward, so that the mean is still over all seeds; that of a
        # failed run is not.
        carried_forward = [trial.status == FINISHED for trial in group.trials]
        ends = {curve[-1][0] for curve in curves if curve}
        stopped = [
            bool(curve) and curve[-1][0] < max(ends) and carries
            for curve, carries in zip(curves, carried_forward, strict=True)
        ]
        lines.append(
            _Line(
                label,
                *_method_setting(group.point),
                *band(curves, carried_forward),
                seeds=len(curves),
                unit="seed" if len({t.seed for t in group.trials}) == len(curves) else "run",
                carried_forward=any(stopped),
            )
        )
    return _Panel(title, lines, request.axis or _axis(runs), len(ranked) - len(best))


def _varied(
    panels: Sequence[tuple[str, Sequence[RunRecord]]], flags: Sequence[str] | None
) -> list[str]:
    """Return the flags that distinguish the lines of a panel; flags that differ only between panels do not count."""
    if flags is not None:
        return list(flags)
    return sorted({name for _, runs in panels for name in groups.varying(runs)})


def _method_setting(point: Mapping[str, object]) -> tuple[str, str]:
    """Return the value of the first flag, with the flag's name if it is a number, and the other flags."""
    if not point:
        return "", ""
    (flag, value), *others = point.items()
    first = value if isinstance(value, str) else f"{flag}={labels.value(value)}"
    if not others and not isinstance(value, str):
        return "", first
    return first, labels.point(dict(others), named=True)


def is_rate(runs: Sequence[RunRecord], metric: str) -> bool:
    """Return whether a metric is a rate: by its name or by the kind of an objective, with values in [0, 1].

    A learning rate is below 1 too, and no share.
    """
    objectives = {
        str(o["name"]).rpartition("/")[2]
        for r in runs
        if (o := r.objective) and o.get("kind") == "rate"
    }
    named = metric.endswith("_rate") and not metric.endswith("learning_rate")
    if not named and metric.rpartition("/")[2] not in objectives:
        return False
    names = {
        n
        for r in runs
        for n in ([metric] if "*" not in metric else fitting(metric, list(r.metrics)).values())
    }
    points = (p for r in runs for n in names if n in r.metrics for p in r.metrics[n].curve)
    return all(0 <= value <= 1 for _, value in points if math.isfinite(value))


def _results(runs: Sequence[RunRecord], name: str) -> list[float]:
    """Return a metric of the results of all runs that have it."""
    found = [((run.result or {}).get("metrics") or {}).get(name) for run in runs]
    return [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v)]


def _axis(runs: Sequence[RunRecord]) -> str:
    """Return the unit of a step, from objectives at the last step of their runs; "step" if unknown."""
    units = set()
    for run in runs:
        objective = run.objective or {}
        last = max((metric.steps[-1] for metric in run.metrics.values()), default=None)
        if objective.get("at") == last:
            units.add(str(objective.get("axis") or "step"))
    return units.pop().replace("_", " ") if len(units) == 1 else "step"


def band(
    curves: Sequence[Sequence[Point]],
    carried_forward: Sequence[bool] | None = None,
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return steps, mean, lowest and highest value over seeds.

    Curves with different steps are interpolated at GRID steps from the first to the last step of all curves; a single
    curve is returned unchanged.

    Args:
        curves: (step, value) per seed, by step; points that are not finite are ignored.
        carried_forward: Per curve, whether its last value is used for later steps of longer curves; by default no
            value is, and the mean is over the longer curves.
    """
    forward = carried_forward or [False] * len(curves)
    finite = [
        (points, carries)
        for curve, carries in zip(curves, forward, strict=True)
        if (points := [p for p in curve if math.isfinite(p[1])])
    ]
    clean = [curve for curve, _ in finite]
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
        at_step = [v for c, carries in finite if (v := _at(c, step, carries)) is not None]
        if at_step:
            steps.append(step)
            middle.append(statistics.mean(at_step))
            low.append(min(at_step))
            high.append(max(at_step))
    return steps, middle, low, high


def _at(curve: Sequence[Point], step: float, carried_forward: bool) -> float | None:
    """Interpolate linearly; return None outside of the curve, unless its last value is carried forward."""
    if carried_forward and step > curve[-1][0]:
        return curve[-1][1]
    if not curve[0][0] <= step <= curve[-1][0]:
        return None
    for (s0, v0), (s1, v1) in pairwise(curve):
        if s0 <= step <= s1:
            return v0 + (v1 - v0) * (step - s0) / (s1 - s0)
    return curve[-1][1]
