"""What the names in a query stand for, and which values they can be compared with."""

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
from runcatalog.query.language import Comparison, Name, QueryError
from runcatalog.store.run_rows import StoredRun

MISSING = object()  # a run does not have it; None is a flag's value

TEXTS = ("operation", "label", "study", "reason", "machine", "gpu", "host_cpu", "reported_by")
IDS = ("run", "batch", "commit", "dirty")
NUMBERS = ("seed", "wall_seconds", "env_steps")
FIELDS = (*IDS, *TEXTS, *NUMBERS, "status", "started")

_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)|nan", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?)?)?")
_WORDS = {True: ("yes", "true"), False: ("no", "false"), None: ("none", "null")}

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Column:
    """What a name stands for.

    Attributes:
        title: The name as typed.
        kind: "field", "flag", "last" or "best".
        key: Name of the field, flag or metric.
    """

    title: str
    kind: str
    key: str


@dataclass(frozen=True)
class Known:
    """The names of flags and metrics that any run has."""

    flags: frozenset[str]
    metrics: frozenset[str]

    def column(self, name: Name, query: str) -> Column:
        """Returns what a name stands for: a field, else a flag, else a metric's last value.

        Raises:
            QueryError: Nothing has this name.
        """
        key = name.text
        is_flag, is_metric = key in self.flags, key in self.metrics
        if name.kind:
            if is_flag if name.kind == "flag" else is_metric:
                return Column(str(name), name.kind, key)
            self._unknown(name, query)
        if key in FIELDS:
            return Column(key, "field", key)
        # A flag first: one script that logs a metric `lr` must not end everybody's `lr>1e-3`.
        if is_flag or is_metric:
            return Column(key, "flag" if is_flag else "last", key)
        self._unknown(name, query)

    def _unknown(self, name: Name, query: str) -> NoReturn:
        kinds = {"flag": self.flags, "last": self.metrics, "best": self.metrics}
        what = {"": "flag, metric or field", "flag": "flag"}.get(name.kind, "metric")
        candidates = kinds.get(name.kind) or {*FIELDS, *self.flags, *self.metrics}
        shown = "".join(f", did you mean {each}?" for each in near(name.text, candidates)[:1])
        raise QueryError(query, name.at, f"no run has a {what} {name.text}{shown}")


def near(name: str, candidates: Iterable[str]) -> list[str]:
    """Returns the candidates that a misspelt name may mean, the likeliest first."""
    by_form: dict[str, str] = {}
    for each in sorted(candidates):
        by_form.setdefault(_form(each), each)
    return [by_form[form] for form in difflib.get_close_matches(_form(name), by_form, 3, 0.6)]


def value_of(stored: StoredRun, column: Column) -> Any:
    """Returns what a run has under a name, MISSING without it; of a metric the last value."""
    if column.kind == "flag":
        shown = stored.flag(column.key, MISSING)
        return MISSING if shown is MISSING else values.flag(shown)
    if column.kind == "last":
        return stored.last_of(column.key, MISSING)
    return _field(stored, column.key)


def test_of(comparison: Comparison, column: Column, query: str) -> Test:
    """Returns what says of a value (never MISSING) whether it is as a comparison wants it.

    Raises:
        QueryError: The value is none that the name could have, or the operator does not fit.
    """
    sign, value = comparison.operator, comparison.value
    if not sign:
        return lambda held: True

    def wrong(problem: str) -> NoReturn:
        raise QueryError(query, comparison.at, problem)

    if column.kind == "flag":
        return _flag_test(sign, value, wrong)
    if column.kind in ("last", "best") or column.key in NUMBERS:
        return _number_test(column, sign, value, wrong)
    if column.key == "started":
        return _date_test(sign, value, wrong)
    if sign in _ORDER:
        wrong(f"{sign} compares numbers and dates, {column.key} is text (= != ~)")
    if sign == "~":
        return _contains(value)
    if column.key == "status":
        return _either(sign, _status(value, wrong).__eq__)
    if column.key in IDS:
        return _either(sign, lambda held: held.startswith(value.lower()))
    return _either(sign, value.__eq__)


