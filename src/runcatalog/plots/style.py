"""What all figures share: the same records give the same bytes, readable on light and dark pages."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runcatalog.plots.study_style import GREY, numbered
from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR_MAP = "viridis"  # even steps, for colour-blind readers too (bids.github.io/colormap)
LINES = ("-", "--", ":")
LABEL = 30  # characters of a legend's labels
# A page's own colours do not reach into an image; what the reader's system prefers does. The page may be of the
# other kind than the system, so both greys have a contrast of at least 3 to both backgrounds.
_STYLE = (
    "<style>text{fill:#656c76!important}"
    "@media(prefers-color-scheme:dark){text{fill:#8b929b!important}}"
    '[id^="ink-dark"] text{fill:#111!important}[id^="ink-light"] text{fill:#fff!important}</style>'
)


def drawn(size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Returns a figure as SVG with a transparent background.

    Args:
        size: Width and height in inches.
        draw: Fills the empty figure.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings = {
        "svg.hashsalt": "catalog",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "legend.fontsize": 8,
        "legend.title_fontsize": 8,
        "legend.frameon": False,
        "path.simplify": False,
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "axes.edgecolor": GREY,
        "axes.titlesize": 9,
        "xtick.color": GREY,
        "ytick.color": GREY,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        written = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        with warnings.catch_warnings():
            # Widths are guessed by matplotlib's font; the letters are the reader's.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            figure.savefig(written, format="svg", transparent=True, metadata=metadata)
    return _finished(written.getvalue())


def dress(axis: Axes) -> None:
    """Gives axes a faint grid and no frame above and to the right."""
    axis.grid(color=GREY, alpha=0.25, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def percent(axis: Any) -> None:
    """Writes the shares of an axis (`axes.xaxis` or `axes.yaxis`) in per cent."""
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 6):g}")


def logarithmic(axes: Axes, *, upright: bool = False) -> None:
    """Makes an axis logarithmic, its numbers written as in the tables."""
    (axes.set_yscale if upright else axes.set_xscale)("log")
    axis = axes.yaxis if upright else axes.xaxis
    axis.set_major_formatter(lambda number, _: markdown.flag_value(number))
    axis.set_minor_formatter(lambda number, _: "")


def colours(*, reverse: bool = False) -> Any:
    """Returns the colour map of all figures; so few steps that a colour bar is no embedded bitmap."""
    from matplotlib import colormaps

    return colormaps[COLOUR_MAP + ("_r" if reverse else "")].resampled(32)


def named(name: str, unit: str = "", label: str | None = None) -> str:
    """Returns an axis' label: the one that is given, or name and unit: "validation opening rate [%]"."""
    if label is not None:
        return plain(label, 60)
    shown = plain(name.replace("_", " "))
    return f"{shown} [{plain(unit)}]" if unit else shown


def plain(shown: object, limit: int = 48) -> str:
    """Returns text as a figure can show it: one line, cut, nothing that matplotlib takes for mathematics."""
    return markdown.literal(shown, limit).replace("\\", "").replace("$", r"\$")


def value(shown: object) -> str:
    """Returns a flag's value as people write it, not escaped for Markdown."""
    return markdown.literal(shown) if isinstance(shown, str) else markdown.flag_value(shown)


def point(flags: Mapping[str, object], *, named: bool = False) -> str:
    """Returns "5e-3", or "lr=5e-3, clip=0.3" where there are more flags."""
    if len(flags) == 1 and not named:
        return value(next(iter(flags.values())))
    return ", ".join(f"{name}={value(each)}" for name, each in flags.items())


def points(of: Sequence[Mapping[str, object]]) -> list[str]:
    """Returns what a legend calls some points: by values alone, as its title says, if a name would be cut."""
    named = [point(flags) for flags in of]
    if all(len(name) <= LABEL for name in named):
        return named
    return [", ".join(map(value, flags.values())) for flags in of]


def _finished(svg: str) -> str:
    head, tag, rest = numbered(svg, "catalog").partition(" <defs>")
    lines = (head + " " + _STYLE + "\n" + tag + rest).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
