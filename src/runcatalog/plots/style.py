"""Style of all figures: reproducible bytes, readable on light and dark pages.

No background, grey text, no pale colours. Only matplotlib is needed; it is imported on use.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#808080"
# Okabe and Ito's colours (jfly.uni-koeln.de/color) without black and yellow, which are hard to see on a dark or a light
# page; orange and sky blue are darkened to a contrast of 3 on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08600", "#3897D3")
COLOUR_MAP = (
    "viridis"  # perceptually uniform, also for colour-blind readers (bids.github.io/colormap)
)
LINES = ("-", "--", ":")
# matplotlib's ids of clip paths and markers, in definitions and references.
_HASHED = re.compile(r'(?<=["#])[A-Za-z]\w*[0-9a-f]{10}(?=["\)])')
_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_SETTINGS = dict.fromkeys(_INK, GREY) | {
    "svg.fonttype": "none",
    "font.size": 9,
    "legend.frameon": False,
}
_SMALL = {
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "path.simplify": False,
    "axes.titlesize": 9,
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
    with _figure(size, "catalog", _SMALL) as (figure, written):
        draw(figure)
    head, tag, rest = numbered(written.getvalue(), "catalog").partition(" <defs>")
    lines = (head + " " + _PREFERENCE + "\n" + tag + rest).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


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
        size: Width and height in inches.
        study: Name of the study; prefix of the ids in the file, so that figures on a page have different ids.
    """
    with _figure(size, study) as (figure, written):
        yield figure
    path.write_text(numbered(written.getvalue(), study), encoding="utf-8")


@contextlib.contextmanager
def _figure(
    size: tuple[float, float], salt: str, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[Figure, io.StringIO]]:
    """Yield an empty figure and a buffer that contains its SVG after the context has ended."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    changed = _SETTINGS | {"svg.hashsalt": salt} | dict(settings or {})
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **changed}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        written = io.StringIO()
        yield figure, written
        metadata = {"Date": None, "Creator": None}
        with warnings.catch_warnings():
            # matplotlib's font is only used to estimate widths; the reader's font draws the text.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            figure.savefig(written, format="svg", transparent=True, metadata=metadata)


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
    bar.outline.set_visible(False)  # type: ignore[operator]
    for (i, j), rate in np.ndenumerate(rates):
        if not np.isnan(rate):
            ink = "#111111" if _luminance(shades(rate)[:3]) > 0.18 else "#ffffff"
            axes.text(j, i, f"{100 * rate:.{digits}f}", color=ink, ha="center", va="center")
    axes.yaxis.set_inverted(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def _luminance(colour: Sequence[float]) -> float:
    """Return the relative luminance of an sRGB colour (WCAG 2.1); above 0.18 black has more contrast than white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
