"""Text for Markdown cells: harmless whatever the names, and numbers in fixed forms."""

from __future__ import annotations

import math
import re
import unicodedata
from functools import lru_cache

MAX_NAME = 120
MAX_RESULT = 600
UNBROKEN = 40  # characters; a longer word may be broken, or its column takes the page

_SPACES = re.compile(r"\s+")
_MARKUP = re.compile(r"([\\`*\[\]|~])")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# What a reader of GitHub's Markdown acts on though nothing marks it; a break of no width stops that.
_ACTIVE = re.compile(
    r"(?P<link>(?i:https?|ftp|mailto|xmpp|www))(?=[:.])"
    r"|(?P<mention>(?<![A-Za-z0-9])@)(?=[A-Za-z0-9])"
    r"|(?P<mail>(?<=[A-Za-z0-9._+-])@)(?=[A-Za-z0-9_-]+\.[A-Za-z0-9])"
    r"|(?P<emoji>:)(?=(?:[-+]1|[a-z0-9_+-]*[a-z][a-z0-9_+-]*|100|1234):)"
    r"|(?P<issue>#)(?=[0-9])"
)
_LONG = re.compile(rf"\S{{{UNBROKEN}}}(?=\S)")
_BREAK = (
    "\ue000"  # stands for the break till the rest is escaped; the text itself has none of these
)


def literal(value: object, limit: int = MAX_NAME) -> str:
    """Returns any text on one line, without control and direction characters, cut at `limit`."""
    shown = _SPACES.sub(" ", str(value)).strip()
    shown = "".join(c for c in shown if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    return shown if len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def escape(value: object, limit: int = MAX_NAME) -> str:
    """Returns any text as one that a Markdown table shows literally.

    Line breaks become spaces, control and direction characters go, what is longer than `limit`
    characters is cut. Markup, HTML, mathematics, links, mentions and emoji names are shown as they
    are written.
    """
    return _escaped(str(value), limit)


@lru_cache(10_000)  # rows have much in common
def _escaped(value: str, limit: int) -> str:
    shown = _ACTIVE.sub(lambda match: match[0] + _BREAK, literal(value, limit))
    shown = _LONG.sub(lambda match: match[0] + _BREAK, shown)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = _MARKUP.sub(r"\\\1", shown)
    shown = _UNDERSCORE.sub(r"\\_", shown)
    # No backslash keeps GitHub from taking $x$ for mathematics; an element around the sign does.
    return shown.replace(_BREAK, "&#8203;").replace("$", "<span>$</span>")


def code(value: object) -> str:
    """Returns text as a code span, or escaped where a code span in a table cannot hold it."""
    shown = str(value)
    if not shown.strip() or not shown.isprintable() or "\\|" in shown:
        return escape(shown)
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def duration(seconds: float) -> str:
    """Returns "42 s", "8 min 51 s", "3 h 5 min" or "2 d 4 h"."""
    whole = round(seconds)
    if whole < 1:
        return "under 1 s"
    parts = [
        (whole // 86400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "min"),
        (whole % 60, "s"),
    ]
    while not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def number(value: float, digits: int = 4) -> str:
    """Returns a number with `digits` significant digits, integers below a million in full."""
    if not math.isfinite(value):
        return "NaN" if value != value else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e6:
        return _minus(str(int(value)))
    shown = f"{value:.{digits}g}"
    if abs(value) >= 10**digits and abs(value) < 1e6:
        shown = f"{value:.0f}"
    return _minus(_exponent(shown))


def flag_value(value: object) -> str:
    """Returns a flag's value as people write it: 5e-3, 0.33, 64 64."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        if value and abs(value) < 0.1:
            mantissa, exponent = f"{value:.2e}".split("e")
            mantissa = mantissa.rstrip("0").rstrip(".")
            return _minus(f"{mantissa}e{int(exponent)}")
        return _minus(_exponent(f"{value:.3g}"))
    return escape(value if value != "" else "''", 60)


def percent(rate: float) -> str:
    """Returns a rate in [0, 1] in whole per cent; only a rate of exactly 1 is 100."""
    whole = math.floor(100 * rate + 0.5)
    if whole >= 100 and rate < 1:
        whole = 99
    if whole <= 0 and rate > 0:
        return "<1"
    return _minus(str(whole))


def count(number_: float, unit: str) -> str:
    """Returns "1 update", "360 updates", "0.4 M env steps"."""
    name = escape(unit.replace("_", " "), 40) or "step"
    if number_ == 1:
        return f"1 {name}"
    return f"{amount(number_)} {name}" + ("" if name.endswith("s") else "s")


def amount(number_: float) -> str:
    """Returns "360", "0.4 M"."""
    return f"{number_ / 1e6:.2g} M" if abs(number_) >= 1e5 else number(number_)


def words(name: str) -> str:
    """Returns a metric's name as words: opening_rate -> opening rate."""
    return escape(name.replace("_", " ").strip(), 60)


def _exponent(shown: str) -> str:
    mantissa, e, exponent = shown.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else shown


def _minus(shown: str) -> str:
    return "−" + shown[1:] if shown.startswith("-") else shown
