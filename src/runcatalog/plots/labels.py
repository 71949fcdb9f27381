"""Axis labels and legend texts: numbers and names as the tables write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runcatalog.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL = 30  # characters of a legend's labels


def logarithmic(axes: Axes, *, upright: bool = False) -> None:
    """Makes an axis logarithmic, its numbers written as in the tables."""
    (axes.set_yscale if upright else axes.set_xscale)("log")
    axis = axes.yaxis if upright else axes.xaxis
    axis.set_major_formatter(lambda number, _: markdown.flag_value(number))
    axis.set_minor_formatter(lambda number, _: "")


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
    return ", ".join(f"{name}={value(of)}" for name, of in flags.items())


def points(of: Sequence[Mapping[str, object]]) -> list[str]:
    """Returns what a legend calls some points: by values alone, as its title says, if a name would be cut."""
    named = [point(flags) for flags in of]
    if all(len(name) <= LABEL for name in named):
        return named
    return [", ".join(map(value, flags.values())) for flags in of]
