"""Learning curves as SVG: the same records give the same bytes, readable on light and dark pages."""

from __future__ import annotations

import fnmatch
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from catalog import batches, stats
from catalog.model import Point, RunRecord

GRID = 60  # steps at which the curves of several seeds are averaged
MAX_CURVES = 10
# Okabe and Ito's colours without black and yellow, which vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
LINES = ("-", "--", ":")
_GREY = "#808080"
# A page's own colours do not reach into an image; the reader's preference does.
_STYLE = (
    "<style>text{fill:#3d444d!important}"
    "@media(prefers-color-scheme:dark){text{fill:#d1d7e0!important}}</style>"
)


@dataclass(frozen=True)
class Figure:
    """What a template asks for.

    Attributes:
        runs: Runs that have the metric.
        metric: Its name. With a `*` in it: each metric that it fits is a line of its own, named by what the
            `*` stands for, and each run a panel.
        flags: Flags of which each combination is a line; by default all in which the runs differ.
        band: Names of the metrics, with a `*` too, that are the lower and the upper edge of a line's band.
        until: Last step shown; None for all.
        axis: What a step is; by default what the runs say.
    """

    runs: Sequence[RunRecord]
    metric: str
    flags: Sequence[str] | None = None
    band: tuple[str, str] | None = None
    until: int | None = None
    axis: str | None = None

    def svg(self) -> str:
        """Draws it."""
        if "*" not in self.metric:
            return learning_curves(self.runs, self.metric, self.flags)
        panels = [(title, [run]) for title, run in _latest(self.runs)]
        shown = self.metric.partition("*")[2].strip("/ ")
        return _figure(panels, shown, lambda axis, runs: _draw_named(axis, runs[0], self))


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


def learning_curves(
    runs: Sequence[RunRecord], metric: str, flags: Sequence[str] | None = None
) -> str:
    """Returns a figure of a metric by step: a line per point of the sweep, a band over its seeds.

    Args:
        runs: Runs that have the metric.
        metric: Its name.
        flags: Flags of which each combination is a line; by default all in which the runs differ.
    """

    def draw(axis: Any, members: Sequence[RunRecord]) -> None:
        _draw(axis, members, metric, flags)

    return _figure(_panels(runs), metric, draw)


