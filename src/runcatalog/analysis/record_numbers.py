"""Numbers of records by their names, with 95 % intervals: objectives, metrics, fields, cells of a run's tables."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import differences, groups, paired
from runcatalog.model import statistics, values
from runcatalog.model.run_record import RunRecord
from runcatalog.numbers import is_number
from runcatalog.text import sentences

WRITTEN = r"[-−+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"{WRITTEN}(?:[eE][-−+]?\d+)?|\bnever\b")
TABLE = "table "  # prefix of the name of a cell


def value(run: RunRecord, name: str) -> float | None:
    """Return a number of a record; None without it. See :func:`values_of`."""
    return next(iter(values_of(run, name)), None)


def values_of(run: RunRecord, name: str) -> list[float]:
    """Return the numbers of a name in a record, the result before the last value of a metric.

    Args:
        run: The record.
        name: `objective` or its name, the name of a further number of the objective, a metric, a number of the
            result or the record (`env_steps`, `wall_seconds`), `at` for the step of the objective, `best NAME` of a
            metric, or `table ROW :: COLUMN` of a table that the run computed, where ROW is a row's first cells.
    """
    result, objective = run.result or {}, run.objective or {}
    reported = result.get("metrics")
    candidates: list[Any] = []
    if name in ("objective", objective.get("name")):
        candidates.append(objective.get("value"))
    if name == "at":
        candidates.append(objective.get("at"))
    if isinstance(reported, dict):
        candidates.append(reported.get(name))
    if name in run.metrics:
        candidates.append(run.metrics[name].last)
    if name.startswith("best ") and name[5:] in run.metrics:
        candidates.append(run.metrics[name[5:]].best)
    if name.startswith(TABLE):
        candidates += cell(run, name)[:1]
    candidates.append(result.get(name))
    candidates.append(sentences.further(objective).get(name, {}).get("value"))
    if name in ("env_steps", "wall_seconds"):
        candidates.append(getattr(run, name))
    numbers = []
    for number in filter(is_number, candidates):
        with contextlib.suppress(ValueError):  # an integer that no float can hold
            numbers.append(values.number(number))
    return numbers


def cell(run: RunRecord, name: str) -> list[float]:
    """Return the numbers in a cell of a table that a run computed: `table ROW :: COLUMN`; [] without one.

    A bound that was "never" reached is infinite; a value that never was is none.
    """
    row, _, column = name.removeprefix(TABLE).partition("::")
    found = _NUMBER.findall(str(content(run, row.strip(), column.strip())))
    numbers = [math.inf if x == "never" else float(plain(x)) for x in found]
    return numbers if numbers[:1] != [math.inf] else []


def content(run: RunRecord, row: str, column: str) -> Any:
    """Return the content of a cell of the tables that a run computed; None without one.

    Args:
        run: The record.
        row: The row's first cell, or its first two or three with spaces between.
        column: The column's title.
    """
    tables: Any = (run.result or {}).get("table")
    for table in tables if isinstance(tables, list) else [tables]:
        try:
            place = [str(title) for title in table["columns"]].index(column)
            for cells in table["rows"]:
                if row in (" ".join(map(str, cells[:count])) for count in (1, 2, 3)):
                    return cells[place]
        except (KeyError, TypeError, ValueError, IndexError):
            continue
    return None


def bounds(runs: Sequence[RunRecord], name: str) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of runs, or the one that a single run states; None without one.

    Args:
        runs: Runs that have the number.
        name: See :func:`values_of`.
    """
    if len(runs) == 1:
        if name.startswith(TABLE) and len(numbers := cell(runs[0], name)) == 3:
            return (numbers[1], numbers[2]) if math.isfinite(numbers[2]) else None
        low, high = value(runs[0], f"{name}_low"), value(runs[0], f"{name}_high")
        if low is not None and high is not None:
            return low, high
    return statistics.bounds(objectives(runs, name))


def of_share(ends: tuple[float, float], numbers: Iterable[float]) -> tuple[float, float]:
    """Return the interval of the mean of shares: within [0, 1], unless a number is not, as a transfer below 0."""
    if all(0 <= number <= 1 for number in numbers):
        return max(ends[0], 0.0), min(ends[1], 1.0)
    return ends


@dataclass(frozen=True)
class Side:
    """A number of runs, as one side of a difference.

    Attributes:
        runs: Runs that have the number; of several the mean.
        name: Its name, see :func:`values_of`.
        scale: Factor that gives both sides the same unit.
    """

    runs: Sequence[RunRecord]
    name: str
    scale: float = 1.0


