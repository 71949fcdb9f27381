"""Importance of searches' parameters as SVG: a bar per parameter, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runcatalog.analysis.searches import Importance, importance_of
from runcatalog.model.run_record import RunRecord
from runcatalog.plots import labels, style
from runcatalog.plots.style import BLUE, GREY, VERMILION
from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page

MAX_COLUMNS = 3  # panels in a row


@dataclass(frozen=True)
class ImportanceBars:
    """Figure of the importance of searches' parameters.

    Attributes:
        searches: Batch records with importance, by the operation and id in the panel's title.
    """

    searches: Mapping[tuple[str, str], RunRecord]

    @property
    def runs(self) -> list[RunRecord]:
        """The searches."""
        return list(self.searches.values())

    def svg(self) -> str:
        """Return the figure."""
        panels = [
            (search, importance)
            for search, batch in self.searches.items()
            if (importance := importance_of(batch))
        ]
        columns = min(MAX_COLUMNS, len(panels))
        rows = math.ceil(len(panels) / columns)
        most = max(len(importance.shares) for _, importance in panels)

        def draw(page: Page) -> None:
            grid = page.add_gridspec(rows, columns)
            for i, (search, importance) in enumerate(panels):
                axis = page.add_subplot(grid[i // columns, i % columns])
                _panel(axis, *search, importance)
            page.supxlabel("share of the objective's variance [%]", color=GREY, fontsize=9)
            _legend(page)

        width = min(3.1 * columns + 0.2, style.WIDTH)
        return style.svg((width, (0.87 + 0.27 * most) * rows + 0.75), draw)


def _panel(axis: Axes, name: str, run: str, importance: Importance) -> None:
    """Draw the bars of a search, the largest on top, undetermined shares hollow."""
    for place, share in enumerate(importance.shares):
        value, low, high = (min(max(v, 0.0), 1.0) for v in (share.value, share.low, share.high))
        axis.barh(
            [place], [value], height=0.6, linewidth=1,
            color=BLUE if share.determined else "none",
            edgecolor=BLUE if share.determined else GREY,
        )  # fmt: skip
        style.interval(axis, place, low, high, VERMILION, flat=True)
    axis.set_yticks(
        range(len(importance.shares)), [labels.plain(share.name, 24) for share in importance.shares]
    )
    axis.set_ylim(len(importance.shares) - 0.5, -0.5)
    axis.set_xlim(0, 1.02)
    style.percent(axis.xaxis)
    style.dress(axis, "both")
    axis.grid(visible=False, axis="y")
    # On separate lines, since a name can be as wide as a panel.
    fit = f"cross-validated R² {markdown.number(importance.r2, 2)}"
    lines = labels.plain(name, 50), labels.plain(f"{run}, {importance.trials} trials"), fit
    axis.set_title("\n".join(lines), color=GREY, fontsize=8)


def _legend(page: Page) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=BLUE, edgecolor=BLUE, label="determined"),
        Patch(facecolor="none", edgecolor=GREY, label="undetermined"),
        style.interval_key("95 % interval", VERMILION),
    ]
    page.legend(handles=handles, loc="outside upper center", ncols=3)
