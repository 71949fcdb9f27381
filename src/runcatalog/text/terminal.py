"""Text for a terminal: tables that fit, numbers, times; whatever is in the names stays on its line."""

from __future__ import annotations

import html
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from runcatalog.model import values

GAP = "  "
_LEAST = 8  # characters that a column keeps where a table is too wide: the digits of an id


def clean(value: object) -> str:
    """Returns text on one line, without characters that a terminal would obey."""
    shown = " ".join(str(value).split())
    if shown.isascii() and shown.isprintable():
        return shown
    kept = "".join(c for c in shown if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    return " ".join(kept.split())


def width(text: str) -> int:
    """Returns how many cells of a terminal a text takes."""
    return len(text) if text.isascii() else sum(_cells(c) for c in text)


def cut(text: str, cells: int) -> str:
    """Returns a text that takes at most so many cells; what was cut off shows as "…"."""
    if width(text) <= cells:
        return text
    kept, used = "", 0
    for character in text:
        used += _cells(character)
        if used > cells - 1:
            break
        kept += character
    return f"{kept}…"[:cells] if cells > 0 else ""


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Returns a text that takes exactly so many cells."""
    shown = cut(text, cells)
    room = " " * (cells - width(shown))
    return room + shown if right else shown + room


def room() -> int | None:
    """Width of the terminal; None where the output goes elsewhere, and is not cut."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    cells: int | None = None,
) -> list[str]:
    """Returns the lines of a table; columns without any content are left out.

    Args:
        header: Names of the columns.
        rows: Text of each cell.
        right: Columns of numbers, to the right.
        cells: Width that the lines keep to, as far as columns of 8 characters allow it; None for any.
    """
    content = [[clean(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(header)) if any(row[i] for row in content)]
    lines = [[header[i] for i in kept], *([row[i] for i in kept] for row in content)]
    widths = [max(width(line[i]) for line in lines) for i in range(len(kept))]
    if cells is not None:
        widths = _fitted(widths, cells - len(GAP) * (len(kept) - 1))
    flush = [header[i] in right for i in kept]
    made = []
    for line in lines:
        padded = [pad(c, w, right=r) for c, w, r in zip(line, widths, flush, strict=True)]
        made.append(GAP.join(padded).rstrip())
    return made


def _fitted(widths: list[int], total: int) -> list[int]:
    """Widths whose sum is at most `total`: the widest columns give first, none below _LEAST."""
    kept = [min(w, max(total, _LEAST)) for w in widths]
    while sum(kept) > total and max(kept) > _LEAST:
        widest = max(range(len(kept)), key=lambda i: (kept[i], i))
        kept[widest] -= 1
    return kept


def value(held: Any) -> str:
    """Returns a flag's, field's or metric's value as it could be typed."""
    if held is None or isinstance(held, bool):
        return {True: "yes", False: "no", None: "none"}[held]
    if isinstance(held, float):
        return number(held)
    return clean(values.flag_text(held)) or "''"


def number(held: float, digits: int = 4) -> str:
    """Returns a number with so many significant digits, whole ones below a million in full."""
    if not math.isfinite(held):
        return "nan" if held != held else ("inf" if held > 0 else "-inf")
    if held == int(held) and abs(held) < 1e6:
        return str(int(held))
    shown = f"{held:.{digits}g}"
    if 10**digits <= abs(held) < 1e6:
        shown = f"{held:.0f}"
    mantissa, e, exponent = shown.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else shown


def signed(held: float) -> str:
    """Returns a difference with its sign; 0 has none."""
    return f"+{number(held)}" if held > 0 else number(held)


def when(milliseconds: int | None) -> str:
    """Returns "2026-11-21 10:30", in UTC; nothing for None."""
    if milliseconds is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def duration(seconds: float | None) -> str:
    """Returns "12 s", "3 min 20 s", "2 h 5 min" or "3 d 4 h"; nothing for None."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    whole = max(0, round(seconds))
    for big, small, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= size:
            rest = whole % size // {"d": 3600, "h": 60, "min": 1}[big]
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def plain(markdown: str) -> str:
    """Returns a cell of the catalog without its markup."""
    shown = html.unescape(markdown).replace("\u200b", "").replace("**", "")
    return clean(re.sub(r"\\([\\`*\[\]|~_])", r"\1", shown))


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
