"""How much each parameter of some searches matters, as SVG: a bar each, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runcatalog.analysis.importance import Importance
from runcatalog.analysis.search_summary import importance_of
from runcatalog.model.run_record import RunRecord
from runcatalog.plots import style
from runcatalog.plots.study_style import COLOURS, GREY
from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

ACROSS = 3  # panels in a row


@dataclass(frozen=True)
class ImportanceBars:
    """The importances of some searches' parameters.

    Attributes:
        runs: The searches.
        trials: Their trials by operation and run, as the panel is called, with what each search optimised as their
            objective; of each search there is something to tell (`search_summary.importance_of`).
    """

    runs: Sequence[RunRecord]
    trials: Mapping[tuple[str, str], Sequence[RunRecord]]

    def svg(self) -> str:
        """Draws it."""
        found = {search: importance_of(trials) for search, trials in self.trials.items()}
        panels = [(search, each) for search, each in found.items() if each is not None]
        across = min(ACROSS, len(panels))
        down = math.ceil(len(panels) / across)
        most = max(len(each.shares) for _, each in panels)

        def draw(page: Page) -> None:
            grid = page.add_gridspec(down, across)
            for i, (search, each) in enumerate(panels):
                _panel(page.add_subplot(grid[i // across, i % across]), *search, each)
            page.supxlabel("share of the objective's variance [%]", color=GREY, fontsize=9)
            _legend(page)

        return style.drawn((3.1 * across + 0.2, (0.87 + 0.27 * most) * down + 0.75), draw)


def _panel(axis: Axes, name: str, run: str, told: Importance) -> None:
    """The bars of a search, the largest on top; hollow where the parameter may have no part."""
    for place, share in enumerate(told.shares):
        value, low, high = (min(max(v, 0.0), 1.0) for v in (share.value, share.low, share.high))
        certain = share in told.told
        axis.barh(
            [place], [value], height=0.6, linewidth=1,
            color=COLOURS[0] if certain else "none",
            edgecolor=COLOURS[0] if certain else GREY,
        )  # fmt: skip
        axis.plot([low, high], [place, place], color=COLOURS[1], linewidth=1.2)
        axis.plot([low, high], [place, place], "|", color=COLOURS[1], markersize=6)
    axis.set_yticks(range(len(told.shares)), [style.plain(share.name, 24) for share in told.shares])
    axis.set_ylim(len(told.shares) - 0.5, -0.5)
    axis.set_xlim(0, 1.02)
    style.percent(axis.xaxis)
    style.dress(axis)
    axis.grid(visible=False, axis="y")
    # A line each: names are as wide as a panel.
    fit = f"cross-validated R² {markdown.number(told.r2, 2)}"
    lines = style.plain(name, 50), style.plain(f"{run}, {told.trials} trials"), fit
    axis.set_title("\n".join(lines), color=GREY, fontsize=8)


def _legend(page: Page) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=COLOURS[0], edgecolor=COLOURS[0], label="matters"),
        Patch(facecolor="none", edgecolor=GREY, label="may have no part"),
        Line2D([], [], color=COLOURS[1], linewidth=1.2, label="95 % interval, jackknife"),
    ]
    page.legend(handles=handles, loc="outside upper center", ncols=3)