def _figure(
    panels: Sequence[tuple[str, Sequence[RunRecord]]],
    label: str,
    draw: Callable[[Any, Sequence[RunRecord]], None],
) -> str:
    """Returns a figure of some panels, each drawn by `draw` from its runs."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings = {
        "svg.hashsalt": "catalog",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "path.simplify": False,
        "text.color": _GREY,
        "axes.labelcolor": _GREY,
        "axes.edgecolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings, "backend": "svg"}):
        width = 3.6 if len(panels) > 1 else 5.2
        columns = min(3, len(panels))
        lines = math.ceil(len(panels) / columns)
        figure, axes = pyplot.subplots(
            lines,
            columns,
            figsize=(width * columns, 2.9 * lines),
            squeeze=False,
            sharey=True,
            layout="constrained",
        )
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, (title, members) in zip(axes.flat, panels, strict=False):
            draw(axis, members)
            if len(panels) > 1:
                axis.set_title(_plain(title), fontsize=9)
        for axis in axes[:, 0]:
            axis.set_ylabel(_plain(label.replace("_", " ")))
        text = io.StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        pyplot.close(figure)
    return _finished(text.getvalue())


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
        for group in batches.groups(members):
            more = batches.point_text(group.point, list(group.point), named=True)
            found[f"{title} {more}".strip()] = group.trials[-1]
    return sorted(found.items())


def _draw_named(axis: Any, run: RunRecord, wanted: Figure) -> None:
    """Draws each metric that fits a name with a `*`."""

    def points(name: str | None) -> list[Point]:
        curve = run.metrics[name].curve if name in run.metrics else ()
        return [p for p in curve if wanted.until is None or p[0] <= wanted.until]

    names = list(run.metrics)
    edges = [fitting(name, names) for name in wanted.band or ()]
    for i, (label, name) in enumerate(sorted(fitting(wanted.metric, names).items())[:MAX_CURVES]):
        colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
        steps, middle, *_ = band([points(name)])
        axis.plot(steps, middle, color=colour, label=_plain(label), linewidth=1.4, linestyle=line)
        low, high = (dict(points(edge.get(label))) for edge in edges) if edges else ({}, {})
        both = sorted(set(low) & set(high))
        axis.fill_between(
            both, [low[s] for s in both], [high[s] for s in both],
            color=colour, alpha=0.2, linewidth=0,
        )  # fmt: skip
    _dress(axis, wanted.axis or _axis([run]))
    axis.legend(frameon=False, fontsize=8)


def _draw(axis: Any, runs: Sequence[RunRecord], metric: str, flags: Sequence[str] | None) -> None:
    ranked = batches.groups(runs, flags)
    # In the order of the point, so that a colour means the same in each panel.
    ranked.sort(key=lambda g: [_order(v) for v in g.point.values()])
    names = list(ranked[0].point)
    for i, group in enumerate(ranked[:MAX_CURVES]):
        curves = [trial.metrics[metric].curve for trial in group.trials]
        steps, middle, low, high = band(curves)
        colour = COLOURS[i % len(COLOURS)]
        label = _plain(batches.point_text(group.point, names)) if names else None
        line = LINES[i // len(COLOURS) % len(LINES)]
        axis.plot(steps, middle, color=colour, label=label, linewidth=1.4, linestyle=line)
        if len(curves) > 1:
            axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    _dress(axis, _axis(runs))
    if names:
        axis.legend(title=_plain(", ".join(names)), frameon=False, fontsize=8, title_fontsize=8)


def _dress(axis: Any, label: str) -> None:
    axis.grid(color=_GREY, alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(_plain(label))


def _axis(runs: Sequence[RunRecord]) -> str:
    """What a step is, where the runs' objectives say so of their last one."""
    told = set()
    for run in runs:
        objective = run.objective or {}
        last = max((metric.curve[-1][0] for metric in run.metrics.values()), default=None)
        if objective.get("at") == last:
            told.add(str(objective.get("axis") or "step"))
    return _plain(told.pop().replace("_", " ")) if len(told) == 1 else "step"


def band(
    curves: Sequence[Sequence[Point]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Returns steps, mean, lowest and highest value over seeds.

    Curves of different steps are interpolated at GRID steps of their common range and beyond it
    over those that go on; a single curve is returned as it is.

    Args:
        curves: (step, value) per seed, by step; points that are not finite are passed over.
    """
    clean = [[p for p in curve if math.isfinite(p[1])] for curve in curves]
    clean = [curve for curve in clean if curve]
    if not clean:
        return [], [], [], []
    if len(clean) == 1:
        steps, values = [float(s) for s, _ in clean[0]], [v for _, v in clean[0]]
        return steps, values, values, values
    first, last = min(c[0][0] for c in clean), max(c[-1][0] for c in clean)
    shared = {s for c in clean for s, _ in c}
    grid = (
        sorted(float(s) for s in shared)
        if len(shared) <= GRID
        else [first + (last - first) * i / (GRID - 1) for i in range(GRID)]
    )
    steps, middle, low, high = [], [], [], []
    for step in grid:
        values = [v for c in clean if (v := _at(c, step)) is not None]
        if values:
            steps.append(step)
            middle.append(stats.mean(values))
            low.append(min(values))
            high.append(max(values))
    return steps, middle, low, high


def _at(curve: Sequence[Point], step: float) -> float | None:
    """Linear interpolation; None outside of the curve."""
    if not curve[0][0] <= step <= curve[-1][0]:
        return None
    for (s0, v0), (s1, v1) in pairwise(curve):
        if s0 <= step <= s1:
            return v0 + (v1 - v0) * (step - s0) / (s1 - s0)
    return curve[-1][1]


def _order(value: object) -> tuple[int, float, str]:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if numeric else (1, 0.0, str(value))  # type: ignore[arg-type]


def _plain(shown: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return shown.replace("\\", "").replace("$", r"\$")


def _finished(svg: str) -> str:
    head, tag, rest = svg.partition(" <defs>")
    lines = (head + " " + _STYLE + "\n" + tag + rest).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
