"""The columns that an operation declares for `guild compare`: its `compare:` attribute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FLAG, ATTRIBUTE, SCALAR = "flag", "attribute", "scalar"

_NAMED = re.compile(r"(?P<what>.+?)\s+as\s+(?P<header>\S.*)", re.IGNORECASE)
_QUALIFIED = re.compile(
    r"(?P<of>min|max|first|last|avg|total|count)\s+(?P<key>\S.*)", re.IGNORECASE
)
_STEP = re.compile(r"(?P<key>.+?)\s+step", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """One column of `guild compare`.

    Attributes:
        header: What the table and the CSV call it.
        kind: FLAG, ATTRIBUTE (of the run) or SCALAR.
        name: Name of the flag, attribute or metric.
        is_step: Whether it is the step of a metric and not its value.
        of: Which of the metric's values: "last", or "min", "max", "first", "avg", "total", "count".
    """

    header: str
    kind: str
    name: str
    is_step: bool = False
    of: str = "last"


def parsed(specification: str) -> Column:
    """Return what a specification such as "=lr", ".host" or "max loss step as updates" stands for.

    The grammar is Guild's (`guild compare --help`, COLUMNS).
    """
    shown = specification.strip()
    named = _NAMED.fullmatch(shown)
    what = named["what"] if named else shown
    header = _unquoted(named["header"]) if named else ""
    for kind, marks in ((FLAG, ("=", "flag:")), (ATTRIBUTE, (".", "attr:"))):
        for mark in marks:
            if what.startswith(mark):
                name = _unquoted(what[len(mark) :])
                return Column(header or name, kind, name)
    what = what.removeprefix("scalar:").strip()
    of = "last"
    if qualified := _QUALIFIED.fullmatch(what):
        of, what = qualified["of"].lower(), qualified["key"]
    step = _STEP.fullmatch(what)
    key = _unquoted(step["key"] if step else what)
    plain = key.replace("#", " ").strip()
    name = key.rpartition("#")[2]
    return Column(header or plain + (" step" if step else ""), SCALAR, name, step is not None, of)


def values_of(declared: Iterable[Column]) -> list[Column]:
    """Return the columns that show the last value of a metric."""
    return [c for c in declared if c.kind == SCALAR and not c.is_step and c.of == "last"]


def columns(specifications: Iterable[str]) -> list[Column]:
    """Return the columns of a `compare:` attribute."""
    return [parsed(each) for each in specifications]


def _unquoted(name: str) -> str:
    name = name.strip()
    quoted = len(name) > 1 and name[0] == name[-1] and name[0] in "'\""
    return name[1:-1] if quoted else name
