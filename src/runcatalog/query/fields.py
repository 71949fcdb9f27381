"""Names in a query: the field, flag or metric that a name refers to, and tests of its values."""

from __future__ import annotations

import difflib
import math
import operator
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from runcatalog.model import values
from runcatalog.model.run_record import RUNNING, STATUSES
from runcatalog.numbers import is_number
from runcatalog.query.language import Comparison, Name, QueryError
from runcatalog.record.evaluation import SPLITS
from runcatalog.store.run_rows import StoredRun

MISSING = object()  # the run has no such value; None is a valid value of a flag

TEXTS = (
    *("operation", "label", "study", "reason", "machine", "gpu", "host_cpu", "reported_by"),
    *("retracted", "split"),
)
IDS = ("run", "batch", "commit", "dirty", "superseded_by")
NUMBERS = ("seed", "wall_seconds", "env_steps")
FIELDS = (*IDS, *TEXTS, *NUMBERS, "status", "started")

_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)|nan", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?)?)?")
_SPELLINGS = {True: ("yes", "true"), False: ("no", "false"), None: ("none", "null")}

Predicate = Callable[[Any], bool]


@dataclass(frozen=True)
class ResolvedName:
    """The field, flag or metric that a name refers to.

    Attributes:
        title: The name as typed.
        kind: "field", "flag", "last" or "best".
        key: Name of the field, flag or metric.
    """

    title: str
    kind: str
    key: str


@dataclass(frozen=True)
class KnownNames:
    """Names of the flags and metrics of all runs."""

    flags: frozenset[str]
    metrics: frozenset[str]

    def resolve(self, name: Name, query: str) -> ResolvedName:
        """Resolve a name: to a field, else a flag, else a metric's last value.

        Raises:
            QueryError: No field, flag or metric has this name.
        """
        key = name.text
        is_flag, is_metric = key in self.flags, key in self.metrics
        if name.kind:
            if is_flag if name.kind == "flag" else is_metric:
                return ResolvedName(str(name), name.kind, key)
            self._unknown(name, query)
        if key in FIELDS:
            return ResolvedName(key, "field", key)
        # Flags before metrics: a script that logs a metric `lr` must not break `lr>1e-3` for all others.
        if is_flag or is_metric:
            return ResolvedName(key, "flag" if is_flag else "last", key)
        self._unknown(name, query)

    def _unknown(self, name: Name, query: str) -> NoReturn:
        kinds = {"flag": self.flags, "last": self.metrics, "best": self.metrics}
        expected = {"": "flag, metric or field", "flag": "flag"}.get(name.kind, "metric")
        candidates = kinds.get(name.kind, {*FIELDS, *self.flags, *self.metrics})
        hint = suggestion(name.text, candidates)
        raise QueryError(query, name.at, f"no run has a {expected} {name.text}{hint}")


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return ", did you mean NAME?" with the candidate closest to a misspelt name; "" without one."""
    by_normal_form: dict[str, str] = {}
    for candidate in sorted(candidates):
        by_normal_form.setdefault(_normal_form(candidate), candidate)
    closest = difflib.get_close_matches(_normal_form(name), by_normal_form, 1, 0.6)
    return "".join(f", did you mean {by_normal_form[match]}?" for match in closest)


def run_value(stored: StoredRun, name: ResolvedName) -> Any:
    """Return the value of a field or flag, or a metric's last value; MISSING if the run has none."""
    if name.kind == "flag":
        text = stored.flag(name.key, MISSING)
        return MISSING if text is MISSING else values.parse_flag(text)
    if name.kind == "last":
        return stored.last_value(name.key, MISSING)
    return _field_value(stored, name.key)


def predicate(comparison: Comparison, name: ResolvedName, query: str) -> Predicate:
    """Return the predicate of a comparison; its argument is never MISSING.

    Raises:
        QueryError: The value or the operator does not fit the type of the named value.
    """
    symbol, value = comparison.operator, comparison.value
    if not symbol:
        return lambda actual: True

    def fail(problem: str) -> NoReturn:
        raise QueryError(query, comparison.at, problem)

    if name.kind == "flag":
        return _flag_test(symbol, value, fail)
    if name.kind in ("last", "best") or name.key in NUMBERS:
        return _number_test(name, symbol, value, fail)
    if name.key == "started":
        return _date_test(symbol, value, fail)
    if symbol in _ORDER:
        fail(f"{symbol} compares numbers and dates, {name.key} is text (= != ~)")
    if symbol == "~":
        return _contains_test(value)
    if name.key == "split" and value not in SPLITS:
        fail(f"split is the set of a result: one of {', '.join(SPLITS)}; of a flag: flag:split")
    if name.key == "status":
        return _equal_or_not(symbol, _status(value, fail).__eq__)
    if name.key in IDS:
        return _equal_or_not(symbol, lambda actual: actual.startswith(value.lower()))
    return _equal_or_not(symbol, value.__eq__)


