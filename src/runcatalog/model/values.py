"""Conversion of values to forms that JSON, MLflow and a rendered page can all represent."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from functools import lru_cache
from typing import Any

import orjson

from runcatalog.numbers import is_finite, is_number
from runcatalog.numbers import json_number as json_number
from runcatalog.record.digest import shortened

# MLflow stores infinity as the largest float.
HUGE = sys.float_info.max
# Numbers as programs write them; "007", "1.10" and "123456e7" are names, versions and ids.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,14}")
_FRACTION = r"\.(?:0|[0-9]*[1-9])"
_FLOAT = re.compile(
    rf"-?(?:(?:0|[1-9][0-9]*){_FRACTION}|[1-9](?:{_FRACTION})?[eE][+-]?[0-9]{{1,3}})"
)
_QUOTED = re.compile(r"(?<==)'([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)'(?!\S)")
_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}
# Maps digits to 0, the point to itself, and all else to a space, in which a long integer is quick to find.
_SHAPE = bytes(0x30 if c in b"0123456789" else c if c == 0x2E else 0x20 for c in range(256))
_LONG_INTEGER = b" " + 19 * b"0"  # not the digits after a point
_PLAIN = 10**15  # numbers below it parse to themselves from their text
_MAX_TEXT = 2000  # characters of a flag's value; MLflow accepts 6000 bytes
_CUT = re.compile(r"… \(sha256 [0-9a-f]{12}\)$|…$")  # records of earlier versions have no digest

Scalar = str | int | float | bool | None


def text(value: object) -> str:
    """Convert a value to text that is valid UTF-8 and has no NUL."""
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    return str(value).encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def label(value: object) -> str:
    """Convert a label to text, without the quotes that Guild puts around numbers (`lr='0.02'`)."""
    return _QUOTED.sub(r"\1", text(value))


def number(value: object) -> float:
    """Convert a number, or "NaN" and infinities as text, to a float.

    Raises:
        ValueError: The value is not a number, or an integer that no float can hold.
    """
    if type(value) is float and -HUGE < value < HUGE:
        return value + 0.0  # no negative zero: not every database preserves it
    if isinstance(value, str):
        return float(value)
    if not is_number(value):
        raise ValueError(f"{value!r} is not a number")
    try:
        value = float(value) + 0.0
    except OverflowError:
        raise ValueError("an integer is too large") from None
    return math.copysign(math.inf, value) if abs(value) >= HUGE else value


def parse_flag(value: Any) -> Scalar:
    """Convert a flag's value to its canonical type, the type to which its text form parses.

    MLflow stores flags as text, in which "5" and 5 are equal; so they are equal everywhere.
    """
    kind = type(value)
    if value is None or kind is bool or (kind in (int, float) and -_PLAIN < value < _PLAIN):
        return value  # its text parses to itself
    if isinstance(value, (dict, list, tuple)):
        value = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return _parse_text(flag_text(value))


def flag_text(value: Scalar) -> str:
    """Return the text form of a flag's value; a long one is cut, with a digest by which two of them stay different."""
    return shortened(repr(value) if isinstance(value, float) else text(value), _MAX_TEXT)


def is_cut(value: object) -> bool:
    """Return whether a flag's value was too long for a record, which has its beginning and a digest alone."""
    return isinstance(value, str) and len(value) == _MAX_TEXT and bool(_CUT.search(value))


@lru_cache(10_000)
def _parse_text(text_: str) -> Scalar:
    if text_ in _WORDS:
        return _WORDS[text_]
    if _INTEGER.fullmatch(text_):
        return int(text_)
    if len(text_) <= 40 and _FLOAT.fullmatch(text_):
        value = float(text_)
        return value if math.isfinite(value) else text_
    return text_


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON object or array, including NaN and integers of any size.

    Args:
        content: The JSON in UTF-8.

    Raises:
        ValueError: The content is not JSON, or nested too deeply.
    """
    # orjson rounds integers above 64 bits and refuses NaN; the standard library reads both.
    if _LONG_INTEGER not in content.translate(_SHAPE):
        with contextlib.suppress(ValueError):
            return orjson.loads(content)
    try:
        return json.loads(content.decode())
    except RecursionError as error:
        raise ValueError(str(error)) from None


def sort_key(value: object) -> tuple[int, float, str]:
    """Return the sort key of a flag's value: numbers by size, then text by its leading integer."""
    if is_finite(value):
        return 0, float(value), ""
    first = str(value).partition(" ")[0]
    return 1, float(first[:15]) if first.isdecimal() else math.inf, str(value)


def to_json(value: Any) -> Any:
    """Convert a value for strict JSON; keys and unknown objects become text."""
    if type(value) is str:
        return text(value)
    if isinstance(value, float):
        return json_number(value)
    if value is None or isinstance(value, int):  # or bool
        return value
    if isinstance(value, dict):
        return {text(key): to_json(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return text(value)
