"""Markdown: escaped names and numbers in fixed formats for cells, tables, folded content."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from functools import lru_cache

from runcatalog import numbers
from runcatalog.numbers import amount as amount
from runcatalog.numbers import duration as duration
from runcatalog.numbers import minus as minus
from runcatalog.numbers import number as number
from runcatalog.numbers import percent as percent
from runcatalog.numbers import short_exponent
from runcatalog.record.untrusted import printable

MAX_NAME = 120
MAX_RESULT = 600
UNBROKEN = 40  # characters; longer words may wrap, so that a column does not fill the page

_NUMBERS = re.compile(r"(?:[-−\d.,%\[\] ]|never|of)+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\b")
_SPACES = re.compile(r"\s+")
_MARKUP = re.compile(r"([\\`*\[\]|~])")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# Text that GitHub turns into links, mentions or emoji without markup; a zero-width space prevents it.
_ACTIVE = re.compile(
    r"(?P<link>(?i:https?|ftp|mailto|xmpp|www))(?=[:.])"
    r"|(?P<mention>(?<![A-Za-z0-9])@)(?=[A-Za-z0-9_])"
    r"|(?P<mail>(?<=[A-Za-z0-9._+-])@)(?=[A-Za-z0-9_-]+\.[A-Za-z0-9])"
    r"|(?P<emoji>:)(?=(?:[-+]1|[a-z0-9_+-]*[a-z][a-z0-9_+-]*|100|1234):)"
    r"|(?P<issue>#)(?=[0-9])"
)
_LONG = re.compile(rf"\S{{{UNBROKEN}}}(?=\S)")
_WRAP = "\ue001"  # placeholder of a possible line break
_WRAP_HTML, _BREAK_HTML = "<wbr>", "&#8203;"
_BACKSLASHED = re.compile(r"\\([\\`*\[\]|~_])")
_BREAK = "\ue000"  # placeholder of the zero-width space while the rest is escaped; literal() removes it from input


def literal(value: object, limit: int = MAX_NAME) -> str:
    """Return text on one line, without control and direction characters, truncated at `limit`."""
    text = printable(_SPACES.sub(" ", str(value)).strip())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def escape(value: object, limit: int = MAX_NAME) -> str:
    """Escape text for a Markdown table.

    Line breaks become spaces, control and direction characters are removed, and text longer than `limit`
    characters is truncated. Markup, HTML, mathematics, links, mentions and emoji names render literally.
    """
    return _escaped(str(value), limit)


@lru_cache(10_000)  # rows repeat the same names
def _escaped(value: str, limit: int) -> str:
    text = _ACTIVE.sub(lambda match: match[0] + _BREAK, literal(value, limit))
    text = _LONG.sub(lambda match: match[0] + _WRAP, text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MARKUP.sub(r"\\\1", text)
    text = _UNDERSCORE.sub(r"\\_", text)
    # GitHub renders $x$ as mathematics even after a backslash; an element around the sign prevents it.
    # Unlike a zero-width space, <wbr> is not copied with the text.
    text = text.replace(_BREAK, _BREAK_HTML).replace(_WRAP, _WRAP_HTML)
    return text.replace("$", "<span>$</span>")


def unescaped(cell: str) -> str:
    """Return a cell of a table as plain text, without bold type and what :func:`escape` added."""
    text = cell.replace("<span>$</span>", "$").replace("**", "")
    text = text.replace(_WRAP_HTML, "").replace(_BREAK_HTML, "")
    return html.unescape(_BACKSLASHED.sub(r"\1", text))


def code(value: object) -> str:
    """Return text as a code span, or escaped if a code span in a table cannot contain it."""
    text = str(value)
    if not text.strip() or not text.isprintable() or "\\|" in text:
        return escape(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def flag_value(value: object) -> str:
    """Format a flag's value: 5e-3, 0.33, 64 64; of more than five significant digits three are shown."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        exact = (text for n in (3, 4, 5) if float(text := _flag_number(value, n)) == value)
        return minus(next(exact, None) or _flag_number(value, 3))
    return escape(value if value != "" else "''", 60)


def _flag_number(value: float, digits: int) -> str:
    if value and abs(value) < 0.1:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short_exponent(f"{value:.{digits}g}")


def count(number_: float, unit: str) -> str:
    """Return "1 update", "360 updates", "0.4 M env steps"."""
    shown = numbers.count(number_, escape(unit.replace("_", " "), 40) or "step")
    return numbers.thousands(shown)


def computed(value: object) -> str:
    """Escape a cell of a table that a script wrote; one of numbers alone gets separators and minus signs."""
    text = str(value)
    if _NUMBERS.fullmatch(text) and not _DATE.match(text):
        text = re.sub(r"(?<=\d)-(?=\d)", "–", text)  # a range
        text = re.sub(r"-(?=[\d.])", "−", text)
        text = numbers.thousands(re.sub(r"−(?=0(\.0*)?(?![\d.]))", "", text))
    return escape(text)


def words(name: str, limit: int = 60) -> str:
    """Return a metric's name as words: opening_rate → opening rate."""
    return escape(name.replace("_", " ").strip(), limit)


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of Markdown cells."""
    head = [list(columns), ["---"] * len(columns)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (*head, *lines))


def filled_table(columns: Sequence[str], lines: Sequence[Sequence[str]], always: int = 0) -> str:
    """Return a table without the columns that are empty in all lines; the first `always` columns stay."""
    kept = [i for i in range(len(columns)) if i < always or any(line[i] for line in lines)]
    return table([columns[i] for i in kept], [[line[i] for i in kept] for line in lines])


def more(count: int, hint: str = "") -> str:
    """Return a line that says how many rows a table leaves out, to be put behind it; "" for none."""
    if count <= 0:
        return ""
    return f"\n\n{count} more{f'; {hint}' if hint else ''}."


def fold(summary: str, content: str) -> str:
    """Return folded content, below a summary of plain text."""
    return f"<details><summary>{html.escape(literal(summary, 400))}</summary>\n\n{content}\n\n</details>"
