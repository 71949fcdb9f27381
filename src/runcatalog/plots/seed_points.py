"""Results of settings as SVG: a point for every seed, with the mean and its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runcatalog.analysis import groups, record_numbers
from runcatalog.model import statistics
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.curves import reference_values
from runcatalog.plots.style import BLUE, GREY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

_POINTS: dict[str, Any] = {
    "linestyle": "", "marker": "o", "markersize": 5, "fillstyle": "none", "color": BLUE,
}  # fmt: skip
_MEAN: dict[str, Any] = {"linestyle": "", "marker": "D", "markersize": 5, "color": VERMILION}
_BELOW = 0.25  # distance of the seeds' points from the line of their mean [rows]


@dataclass(frozen=True)
class SeedPoints:
    """Figure of settings compared: a row for each, a panel for each number.

    Attributes:
        runs: The runs; only finished ones are shown.
        numbers: Names of numbers of the records (:func:`runcatalog.analysis.record_numbers.values_of`) by the title of
            their panel.
        flags: Flags whose combinations are the settings; by default all in which the runs differ.
        names: Names of settings instead of their flags, such as {"StarPO-S": {"adv-estimator": "gae", "filter": 0.25}}.
        label: Label of the horizontal axis, with its unit.
        references: Vertical lines by name: a value, or the name of a metric in the runs' results ("chance").
    """

    runs: Sequence[RunRecord]
    numbers: Mapping[str, str]
    flags: Sequence[str] | None = None
    names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    label: str = ""
    references: Mapping[str, float | str] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, list[RunRecord]]]:
        """Return name and finished runs of every setting, the best first."""
        finished = [run for run in self.runs if run.status == FINISHED]
        grouped = groups.groups(finished, self.flags)
        titles = labels.points([group.point for group in grouped])
        return [
            (groups.name_of(group.trials[0], self.names) or title, list(group.trials))
            for title, group in zip(titles, grouped, strict=True)
        ]

    def svg(self) -> str:
        """Return the figure."""
        rows = self.rows()
        references = reference_values(self.references, [run for _, runs in rows for run in runs])

        def draw(page: Page) -> None:
            panels = page.subplots(1, len(self.numbers), squeeze=False, sharex=True, sharey=True)[0]
            for axes, (title, number) in zip(panels, self.numbers.items(), strict=True):
                for place, (_, runs) in enumerate(rows):
                    _row(axes, place, runs, number)
                style.references(axes, references, upright=True)
                axes.set_title(labels.plain(title))
                style.dress(axes, "both")
                axes.grid(visible=False, axis="y")
                if self._is_rate():
                    style.percent(axes.xaxis)
            panels[0].set_yticks(range(len(rows)), [labels.plain(name, 40) for name, _ in rows])
            panels[0].set_ylim(len(rows) - 0.5, -0.5)
            page.supxlabel(labels.plain(self.label, 80), color=GREY, fontsize=9)
            page.legend(handles=_keys(references), loc="outside upper center", ncols=3)

        width = min(3.1 * len(self.numbers) + 1.6, style.WIDTH)
        return style.svg((width, 0.34 * len(rows) + 1.3), draw)

    def _is_rate(self) -> bool:
        """Return whether the numbers are shares: the objectives are rates, and no number is outside of [0, 1]."""
        objectives = [run.objective for run in self.runs if run.objective]
        shown = (
            o["value"]
            for n in self.numbers.values()
            for o in record_numbers.objectives(self.runs, n)
        )
        return all(objective.get("kind") == "rate" for objective in objectives) and all(
            0 <= value <= 1 for value in shown if math.isfinite(value)
        )


def _keys(references: Mapping[str, float]) -> list[Any]:
    """Return the entries of the legend."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], **_POINTS, label="a seed"),
        Line2D([], [], **_MEAN, label="mean"),
        style.interval_key("95 % interval", VERMILION),
        *style.reference_keys(references),
    ]


def _row(axes: Axes, place: int, runs: Sequence[RunRecord], number: str) -> None:
    """Draw a setting: its runs below the line of the mean over its seeds and the interval of that."""
    known = [(o, run) for run in runs for o in record_numbers.objectives([run], number)]
    shown = [objective["value"] for objective, _ in known if math.isfinite(objective["value"])]
    if not shown:
        return
    axes.plot(shown, [place + _BELOW] * len(shown), **_POINTS)
    seeds = groups.over_seeds(known)
    if bounds := statistics.bounds(seeds):
        style.interval(axes, place, *bounds, VERMILION, flat=True)
    if len(shown) == len(known):  # as in the tables, a seed that diverged leaves no mean
        axes.plot([statistics.mean([seed["value"] for seed in seeds])], [place], **_MEAN)
