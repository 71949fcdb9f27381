"""Search space, parsed from the flags of a Guild batch.

The notation is Guild's: `uniform[a:b]`, `[a:b]` (uniform), `loguniform[a:b]`, a third argument for
the value of the first trial (`uniform[a:b:first]`), and a list for choices. Two integer
bounds give an integer dimension, as in Guild; write `1.0` for a real bound.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.numbers import is_number

Value = float | int | str | bool | None
Point = dict[str, Value]

# Enough to distinguish settings, few enough to read in a label or retype.
SIGNIFICANT_DIGITS = 6


class SearchError(Exception):
    """An error that the user can correct; the message is one line."""


@dataclass(frozen=True)
class Dimension:
    """A searched flag.

    `kind` is "real", "integer" or "choice". `low` and `high` are inclusive bounds in the flag's
    own unit (reals and integers), `log` selects a logarithmic scale, `choices` are the values of
    a choice, `first` is the value of the first trial (None: drawn as in other trials).
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[Value, ...] = ()
    first: Value = None

    @property
    def size(self) -> float:
        """Number of different values; infinite for a real dimension."""
        if self.kind == "choice":
            return len(self.choices)
        return self.high - self.low + 1 if self.kind == "integer" else math.inf

    def at(self, fraction: float) -> Value:
        """Return the value at `fraction` of the dimension, fraction in [0, 1)."""
        if self.kind == "choice":
            return self.choices[min(int(fraction * len(self.choices)), len(self.choices) - 1)]
        # All integers, including the bounds, get an equal part of the (log) scale.
        edge = 0.5 if self.kind == "integer" else 0.0
        low, high = self.low - edge, self.high + edge
        linear = low + fraction * (high - low)
        return self.rounded(low * (high / low) ** fraction if self.log else linear)

    def fraction(self, value: Any) -> float:
        """Return the fraction in [0, 1] at which `at` gives `value`; for integers and choices the middle."""
        if self.kind == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices)
        edge = 0.5 if self.kind == "integer" else 0.0
        low, high = self.low - edge, self.high + edge
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def rounded(self, value: Any) -> Value:
        """Return `value` as passed to a trial: within the bounds, at most six significant digits."""
        if self.kind == "choice":
            return value
        if self.kind == "integer":
            return int(min(max(round(float(value)), self.low), self.high))
        return min(max(float(f"{float(value):.{SIGNIFICANT_DIGITS}g}"), self.low), self.high)

    def distance(self, a: Any, b: Any) -> float:
        """Return the distance as a fraction of the range; for choices and integers 0 if equal, else 1."""
        if self.kind != "real":
            return float(a != b)
        if self.log:
            return abs(math.log(a / b)) / math.log(self.high / self.low)
        return abs(a - b) / (self.high - self.low)

    def contains(self, value: Value) -> bool:
        """Return whether `value` is a value of this dimension."""
        if self.kind == "choice":
            return value in self.choices
        if not is_number(value):
            return False
        whole = self.kind == "real" or float(value).is_integer()
        return whole and self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return the entry in a record: `low`, `high` and `log`, or `choices`."""
        if self.kind == "choice":
            return {"choices": list(self.choices)}
        bounds = [int(b) if self.kind == "integer" else b for b in (self.low, self.high)]
        return {"low": bounds[0], "high": bounds[1], "log": self.log}


def key(dimensions: Sequence[Dimension], point: Mapping[str, Value]) -> tuple[str, ...]:
    """Return a key that is equal for equal points."""
    return tuple(repr(d.rounded(point[d.name])) for d in dimensions)


def size(dimensions: Sequence[Dimension]) -> float:
    """Number of different points; infinite with any real dimension."""
    return math.prod(d.size for d in dimensions)


def from_flags(flags: Mapping[str, Any]) -> list[Dimension]:
    """Return the dimensions of the searched flags, sorted by name.

    A flag with a single value is not searched.

    Raises:
        SearchError: The bounds are invalid, the search function is unknown, or no flag is searched.
    """
    parsed = [_dimension(name, value) for name, value in sorted(flags.items())]
    dimensions = [dimension for dimension in parsed if dimension is not None]
    if not dimensions:
        raise SearchError(
            "nothing to search: give at least one flag a range, such as lr=loguniform[1e-4:1e-2], "
            "or a list, such as network-size=[64 64, 128 128]"
        )
    return dimensions


def _dimension(name: str, value: Any) -> Dimension | None:
    if isinstance(value, list):
        if any(isinstance(choice, list | dict) for choice in value):
            raise SearchError(f"{name}={value}: each choice must be a number, a text or a switch")
        choices = tuple(dict.fromkeys(value))
        return Dimension(name, "choice", choices=choices) if len(choices) > 1 else None
    function = _function(value)
    return None if function is None else _range(name, value, *function)


def _function(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return name and arguments of Guild's flag function; None for a plain value."""
    # Guild's parser of the notation works; its module that builds a space from the result does not, since
    # it imports numpy.core.umath_tests, which numpy 2 has removed.
    from runcatalog.guild.compat import flag_util

    try:
        name, arguments = flag_util.decode_flag_function(value)
    except ValueError:
        return None
    return name or "uniform", arguments


def _range(name: str, text: str, function: str, arguments: tuple[Any, ...]) -> Dimension:
    if function not in ("uniform", "loguniform"):
        raise SearchError(
            f"{name}={text}: search function {function} is not known; use uniform or loguniform"
        )
    numbers = [a for a in arguments if is_number(a)]
    if len(numbers) != len(arguments) or len(numbers) not in (2, 3):
        raise SearchError(f"{name}={text}: expected {function}[LOW:HIGH] or [LOW:HIGH:FIRST]")
    low, high = numbers[:2]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SearchError(f"{name}={text}: the lower bound must be below the upper one")
    if function == "loguniform" and low <= 0:
        raise SearchError(f"{name}={text}: the bounds of loguniform must be above 0")
    kind = "integer" if isinstance(low, int) and isinstance(high, int) else "real"
    first = numbers[2] if len(numbers) == 3 else None
    dimension = Dimension(name, kind, float(low), float(high), function == "loguniform")
    if first is None:
        return dimension
    if not dimension.contains(first):
        raise SearchError(f"{name}={text}: the first value {first} is not within the range")
    return Dimension(name, kind, float(low), float(high), dimension.log, first=first)
