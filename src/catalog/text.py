"""Text for Markdown cells: harmless whatever the names, and numbers in fixed forms."""

from __future__ import annotations

import math
import re
import unicodedata

MAX_NAME = 120
MAX_RESULT = 600

_SPACES = re.compile(r"\s+")
_MARKUP = re.compile(r"([\\`*\[\]|~])")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_LINKS = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=[:.])")


def escape(value: object, limit: int = MAX_NAME) -> str:
    """Returns any text as one that a Markdown table shows literally.

    Line breaks become spaces, control and direction characters go, what is longer than `limit`
    characters is cut, markup and HTML are escaped.
    """
    shown = _SPACES.sub(" ", str(value)).strip()
    shown = "".join(c for c in shown if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    if len(shown) > limit:
        shown = shown[: limit - 1].rstrip() + "…"
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = _MARKUP.sub(r"\\\1", shown)
    shown = _UNDERSCORE.sub(r"\\_", shown)
    return _LINKS.sub("\\1&#8203;", shown)


def code(value: object) -> str:
    """Returns text as a code span, or escaped where a code span cannot hold it."""
    shown = str(value)
    if (
        re.fullmatch(r"[^`|\\\s<>&](?:[^`|\\<>&\n\r\t]*[^`|\\\s<>&])?", shown)
        and shown.isprintable()
    ):
        return f"`{shown}`"
    return escape(shown)


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
