"""Names of flags and metrics in the characters that MLflow allows."""

from __future__ import annotations

import hashlib
import posixpath
import re
import sys
from functools import lru_cache

_KEY = 240  # characters; MLflow takes 250
_PLAIN = re.compile(r"[A-Za-z0-9_\-. :/]")
_ESCAPE = re.compile(r"_x([0-9A-F]{1,6})_")


@lru_cache(10_000)
def encode(name: str) -> str:
    """Return a name in the characters that MLflow allows; :func:`decode` is the inverse."""
    escaped = name.replace("_x", "_x5F_x")  # otherwise it would be decoded as an escape
    shown = "".join(c if _PLAIN.fullmatch(c) else f"_x{ord(c):X}_" for c in escaped)
    odd = posixpath.normpath(shown) != shown or shown.startswith(("/", "."))
    if odd or not shown.strip() or shown != shown.strip():
        shown = re.sub("[./ ]", lambda m: f"_x{ord(m[0]):X}_", shown)
    if len(shown) > _KEY:
        shown = f"{shown[: _KEY - 20]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return shown or "_x_"


@lru_cache(10_000)
def decode(key: str) -> str:
    """Return the original name of :func:`encode`; what is no escape of a character stays as it is."""
    return "" if key == "_x_" else _ESCAPE.sub(_character, key)


def _character(escape: re.Match[str]) -> str:
    number = int(escape[1], 16)
    is_character = number <= sys.maxunicode and not 0xD800 <= number <= 0xDFFF  # surrogates
    return chr(number) if is_character else escape[0]
