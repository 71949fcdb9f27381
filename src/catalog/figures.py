"""Learning curves as SVG: the same records give the same bytes, readable on light and dark pages."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
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


def learning_curves(
    runs: Sequence[RunRecord], metric: str, flags: Sequence[str] | None = None
) -> str:
    """Returns a figure of a metric by step: a line per point of the sweep, a band over its seeds.

    Args:
        runs: Runs that have the metric.
        metric: Its name.
        flags: Flags of which each combination is a line; by default all in which the runs differ.
    """
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
        panels = _panels(runs)
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
            _draw(axis, members, metric, flags)
            if len(panels) > 1:
                axis.set_title(_plain(title), fontsize=9)
        for axis in axes[:, 0]:
            axis.set_ylabel(_plain(metric.replace("_", " ")))
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
    axis.grid(color=_GREY, alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(_axis(runs))
    if names:
        axis.legend(title=_plain(", ".join(names)), frameon=False, fontsize=8, title_fontsize=8)


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
