"""Axis labels and legend texts, with numbers and names as in the tables."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL = 30  # characters of a line in the legend


def operations(names: Iterable[str]) -> dict[str, str]:
    """Return the names of operations without their models, by name; whole where two would be the same."""
    short = {name: name.rpartition(":")[2] for name in names}
    counts = Counter(short.values())
    return {name: text if counts[text] == 1 else name for name, text in short.items()}


def logarithmic(axes: Axes, *, upright: bool = False) -> None:
    """Make an axis logarithmic, with numbers as in the tables."""
    (axes.set_yscale if upright else axes.set_xscale)("log")
    axis = axes.yaxis if upright else axes.xaxis
    axis.set_major_formatter(lambda number, _: markdown.flag_value(number))
    axis.set_minor_formatter(lambda number, _: "")


def steps(axes: Axes) -> None:
    """Give the horizontal axis numbers of steps, in millions if it is long."""
    largest = max(map(abs, axes.get_xlim()))
    form = (
        (lambda step, _: f"{step / 1e6:g} M") if largest >= 1e5 else (lambda step, _: f"{step:g}")
    )
    axes.xaxis.set_major_formatter(form)


def named(name: str, unit: str = "", label: str | None = None) -> str:
    """Return the given label of an axis, or one from name and unit: "validation opening rate [%]"."""
    if label is not None:
        return plain(label, 60)
    shown = plain(name.replace("_", " "))
    return f"{shown} [{plain(unit)}]" if unit else shown


def plain(shown: object, limit: int = 48) -> str:
    """Return text for a figure: on one line, truncated, and without matplotlib's markup of mathematics."""
    return markdown.literal(shown, limit).replace("\\", "").replace("$", r"\$")


def wrapped(shown: object) -> str:
    """Return text for a legend, on lines of at most LABEL characters."""
    return "\n".join(textwrap.wrap(plain(shown, 3 * LABEL), LABEL))


def value(shown: object) -> str:
    """Return a flag's value in its usual notation, not escaped for Markdown."""
    return markdown.literal(shown) if isinstance(shown, str) else markdown.flag_value(shown)


def point(flags: Mapping[str, object], *, named: bool = False) -> str:
    """Return "5e-3", or "lr=5e-3, clip=0.3" for more than one flag."""
    if len(flags) == 1 and not named:
        return value(next(iter(flags.values())))
    return ", ".join(f"{name}={value(v)}" for name, v in flags.items())


def points(flags_of_points: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the legend's labels of points; only values, without names of flags, if a label would be too long."""
    named = [point(flags) for flags in flags_of_points]
    if all(len(name) <= LABEL for name in named):
        return named
    return [", ".join(map(value, flags.values())) for flags in flags_of_points]
