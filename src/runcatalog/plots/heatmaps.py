"""Heat maps of sweeps as SVG: a metric over two properties of the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog.model import statistics, values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.numbers import is_number
from runcatalog.plots import labels, style
from runcatalog.plots.curves import fitting, is_rate
from runcatalog.plots.style import VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page


@dataclass(frozen=True)
class HeatMap:
    """Figure of a metric's mean over two properties of runs.

    Attributes:
        runs: The runs, including failed ones.
        x, y: Horizontal and vertical axis: a flag, "operation", or "*" for the text that the metric's `*` matches.
        metric: Name of a metric, possibly with a `*`, whose last value is shown; "objective" for the runs' objectives.
        label: Label of the metric, with its unit.
    """

    runs: Sequence[RunRecord]
    x: str
    y: str
    metric: str = "objective"
    label: str | None = None

    def cells(self) -> tuple[list[str], list[str], dict[tuple[str, str], list[float | None]]]:
        """Return (names of the columns, names of the rows, values by (column, row)); None for a failed run."""
        cells: dict[tuple[str, str], list[float | None]] = {}
        sizes: dict[str, dict[str, tuple[int, float, str]]] = {"x": {}, "y": {}}
        titles = labels.operations(run.operation for run in self.runs)
        for index, run in enumerate(self.runs):
            for star, value in self._values(run).items():
                key = []
                for which, name in (("x", self.x), ("y", self.y)):
                    shown = (
                        titles[run.operation] if name == "operation" else _property(run, name, star)
                    )
                    # Operations are in the order of the runs, numbers by size.
                    size = (0, float(index), "") if name == "operation" else values.sort_key(shown)
                    sizes[which].setdefault(labels.value(shown), size)
                    key.append(labels.value(shown))
                cells.setdefault((key[0], key[1]), []).append(value)
        columns, rows = (sorted(s, key=s.__getitem__) for s in (sizes["x"], sizes["y"]))
        return columns, rows, cells

    def _values(self, run: RunRecord) -> dict[str, float | None]:
        """Return a run's values by the text that the `*` matches ("" without `*`), from its result or last points."""
        if run.status != FINISHED:
            return {"": None} if run.status in (FAILED, KILLED) and "*" not in self.metric else {}
        reported = (run.result or {}).get("metrics")
        known: dict[str, float] = {name: metric.last for name, metric in run.metrics.items()}
        for name, value in (reported if isinstance(reported, dict) else {}).items():
            if is_number(value):
                known[name] = float(value)
        if objective := run.objective:
            known["objective"] = objective["value"]
        if "*" in self.metric:
            fit = fitting(self.metric, sorted(known))
            return {star: known[name] for star, name in sorted(fit.items())}
        return {"": known[self.metric]} if self.metric in known else {}

    def svg(self) -> str:
        """Return the figure as SVG."""
        columns, rows, cells = self.cells()
        objective = next((o for r in self.runs if (o := r.objective)), {})
        if self.metric == "objective":
            name = str(objective.get("name") or self.metric)
            rate = objective.get("kind") == "rate"
        else:
            name = self.metric.replace("*", "").strip("/ ")
            known = (v for cell in cells.values() for v in cell if v is not None)
            rate = is_rate(self.runs, self.metric) and all(
                0 <= v <= 1 for v in known if math.isfinite(v)
            )
        label = labels.named(name, "%" if rate else "", self.label)
        longest = max(len(word) for word in rows)

        def draw(page: Page) -> None:
            axis = page.subplots()
            _draw_cells(page, axis, (columns, rows, cells), label, rate)
            axis.yaxis.set_inverted(self.y in ("*", "operation"))  # lists begin at the top
            for words, which, name, set_label in (
                (columns, axis.xaxis, self.x, axis.set_xlabel),
                (rows, axis.yaxis, self.y, axis.set_ylabel),
            ):
                which.set_ticks(range(len(words)), [labels.plain(w, 24) for w in words])
                if name not in ("*", "operation"):
                    set_label(labels.named(name))

        width = 0.95 * len(columns) + 0.07 * min(longest, 24) + 1.5
        size = (min(width, style.WIDTH), 0.5 * len(rows) + 0.8)
        return style.svg(size, draw)


def _property(run: RunRecord, name: str, star: str) -> object:
    return star.replace("_", " ") if name == "*" else run.comparable_flags.get(name)


def _draw_cells(page: Page, axis: Axes, content: Any, label: str, rate: bool) -> None:
    """Draw coloured cells with numbers, and a cross where all runs failed."""
    import numpy as np
    from matplotlib.colors import Normalize

    columns, rows, cells = content
    means = np.full((len(rows), len(columns)), np.nan)
    for (x, y), cell in cells.items():
        finite = [v for v in cell if v is not None and math.isfinite(v)]
        if finite:
            means[rows.index(y), columns.index(x)] = statistics.mean(finite)
    known = means[~np.isnan(means)]
    low, high = (float(known.min()), float(known.max())) if known.size and not rate else (0.0, 1.0)
    norm, cmap = Normalize(low, high), style.colours()
    edges = [np.arange(len(names) + 1) - 0.5 for names in (columns, rows)]
    mesh = axis.pcolormesh(*edges, means, norm=norm, cmap=cmap)
    bar = page.colorbar(mesh, ax=axis)
    bar.outline.set_visible(False)
    bar.set_label(label)
    if rate:
        style.percent(bar.ax.yaxis)
    for (x, y), cell in sorted(cells.items()):
        i, j = columns.index(x), rows.index(y)
        value = means[j, i]
        if np.isnan(value):
            axis.plot([i], [j], "x", color=VERMILION)
            continue
        failed = sum(v is None or not math.isfinite(v) for v in cell)
        shown = f"{100 * value:.0f}" if rate else f"{value:.3g}"
        text = shown + (f" ({failed}×)" if failed else "")
        style.number_in_cell(axis, i, j, text, cmap(norm(value)))
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