def bounds_of_difference(first: Side, second: Side) -> tuple[float, float] | None:
    """Return the 95 % interval of the second number minus the first; None without one.

    Level by level where both have outcomes on the same levels; else of single runs it is computed from their intervals,
    of several from the values of all, see `best`.
    """
    same = first.scale == second.scale
    few = min(len(first.runs), len(second.runs)) < differences.MIN_SEEDS
    if same and not (few and len(first.runs) + len(second.runs) > 2):
        comparison = paired.compare(first.runs, second.runs, first.name, second.name)
        if isinstance(comparison, paired.Difference) and comparison.interval:
            return first.scale * comparison.interval[0], first.scale * comparison.interval[1]
    if any(len(side.runs) > 1 for side in (first, second)):
        ends = differences.interval_of_difference(
            *(objectives(s.runs, s.name) for s in (first, second))
        )
        return (first.scale * ends[0], first.scale * ends[1]) if ends and same else None
    sides = []
    for side in (first, second):
        run, name = side.runs[0], side.name
        numbers = cell(run, name) if name.startswith(TABLE) else []
        own = value(run, name)
        own_ends = (numbers[1], numbers[2]) if len(numbers) == 3 else bounds(side.runs, name)
        if own is None or own_ends is None:
            return None
        sides.append((side.scale * own, side.scale * own_ends[0], side.scale * own_ends[1]))
    return differences.difference(sides[0], sides[1])


def difference_by_flag(
    first: Side, second: Side, flag: str, by_id: Mapping[str, RunRecord]
) -> tuple[float, tuple[float, float] | None]:
    """Return the second number minus the first, mean over the values of a flag, with Student's 95 % interval over them.

    A value's number is the mean of its runs on each side: trainings on one split of the data are not independent.

    Args:
        first, second: The sides, whose runs have the same values of the flag.
        flag: The flag, of the runs or of those that they started from.
        by_id: Records by id.

    Returns:
        (difference, interval); the interval is None with fewer than `differences.MIN_SEEDS` values.

    Raises:
        LookupError: A run has no such flag, or the sides have different values of it.
    """
    of_first, of_second = (groups.by_flag(side.runs, flag, by_id) for side in (first, second))
    if of_first.keys() != of_second.keys():
        shown = " and ".join(", ".join(sorted(grouped)) for grouped in (of_second, of_first))
        raise LookupError(f"the sides differ in {flag}: {shown}")
    means = [
        [
            mean | {"value": side.scale * mean["value"]}
            for mean in mean_objectives((grouped[value] for value in of_first), side.name)
        ]
        for side, grouped in ((first, of_first), (second, of_second))
    ]
    less, more = (statistics.mean([mean["value"] for mean in side]) for side in means)
    return more - less, differences.interval_of_difference(*means, paired=True)


def objectives(runs: Sequence[RunRecord], name: str) -> list[dict[str, Any]]:
    """Return a number of runs in the form of objectives, with the number of games behind a counted rate.

    Args:
        runs: Runs that have the number.
        name: See :func:`values_of`.
    """
    numbers = [(run, number) for run in runs if (number := value(run, name)) is not None]
    return [
        _as_objective(run, name)
        or {
            "name": name,
            "value": number,
            # The mean of outcomes is a share of successes.
            "kind": "rate" if name in run.outcomes else "mean",
            "outcomes": run.outcomes,
        }
        for run, number in numbers
    ]


def shares(runs: Sequence[RunRecord], name: str) -> list[dict[str, Any]]:
    """Return a number of runs that is a share as rates, which are shown in percent; see :func:`objectives`."""
    return [{**number, "kind": "rate"} for number in objectives(runs, name)]


def mean_objectives(groups: Iterable[Sequence[RunRecord]], name: str) -> list[dict[str, Any]]:
    """Return the mean of a number over each group of runs, in the form of objectives.

    Args:
        groups: Runs that have the number.
        name: See :func:`values_of`.
    """
    means = (statistics.mean([o["value"] for o in objectives(runs, name)]) for runs in groups)
    return [{"name": name, "value": mean, "kind": "mean"} for mean in means]


def _as_objective(run: RunRecord, name: str) -> dict[str, Any] | None:
    """Return the objective, or its further number, of a name; None for any other number."""
    objective = run.objective or {}
    if objective and name in ("objective", objective["name"]):
        return objective
    return sentences.further(objective).get(name)


def plain(number: str) -> str:
    """Return a written number without thousands separators and typographic minus."""
    return number.replace(",", "").replace("−", "-")
