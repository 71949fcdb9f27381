"""Style of all figures: reproducible bytes, readable on light and dark pages.

No background, grey text, no pale colours. Only matplotlib is needed; it is imported on use.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#808080"
# Okabe and Ito's colours (jfly.uni-koeln.de/color) without black and yellow, which are hard to see on a dark or a light
# page; ochre (their orange) and sky blue are darkened to a contrast of 3 on white. Violet and olive are added.
NAMED_COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "ochre": "#C08600",
    "sky": "#3897D3",
    "violet": "#8C6BD1",
    "olive": "#7A8B00",
}
COLOURS = tuple(NAMED_COLOURS.values())
BLUE, VERMILION = COLOURS[:2]
DASHES = {
    "solid": "-",
    "dashed": (0, (4, 1.5)),
    "dotted": (0, (1, 1.2)),
    "dash-dotted": (0, (5, 1.5, 1, 1.5)),
}
COLOUR_MAP = (
    "viridis"  # perceptually uniform, also for colour-blind readers (bids.github.io/colormap)
)
_REFERENCES = ((0, (1, 1.5)), (0, (5, 2)), (0, (5, 2, 1, 2)))  # dashes of reference lines
WIDTH = 8.6  # inches, 826 px: the width of GitHub's page; a wider figure would be shown smaller, with its text
# matplotlib's ids of clip paths and markers, in definitions and references.
_HASHED = re.compile(r'(?<=["#])[A-Za-z]\w*[0-9a-f]{10}(?=["\)])')
_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_SETTINGS = dict.fromkeys(_INK, GREY) | {
    "svg.fonttype": "none",
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "axes.titlesize": 9,
    "path.simplify": False,
}
# An image cannot use the page's colours, only the preference of the reader's system (light or dark). Page and system
# may differ, so both greys have a contrast of at least 3 on both backgrounds.
_PREFERENCE = (
    "<style>text{fill:#656c76!important}"
    "@media(prefers-color-scheme:dark){text{fill:#8b929b!important}}"
    '[id^="ink-dark"] text{fill:#111!important}[id^="ink-light"] text{fill:#fff!important}</style>'
)


def svg(size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Return a figure of the generated page as SVG.

    Args:
        size: Width and height in inches.
        draw: Fills the empty figure.
    """
    with _figure(size, "catalog") as (figure, written):
        draw(figure)
    return _finished(written.getvalue(), "catalog")


def drawn(
    path: Path, size: tuple[float, float], draw: Callable[[Figure], None], study: str
) -> None:
    """Write a figure that `draw` fills; see `sheet`."""
    with sheet(path, size, study) as figure:
        draw(figure)


@contextlib.contextmanager
def sheet(path: Path, size: tuple[float, float], study: str) -> Iterator[Figure]:
    """Yield an empty figure of a study, which is written as SVG when the context ends.

    Args:
        path: File to write.
        size: Width and height in inches; at most WIDTH wide, so that text keeps its size on a page.
        study: Name of the study; prefix of the ids in the file, so that figures on a page have different ids.
    """
    with _figure(size, study) as (figure, written):
        yield figure
    path.write_text(_finished(written.getvalue(), study), encoding="utf-8")


@contextlib.contextmanager
def _figure(size: tuple[float, float], salt: str) -> Iterator[tuple[Figure, io.StringIO]]:
    """Yield an empty figure and a buffer that contains its SVG after the context has ended."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    changed: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_SETTINGS, "svg.hashsalt": salt}
    with matplotlib.rc_context(changed):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        written = io.StringIO()
        yield figure, written
        metadata = {"Date": None, "Creator": None}
        with warnings.catch_warnings():
            # matplotlib's font is only used to estimate widths; the reader's font draws the text.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            figure.savefig(written, format="svg", transparent=True, metadata=metadata)


def _finished(svg: str, name: str) -> str:
    """Return an SVG of matplotlib with counted ids, and with text that suits the reader's system."""
    head, tag, rest = numbered(svg, name).partition(" <defs>")
    lines = (head + " " + _PREFERENCE + "\n" + tag + rest).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def numbered(svg: str, name: str) -> str:
    """Return an SVG of matplotlib with counted ids instead of hashed ones, which differ between machines.

    Args:
        svg: The text.
        name: Prefix of the ids, so that figures on a page have different ids.
    """
    names: dict[str, str] = {}
    return _HASHED.sub(lambda match: names.setdefault(match[0], f"{name}-{len(names) + 1}"), svg)