def _field_value(stored: StoredRun, name: str) -> Any:
    if name == "run":
        return stored.run
    if name == "status":
        return stored.status if stored.status in STATUSES else RUNNING
    text = stored.tag(name)
    if name == "study":
        text = text or stored.experiment
    if name in NUMBERS or name == "started":
        number = _number(text)  # an integer stays exact: seeds go up to 2 ** 63 - 1
        return MISSING if number is None or not math.isfinite(number) else number
    return text or MISSING


def _flag_test(symbol: str, value: str, fail: Callable[[str], NoReturn]) -> Predicate:
    number = _number(value)
    if symbol in _ORDER:
        if number is None:
            fail(f"{symbol} compares numbers, {value or 'the empty text'} is none")
        compare = _ORDER[symbol]
        return lambda actual: is_number(actual) and compare(actual, number)
    if symbol == "~":
        return _contains_test(value)

    def equal(actual: Any) -> bool:
        if actual is None or isinstance(actual, bool):
            return value.lower() in _SPELLINGS[actual]
        return actual == (number if is_number(actual) else value)

    return _equal_or_not(symbol, equal)


def _number_test(
    name: ResolvedName, symbol: str, value: str, fail: Callable[[str], NoReturn]
) -> Predicate:
    described = "a number" if name.kind == "field" else "a metric"
    if symbol == "~":
        fail(f"~ looks for text, {name.key} is {described} (= != < <= > >=)")
    number = _number(value)
    if number is None:
        fail(f"a number is expected for {name.key}, not {value or 'nothing'}")
    if symbol in _ORDER:
        compare = _ORDER[symbol]
        return lambda actual: compare(actual, number)
    if math.isnan(number):
        return _equal_or_not(symbol, math.isnan)
    return _equal_or_not(symbol, lambda actual: actual == number)


def _date_test(symbol: str, value: str, fail: Callable[[str], NoReturn]) -> Predicate:
    if symbol == "~":
        fail("~ looks for text, started is a date (UTC) (= != < <= > >=)")
    interval = _interval(value)
    if interval is None:
        fail(f"{value}: a date (UTC) is expected, as 2026-11, 2026-11-21 or '2026-11-21 10:30'")
    begin, end = interval
    if symbol in ("<", ">="):
        return lambda actual: (actual < begin) is (symbol == "<")
    if symbol in (">", "<="):
        return lambda actual: (actual >= end) is (symbol == ">")
    return _equal_or_not(symbol, lambda actual: begin <= actual < end)


def _interval(value: str) -> tuple[float, float] | None:
    """Return [begin, end) in milliseconds of a year, month, day, minute or second."""
    today = datetime.fromtimestamp(time.time(), UTC).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    days = {"today": 0, "yesterday": 1}.get(value.lower())
    match = _DATE.fullmatch(value)
    try:
        if days is not None:
            begin = today - timedelta(days=days)
            end = begin + timedelta(days=1)
        elif match is not None:
            parts = [int(part) for part in match.groups() if part]
            year, month, day, hour, minute, second = parts + [1, 1, 1, 0, 0, 0][len(parts) :]
            begin = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
            end = _interval_end(begin, len(parts))
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return begin.timestamp() * 1000, end.timestamp() * 1000


def _interval_end(begin: datetime, parts: int) -> datetime:
    if parts == 1:
        return begin.replace(year=begin.year + 1)
    if parts == 2:
        return (begin + timedelta(days=31)).replace(day=1)
    steps = {3: timedelta(days=1), 5: timedelta(minutes=1), 6: timedelta(seconds=1)}
    return begin + steps[parts]


def _status(value: str, fail: Callable[[str], NoReturn]) -> str:
    if value.upper() not in STATUSES:
        hint = suggestion(value, STATUSES)
        fail(f"no status {value}{hint or ': one of ' + ', '.join(STATUSES)}")
    return value.upper()


def _contains_test(value: str) -> Predicate:
    needle = value.casefold()
    return lambda actual: needle in values.flag_text(actual).casefold()


def _equal_or_not(symbol: str, equal: Predicate) -> Predicate:
    return equal if symbol == "=" else lambda actual: not equal(actual)


def _number(value: str) -> int | float | None:
    if len(value) > 40 or not _NUMBER.fullmatch(value):
        return None
    return int(value) if value.lstrip("+-").isdigit() else float(value)


def _normal_form(name: str) -> str:
    return name.lower().replace("_", "-")
