"""Numbers as text in fixed formats, and the interval of a counted rate."""

from __future__ import annotations

import math
import re
from typing import TypeGuard

_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{3,6}(?!\w|,\d)")
_INT64 = 1 << 63  # limit of integers in a database
Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value from a file is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value from a file is a finite number."""
    return is_number(value) and math.isfinite(value)


def is_int64(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer that a database takes."""
    return type(value) is int and -_INT64 <= value < _INT64


def json_number(value: float) -> float | str:
    """Return a number for JSON, which has no other ones than finite: "NaN", "Infinity" or "-Infinity" for those."""
    if math.isfinite(value):
        return value
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def number(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits; integers below a million in full."""
    if not math.isfinite(value):
        return "NaN" if value != value else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e6:
        return minus(str(int(value)))
    text = f"{value:.{digits}g}"
    if 10**digits <= abs(float(text)) < 1e6:
        text = f"{value:.0f}"
    return minus(short_exponent(text))


def amount(number_: float) -> str:
    """Return "360", "0.4 M", "200 M"."""
    return f"{number(number_ / 1e6, 2)} M" if abs(number_) >= 1e5 else number(number_)


def plural(name: str) -> str:
    """Return the plural of a unit: "updates", "tosses", "epochs"; "env steps" is one already."""
    if name.endswith(("ss", "x", "ch", "sh")) and not name.endswith("epoch"):
        return f"{name}es"
    return name if name.endswith("s") else f"{name}s"


def count(value: float, name: str) -> str:
    """Return "1 update", "360 updates" or "0.4 M env steps" of a name in the singular."""
    return f"1 {name}" if value == 1 else f"{amount(value)} {plural(name)}"


def percent(rate: float) -> str:
    """Format a rate in [0, 1] as whole per cent; only a rate of exactly 1 gives 100, others up to 99.9."""
    whole = math.floor(100 * rate + 0.5)
    if whole >= 100 and rate < 1:
        return f"{min(99.9, 100 * rate):.1f}"
    if whole <= 0 and rate > 0:
        return "<1"
    return minus(str(whole))


def share(rate: float) -> str:
    """Return a rate in tenths of a per cent; with more digits, up to five, where it would seem to be 0 or 1."""
    if not math.isfinite(rate):
        return number(rate)
    digits = 1
    while digits < 5 and 0 < rate < 1 and round(100 * rate, digits) in (0, 100):
        digits += 1
    return minus(f"{100 * rate:.{digits}f}".rstrip("0").rstrip("."))


def duration(seconds: float) -> str:
    """Return "42 s", "8 min 51 s", "3 h 5 min" or "2 d 4 h"."""
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


def wilson(successes: float, count: float) -> tuple[float, float]:
    """Return the 95 % score interval of a rate (Wilson 1927, JASA 22, 209-212).

    Args:
        successes: Number of successes, 0 … count.
        count: Number of trials, at least 1.

    Returns:
        (low, high), both in [0, 1].
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}")
    rate, z2 = successes / count, Z95 * Z95
    centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == count else min(1.0, centre + half)
    return low, high


def short_exponent(text: str) -> str:
    """Return a number's text with an exponent without leading zeros: 1e-05 → 1e-5."""
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text


def thousands(text: str) -> str:
    """Return a text of numbers with separators from 1,000 on; longer digits than 7 are ids."""
    return _THOUSANDS.sub(lambda match: f"{int(match[0]):,}", text)


def minus(text: str) -> str:
    """Return a number's text with a minus sign instead of a hyphen; one that is rounded to 0 has none."""
    positive = text.removeprefix("-")
    return f"−{positive}" if text != positive and positive.strip("0.") else positive