def dress(axes: Axes, grid: Literal["y", "both"] = "y") -> None:
    """Add a faint grid, and remove the frame above and to the right."""
    axes.grid(axis=grid, color=GREY, alpha=0.25, linewidth=0.5)
    if grid == "both":
        axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def percent(axis: Any) -> None:
    """Format the tick labels of an axis of shares (`axes.xaxis` or `axes.yaxis`) in per cent."""
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 6):g}")


def colours(*, reverse: bool = False) -> Any:
    """Return the colour map of all figures, with so few steps that a colour bar is drawn as vectors."""
    from matplotlib import colormaps

    return colormaps[COLOUR_MAP + ("_r" if reverse else "")].resampled(32)


def series(axes: Axes, x: Any, y: Any, name: str, **style: Any) -> None:
    """Draw a line that stands for a name; the name is its id in the file.

    Args:
        axes: Where to draw.
        x, y: The points.
        name: What the line stands for.
        style: Of matplotlib's `plot`.
    """
    (line,) = axes.plot(x, y, **style)
    line.set_gid(_id(axes, "series", name))


def band(axes: Axes, x: Any, low: Any, high: Any, colour: str) -> None:
    """Shade the area between two lines; a legend must say what they are, see `band_key`."""
    area = axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    area.set_gid(_id(axes, "band", ""))


def band_key(text: str) -> Any:
    """Return the legend's entry of the bands."""
    from matplotlib.patches import Patch

    return Patch(color=GREY, alpha=0.3, linewidth=0, label=text)


def interval(
    axes: Axes, x: float, low: float, high: float, colour: str, *, flat: bool = False
) -> None:
    """Draw an interval as a bar at x, or at the height x if it is `flat`; a legend must say what it is."""
    across, up = ([low, high], [x, x]) if flat else ([x, x], [low, high])
    (line,) = axes.plot(across, up, color=colour, linewidth=2, solid_capstyle="butt")
    line.set_gid(_id(axes, "band", ""))


def interval_key(text: str, colour: str = GREY) -> Any:
    """Return the legend's entry of the intervals."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=2, label=text)


def references(axes: Axes, values: Mapping[str, float], *, upright: bool = False) -> None:
    """Draw grey lines at heights, or `upright` ones at values of x; the legend needs `reference_keys`."""
    draw = axes.axvline if upright else axes.axhline
    for (name, value), dash in zip(values.items(), cycle(_REFERENCES), strict=False):
        line = draw(value, color=GREY, linestyle=dash, linewidth=1.2, zorder=1)
        line.set_gid(_id(axes, "reference", name))


def reference_keys(names: Iterable[str]) -> list[Any]:
    """Return the legend's entries of references, in their order."""
    from matplotlib.lines import Line2D

    dashes = zip(names, cycle(_REFERENCES), strict=False)
    return [
        Line2D([], [], color=GREY, linestyle=dash, linewidth=1.2, label=name)
        for name, dash in dashes
    ]


def _id(axes: Axes, kind: str, name: str) -> str:
    """Return an id that no other line of the figure has."""
    figure: Any = axes.figure
    number = sum(len(each.lines) + len(each.collections) for each in figure.axes)
    return "-".join(filter(None, (kind, str(number), re.sub(r"\W+", "_", name).strip("_"))))


def heat_map(figure: Figure, rates: np.ndarray, digits: int = 0) -> Axes:
    """Fill a figure with success rates as colours and numbers; the first row is on top.

    Args:
        figure: Empty figure.
        rates: Float [R, C]; a cell with NaN stays empty.
        digits: Decimal places of the numbers in per cent.
    """
    import numpy as np

    shades = colours()
    axes = figure.subplots()
    across, down = (np.arange(count + 1) - 0.5 for count in rates.shape[::-1])
    mesh = axes.pcolormesh(across, down, 100 * rates, vmin=0, vmax=100, cmap=shades)
    bar = figure.colorbar(mesh, ax=axes, label="success [%]")
    bar.outline.set_visible(False)
    for (i, j), rate in np.ndenumerate(rates):
        if not np.isnan(rate):
            number_in_cell(axes, j, i, f"{100 * rate:.{digits}f}", shades(rate))
    axes.yaxis.set_inverted(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def number_in_cell(axes: Axes, x: float, y: float, text: str, colour: Any) -> None:
    """Write a number on a coloured cell, in black or white, whichever has more contrast."""
    written = axes.text(x, y, text, ha="center", va="center")
    ink = "dark" if _luminance(colour[:3]) > 0.18 else "light"
    written.set_gid(f"ink-{ink}-{x:g}-{y:g}")


def _luminance(colour: Sequence[float]) -> float:
    """Return the relative luminance of an sRGB colour (WCAG 2.1); above 0.18 black has more contrast than white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
