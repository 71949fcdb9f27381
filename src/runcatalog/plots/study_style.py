"""What the studies' figures share: the same bytes for the same data, readable on a white page and on a dark one.

No background, grey text, no pale colour.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#808080"
# Ids of clip paths, markers and the like, where they are given and where they are used.
_HASHED = re.compile(r'(?<=["#])[A-Za-z]\w*[0-9a-f]{10}(?=["\)])')
# Okabe and Ito's colours (jfly.uni-koeln.de/color) without black and yellow, which vanish on one of the two
# backgrounds; orange and sky blue are darker than theirs, for three times a white page's contrast.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08600", "#3897D3")


def drawn(
    path: Path, size: tuple[float, float], draw: Callable[[Figure], None], study: str
) -> None:
    """Writes what `draw` fills an empty figure with; see `sheet`."""
    with sheet(path, size, study) as figure:
        draw(figure)


@contextlib.contextmanager
def sheet(path: Path, size: tuple[float, float], study: str) -> Iterator[Figure]:
    """An empty figure, which is written as an SVG when it is filled.

    Args:
        path: Where to.
        size: Width and height in inches.
        study: Its name goes into the ids in the file, so that two figures on a page have others.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(ink, GREY) | {
        "svg.hashsalt": study,
        "svg.fonttype": "none",
        "font.size": 9,
        "legend.frameon": False,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        yield figure
        written = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(written, format="svg", transparent=True, metadata=metadata)
    path.write_text(numbered(written.getvalue(), study), encoding="utf-8")


def numbered(svg: str, name: str) -> str:
    """An SVG of matplotlib with the ids of what is used again counted, not hashed: hashes differ between machines.

    Args:
        svg: The text.
        name: Goes into the ids, so that two figures on a page have others.
    """
    names: dict[str, str] = {}
    return _HASHED.sub(lambda found: names.setdefault(found[0], f"{name}-{len(names) + 1}"), svg)


def heat_map(figure: Figure, rates: np.ndarray, digits: int = 0) -> Axes:
    """Fills a figure with success rates, each as a colour and as a number; the first row is above.

    Args:
        figure: Without axes.
        rates: Float [R, C]; NaN leaves a place empty.
        digits: Of a number in per cent, behind the point.
    """
    import numpy as np
    from matplotlib import colormaps

    colours = colormaps["viridis"].resampled(32)
    axes = figure.subplots()
    across, down = (np.arange(count + 1) - 0.5 for count in rates.shape[::-1])
    mesh = axes.pcolormesh(across, down, 100 * rates, vmin=0, vmax=100, cmap=colours)
    bar = figure.colorbar(mesh, ax=axes, label="success [%]")
    bar.outline.set_visible(False)  # type: ignore[operator]
    for (i, j), rate in np.ndenumerate(rates):
        if not np.isnan(rate):
            ink = "#111111" if _luminance(colours(rate)[:3]) > 0.18 else "#ffffff"
            axes.text(j, i, f"{100 * rate:.{digits}f}", color=ink, ha="center", va="center")
    axes.yaxis.set_inverted(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def dress(axes: Axes) -> None:
    """A faint grid across, and no frame above and to the right."""
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of sRGB shares (WCAG 2.1): black has more contrast than white above 0.18."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
