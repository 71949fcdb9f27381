"""Columns of the site's index: short JSON for values that repeat from run to run.

`assets/records/columns.js` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from runcatalog.model import values

MISSING = -1
_SAFE = 2**53  # larger integers are not exact in JavaScript's numbers


def texts(column: Iterable[str | None]) -> dict[str, Any]:
    """Return a column of texts as its distinct texts and their indices, MISSING for None."""
    distinct: dict[str, int] = {}
    codes = [MISSING if v is None else distinct.setdefault(v, len(distinct)) for v in column]
    return {"texts": list(distinct), **packed(codes)}


def packed(codes: Sequence[int]) -> dict[str, list[int]]:
    """Return codes as they are, or as (code, count) pairs where these are fewer numbers."""
    pairs = [number for code, run in groupby(codes) for number in (code, sum(1 for _ in run))]
    return {"pairs": pairs} if len(pairs) < len(codes) else {"codes": list(codes)}


def numbers(column: Iterable[float | None]) -> list[Any]:
    """Return a column of numbers; what JavaScript cannot read as a number is text."""
    return [None if value is None else number(value) for value in column]


def number(value: float) -> Any:
    """Return a number for JSON: NaN, infinities and integers of more than 53 bits as text."""
    if isinstance(value, int):
        return value if abs(value) <= _SAFE else str(value)
    short = values.json_number(value)
    return (
        int(short)
        if isinstance(short, float) and short == int(short) and abs(short) < 1e15
        else short
    )


def sparse(rows: Sequence[int]) -> list[int]:
    """Return sorted row numbers as (first, count) pairs."""
    pairs: list[int] = []
    for row in rows:
        if pairs and row == pairs[-2] + pairs[-1]:
            pairs[-1] += 1
        else:
            pairs += [row, 1]
    return pairs
