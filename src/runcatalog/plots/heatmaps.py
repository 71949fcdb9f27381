"""Heat maps of sweeps as SVG: a metric for each pair of two properties of the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runcatalog.model import statistics, values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.curves import fitting
from runcatalog.plots.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page


@dataclass(frozen=True)
class HeatMap:
    """The mean of a metric for each pair of two properties of runs.

    Attributes:
        runs: The runs; failed ones too.
        x, y: What is across and what is up: a flag, "operation", or "*", what a metric's `*` stands for.
        metric: Name of a metric, whose last value counts, with a `*` or not; "objective" for each run's own.
        label: What it is called, with its unit.
        rate: Whether the values are shares, shown in per cent; by default what the runs' objectives say.
        units: Unit by flag.
    """

    runs: Sequence[RunRecord]
    x: str
    y: str
    metric: str = "objective"
    label: str | None = None
    rate: bool | None = None
    units: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> tuple[list[str], list[str], dict[tuple[str, str], list[float | None]]]:
        """Returns the names across, the names up, and the values by (across, up); None for a failed run."""
        found: dict[tuple[str, str], list[float | None]] = {}
        sizes: dict[str, dict[str, tuple[int, float, str]]] = {"x": {}, "y": {}}
        for place, run in enumerate(self.runs):
            for star, value in self._values(run).items():
                key = []
                for which, wanted in (("x", self.x), ("y", self.y)):
                    told = self._property(run, wanted, star)
                    # Operations stay in the order of the runs; numbers go by size.
                    size = (0, float(place), "") if wanted == "operation" else values.sort_key(told)
                    sizes[which].setdefault(labels.value(told), size)
                    key.append(labels.value(told))
                found.setdefault((key[0], key[1]), []).append(value)
        across, up = (sorted(s, key=lambda word, s=s: s[word]) for s in (sizes["x"], sizes["y"]))
        return across, up, found

    def _values(self, run: RunRecord) -> dict[str, float | None]:
        """A run's values by what the `*` stands for ("" without one): as its result tells them, or the last."""
        if run.status != FINISHED:
            return {"": None} if run.status in (FAILED, KILLED) and "*" not in self.metric else {}
        told = (run.result or {}).get("metrics")
        known: dict[str, float] = {name: metric.last for name, metric in run.metrics.items()}
        for name, value in (told if isinstance(told, dict) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                known[name] = float(value)
        if objective := run.objective:
            known["objective"] = objective["value"]
        if "*" in self.metric:
            fit = fitting(self.metric, sorted(known))
            return {star: known[name] for star, name in sorted(fit.items())}
        return {"": known[self.metric]} if self.metric in known else {}

    @staticmethod
    def _property(run: RunRecord, name: str, star: str) -> object:
        if name == "*":
            return star.replace("_", " ")
        return run.operation.rpartition(":")[2] if name == "operation" else run.flags.get(name)

    def svg(self) -> str:
        """Draws it."""
        across, up, found = self.cells()
        told = next((o for r in self.runs if (o := r.objective)), {})
        rate = told.get("kind") == "rate" if self.rate is None else self.rate
        name = self.metric.replace("*", "").strip("/ ")
        if self.metric == "objective":
            name = str(told.get("name") or name)
        label = labels.named(name, "%" if rate else "", self.label)
        longest = max(len(word) for word in up)

        def draw(page: Page) -> None:
            axis = page.subplots()
            _cells(page, axis, (across, up, found), label, rate)
            axis.yaxis.set_inverted(self.y in ("*", "operation"))  # a list is read from above
            for words, which, wanted, setter in (
                (across, axis.xaxis, self.x, axis.set_xlabel),
                (up, axis.yaxis, self.y, axis.set_ylabel),
            ):
                which.set_ticks(range(len(words)), [labels.plain(w, 24) for w in words])
                if wanted not in ("*", "operation"):
                    setter(labels.named(wanted, self.units.get(wanted, "")))

        size = (0.95 * len(across) + 0.07 * min(longest, 24) + 1.5, 0.5 * len(up) + 0.8)
        return style.svg(size, draw)


def _cells(page: Page, axis: Axes, told: Any, label: str, rate: bool) -> None:
    """Coloured cells with their numbers; a cross where all runs failed."""
    import numpy as np
    from matplotlib.colors import Normalize

    across, up, found = told
    means = np.full((len(up), len(across)), np.nan)
    for (x, y), each in found.items():
        finite = [v for v in each if v is not None and math.isfinite(v)]
        if finite:
            means[up.index(y), across.index(x)] = statistics.mean(finite)
    known = means[~np.isnan(means)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    norm, cmap = Normalize(low, high), style.colours()
    edges = [np.arange(len(names) + 1) - 0.5 for names in (across, up)]
    mesh = axis.pcolormesh(*edges, means, norm=norm, cmap=cmap)
    bar = page.colorbar(mesh, ax=axis)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(label)
    if rate:
        style.percent(bar.ax.yaxis)
    for (x, y), each in sorted(found.items()):
        i, j = across.index(x), up.index(y)
        value = means[j, i]
        if np.isnan(value):
            axis.plot([i], [j], "x", color=COLOURS[1])
            continue
        dark = _luminance(cmap(norm(value))[:3]) > 0.18  # where black has more contrast than white
        failed = sum(v is None for v in each)
        shown = f"{100 * value:.0f}" if rate else f"{value:.3g}"
        ink = axis.text(i, j, shown + (f" ({failed}×)" if failed else ""), ha="center", va="center")
        ink.set_gid(f"ink-{'dark' if dark else 'light'}-{i}-{j}")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of sRGB shares (WCAG 2.1)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