def _field(stored: StoredRun, name: str) -> Any:
    if name == "run":
        return stored.run
    if name == "status":
        return stored.status if stored.status in STATUSES else RUNNING
    shown = stored.tag(name)
    if name == "study":
        shown = shown or stored.experiment
    if name in NUMBERS or name == "started":
        number = _number(shown)  # in full: seeds go up to 2 ** 63 - 1
        return MISSING if number is None or not math.isfinite(number) else number
    return shown or MISSING


def _flag_test(sign: str, value: str, wrong: Callable[[str], NoReturn]) -> Test:
    number = _number(value)
    if sign in _ORDER:
        if number is None:
            wrong(f"{sign} compares numbers, {value or 'the empty text'} is none")
        compare = _ORDER[sign]
        return lambda held: _is_number(held) and compare(held, number)
    if sign == "~":
        return _contains(value)

    def same(held: Any) -> bool:
        if held is None or isinstance(held, bool):
            return value.lower() in _WORDS[held]
        return held == (number if _is_number(held) else value)

    return _either(sign, same)


def _number_test(column: Column, sign: str, value: str, wrong: Callable[[str], NoReturn]) -> Test:
    what = "a number" if column.kind == "field" else "a metric"
    if sign == "~":
        wrong(f"~ looks for text, {column.key} is {what} (= != < <= > >=)")
    number = _number(value)
    if number is None:
        wrong(f"a number is expected for {column.key}, not {value or 'nothing'}")
    if sign in _ORDER:
        compare = _ORDER[sign]
        return lambda held: compare(held, number)
    if math.isnan(number):
        return _either(sign, math.isnan)
    return _either(sign, lambda held: held == number)


def _date_test(sign: str, value: str, wrong: Callable[[str], NoReturn]) -> Test:
    span = _dates(value)
    if span is None or sign == "~":
        wrong(f"{value}: a date (UTC) is expected, as 2026-11, 2026-11-21 or '2026-11-21 10:30'")
    first, after = span
    if sign in ("<", ">="):
        return lambda held: (held < first) is (sign == "<")
    if sign in (">", "<="):
        return lambda held: (held >= after) is (sign == ">")
    return _either(sign, lambda held: first <= held < after)


def _dates(value: str) -> tuple[float, float] | None:
    """First millisecond of a day, month, … and the one after its last."""
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
            parts = [int(each) for each in match.groups() if each]
            begin = datetime(*(parts + [1] * (3 - len(parts))), tzinfo=UTC)  # type: ignore[misc]
            end = _next(begin, len(parts))
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return begin.timestamp() * 1000, end.timestamp() * 1000


def _next(begin: datetime, parts: int) -> datetime:
    if parts == 1:
        return begin.replace(year=begin.year + 1)
    if parts == 2:
        return (begin + timedelta(days=31)).replace(day=1)
    steps = {3: timedelta(days=1), 5: timedelta(minutes=1), 6: timedelta(seconds=1)}
    return begin + steps[parts]


def _status(value: str, wrong: Callable[[str], NoReturn]) -> str:
    if value.upper() not in STATUSES:
        shown = "".join(f", did you mean {each}?" for each in near(value, STATUSES)[:1])
        wrong(f"no status {value}{shown or ': one of ' + ', '.join(STATUSES)}")
    return value.upper()


def _contains(value: str) -> Test:
    needle = value.casefold()
    return lambda held: needle in values.flag_text(held).casefold()


def _either(sign: str, same: Test) -> Test:
    return same if sign == "=" else lambda held: not same(held)


def _number(value: str) -> int | float | None:
    if len(value) > 40 or not _NUMBER.fullmatch(value):
        return None
    return int(value) if value.lstrip("+-").isdigit() else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _form(name: str) -> str:
    return name.lower().replace("_", "-")
