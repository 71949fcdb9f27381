"""Values in the one form that JSON, MLflow and a rendered page can all hold."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import lru_cache
from typing import Any

import orjson

# MLflow keeps an infinity as the largest float.
HUGE = sys.float_info.max
_TEXT_OF = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]{1,3})?")
_QUOTED = re.compile(r"(?<==)'([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)'(?!\S)")
_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}
_LONG_INTEGER = re.compile(r"[\s:,\[-][0-9]{19}")  # in JSON; not the digits after a point
_MAX_TEXT = 2000  # characters of a flag's value; MLflow takes 6000 bytes

Scalar = str | int | float | bool | None


def text(value: object) -> str:
    """Returns a value as text that every database and file can hold."""
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    return str(value).encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def label(value: object) -> str:
    """Returns a label as text; quotes that Guild put round a number (`lr='0.02'`) are gone."""
    return _QUOTED.sub(r"\1", text(value))


def number(value: object) -> float:
    """Returns a float; "NaN" and the infinities may be given as text.

    Raises:
        ValueError: It is no number.
    """
    if type(value) is float and -HUGE < value < HUGE:
        return value + 0.0  # no negative zero: a database may not keep it
    if isinstance(value, str):
        return _TEXT_OF[value] if value in _TEXT_OF else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    value = float(value) + 0.0
    return math.copysign(math.inf, value) if abs(value) >= HUGE else value


def json_number(value: float) -> float | str:
    """Returns a float as strict JSON can hold it."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def flag(value: Any) -> Scalar:
    """Returns a flag's value in its canonical type: what its text form reads as.

    MLflow keeps flags as text, so that "5" and 5 cannot be told apart there; they are not told
    apart anywhere.
    """
    if isinstance(value, dict | list | tuple):
        value = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return _parsed(flag_text(value))


def flag_text(value: Scalar) -> str:
    """Returns the text of a flag's value."""
    shown = repr(value) if isinstance(value, float) else text(value)
    return shown if len(shown) <= _MAX_TEXT else shown[: _MAX_TEXT - 1] + "…"


@lru_cache(10_000)
def _parsed(shown: str) -> Scalar:
    if shown in _WORDS:
        return _WORDS[shown]
    if _INTEGER.fullmatch(shown):
        return int(shown)
    if len(shown) <= 40 and _FLOAT.fullmatch(shown) and not shown.lstrip("+-").isdigit():
        value = float(shown)
        return value if math.isfinite(value) else shown
    return shown


def parse_json(content: str) -> Any:
    """Return the value of a JSON object or array, NaN and integers of any size included.

    Raises:
        ValueError: It is no JSON.
    """
    # orjson rounds integers above 64 bits and refuses NaN; the standard library reads both.
    if _LONG_INTEGER.search(content):
        return json.loads(content)
    try:
        return orjson.loads(content)
    except ValueError:
        return json.loads(content)


def order(value: object) -> tuple[int, float, str]:
    """Sort key of flags: numbers by size, then text; text that begins with a whole number, by that."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return 0, float(value), ""
    first = str(value).partition(" ")[0]
    return 1, float(first[:15]) if first.isdecimal() else math.inf, str(value)


def plain(value: Any) -> Any:
    """Returns a value as strict JSON can hold it; keys as text, odd objects as their text."""
    if isinstance(value, dict):
        return {text(key): plain(item) for key, item in sorted(value.items(), key=_key)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return json_number(value)
    return text(value)


def _key(item: tuple[Any, Any]) -> str:
    return str(item[0])
