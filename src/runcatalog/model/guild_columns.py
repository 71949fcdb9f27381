"""Columns that an operation declares for `guild compare` in its `compare:` attribute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FLAG, ATTRIBUTE, SCALAR = "flag", "attribute", "scalar"

_NAMED = re.compile(r"(?P<source>.+?)\s+as\s+(?P<header>\S.*)", re.IGNORECASE)
_QUALIFIED = re.compile(
    r"(?P<statistic>min|max|first|last|avg|total|count)\s+(?P<key>\S.*)", re.IGNORECASE
)
_STEP = re.compile(r"(?P<key>.+?)\s+step", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column of `guild compare`.

    Attributes:
        header: Header in the table and the CSV.
        kind: FLAG, ATTRIBUTE (of the run) or SCALAR.
        name: Name of the flag, attribute or metric.
        is_step: Whether the column is the metric's step instead of its value.
        statistic: Statistic of the metric: "last", "min", "max", "first", "avg", "total" or "count".
    """

    header: str
    kind: str
    name: str
    is_step: bool = False
    statistic: str = "last"


def parse_column(specification: str) -> Column:
    """Parse a specification such as "=lr", ".host" or "max loss step as updates".

    The grammar is Guild's (`guild compare --help`, COLUMNS).
    """
    text = specification.strip()
    with_header = _NAMED.fullmatch(text)
    source = with_header["source"] if with_header else text
    header = _unquoted(with_header["header"]) if with_header else ""
    for kind, marks in ((FLAG, ("=", "flag:")), (ATTRIBUTE, (".", "attr:"))):
        for mark in marks:
            if source.startswith(mark):
                name = _unquoted(source[len(mark) :])
                return Column(header or name, kind, name)
    source = source.removeprefix("scalar:").strip()
    statistic = "last"
    if qualified := _QUALIFIED.fullmatch(source):
        statistic, source = qualified["statistic"].lower(), qualified["key"]
    with_step = _STEP.fullmatch(source)
    key = _unquoted(with_step["key"] if with_step else source)
    plain = key.replace("#", " ").strip()
    name = key.rpartition("#")[2]
    return Column(
        header or plain + (" step" if with_step else ""),
        SCALAR,
        name,
        with_step is not None,
        statistic,
    )


def last_value_columns(declared: Iterable[Column]) -> list[Column]:
    """Return the columns with the last value of a metric."""
    return [c for c in declared if c.kind == SCALAR and not c.is_step and c.statistic == "last"]


def parse_columns(specifications: Iterable[str]) -> list[Column]:
    """Parse the columns of a `compare:` attribute."""
    return [parse_column(specification) for specification in specifications]


def _unquoted(name: str) -> str:
    name = name.strip()
    quoted = len(name) > 1 and name[0] == name[-1] and name[0] in "'\""
    return name[1:-1] if quoted else name
