"""Numbers of declared headlines, computed from records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import differences, groups, record_numbers, replication
from runcatalog.analysis.headlines import Condition, Finding, Headline, is_number
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FINISHED, RunRecord, is_maximized
from runcatalog.query.fields import suggestion


@dataclass(frozen=True)
class Number:
    """A number of runs of one setting.

    Attributes:
        runs: Its runs, by start.
        value: The statistic over the runs.
        bounds: 95 % interval; None without one.
        objectives: The values that the statistic is of, in the form of objectives.
        point: The value of the compared flag; None without such a flag.
        group_sizes: Of how many runs each of these values is the mean; empty if each is of one run.
    """

    runs: tuple[RunRecord, ...]
    value: float
    bounds: tuple[float, float] | None
    objectives: tuple[dict[str, Any], ...] = ()
    point: values.Scalar = None
    group_sizes: tuple[int, ...] = ()

    @property
    def low(self) -> float:
        return self.bounds[0] if self.bounds else self.value

    @property
    def high(self) -> float:
        return self.bounds[1] if self.bounds else self.value


@dataclass(frozen=True)
class Measured:
    """What the records say to a headline.

    Attributes:
        headline: The headline.
        numbers: A number; if a flag's values are compared, one for each, the best first; empty without runs.
        maximize: Whether larger is better.
        left_out: Finished runs with the declared flags and other flags than those of the numbers.
    """

    headline: Headline
    numbers: tuple[Number, ...]
    maximize: bool = True
    left_out: int = 0

    @property
    def number(self) -> Number | None:
        """The number, or that of the best value of the compared flag."""
        return self.numbers[0] if self.numbers else None

    @property
    def others(self) -> tuple[Number, ...]:
        """The finite numbers that the best one is compared with."""
        return tuple(n for n in self.numbers[1:] if math.isfinite(n.value))

    @property
    def ties(self) -> tuple[Number, ...]:
        """The numbers that are indistinguishable from the best one; see `differences.differ`."""
        best = self.numbers[:1]
        return tuple(
            n for n in self.others if not differences.differ(best[0].objectives, n.objectives)
        )

    @property
    def falls_short(self) -> bool:
        """Whether the interval excludes the reported number on the worse side, beyond the number's rounding."""
        span, number = self.headline.reported_span, self.number
        if span is None or number is None or self.headline.compared_flag:
            return False
        reported = [span[0] if self.maximize else span[1]]
        share = self.headline.unit == "%"
        return replication.falls_short(number.bounds, reported, share=share, maximize=self.maximize)


class Runs:
    """Current records by the operation that started them.

    Args:
        records: Records that count.
        operations: Names of the declared operations.
    """

    def __init__(self, records: Iterable[RunRecord], operations: Iterable[str]) -> None:
        self._declared = set(operations)
        by_id = {record.run: record for record in sorted(records, key=groups.order)}
        self._by_id = by_id
        self._by_operation: dict[str, list[RunRecord]] = {}
        for record in by_id.values():
            batch = by_id.get(record.batch, record)
            self._by_operation.setdefault(batch.operation, []).append(record)

    def measured(self, headline: Headline) -> Measured:
        """Return a headline's number over the runs with its flags.

        If these differ in further flags, the setting with most seeds counts, of several the first; the values of a
        compared flag are those of one setting. Of several runs with the same seed and flags the newest counts.

        Raises:
            CatalogError: The operation is neither declared nor run; no run of it has a flag or the number.
        """
        runs = self._of(headline)
        finished = [r for r in runs if r.status == FINISHED and _fits(r, headline.flags)]
        scored = [r for r in finished if self._counted(headline, [r])]
        if finished and not scored:
            of = f"a parent {headline.parents} with " if headline.parents else ""
            raise CatalogError(
                f"{headline.where}: no run of {headline.operation} has {of}{headline.metric!r}"
            )
        # The trials of a batch count, unless the batch has the number itself.
        own = {r.run for r in scored}
        scored = [r for r in scored if r.batch not in own]
        if not scored:
            return Measured(headline, ())
        maximize = _maximize(headline, scored[0])
        chosen = self._setting(scored, headline)
        points: dict[str, list[RunRecord]] = {}
        for run in chosen:
            point = (
                run.comparable_flags.get(headline.compared_flag) if headline.compared_flag else None
            )
            points.setdefault(values.flag_text(point), []).append(run)
        numbers = [self._number(headline, members) for members in points.values()]
        sign = -1 if maximize else 1
        numbers.sort(key=lambda n: sign * n.value if math.isfinite(n.value) else math.inf)
        repeated = len(scored) - len(groups.without_repetitions(scored, self._by_id))
        return Measured(headline, tuple(numbers), maximize, len(scored) - repeated - len(chosen))

    def _of(self, headline: Headline) -> list[RunRecord]:
        runs = self._by_operation.get(headline.operation, [])
        known = self._declared | set(self._by_operation)
        if headline.operation not in known:
            name = headline.operation
            raise CatalogError(f"{headline.where}: no operation {name}{suggestion(name, known)}")
        flags = {flag for run in runs for flag in run.comparable_flags}
        compared = [headline.compared_flag] if headline.compared_flag else []
        for flag in (*headline.flags, *compared):
            if flags and flag not in flags:
                raise CatalogError(
                    f"{headline.where}: no run of {headline.operation} has the flag {flag!r}{suggestion(flag, flags)}"
                )
        return runs

    def _setting(self, runs: Sequence[RunRecord], headline: Headline) -> list[RunRecord]:
        """Return the runs of the setting with most runs, of several the first; with all values of a compared flag."""
        pooled = [flag for flag, accepted in headline.flags.items() if len(accepted) > 1]
        pooled.append(headline.compared_flag)
        newest = groups.without_repetitions(runs, self._by_id)
        settings: list[list[RunRecord]] = []
        for members in groups.by_setting(newest, pooled=pooled):
            seeds = {(run.seed, *map(run.comparable_flags.get, pooled)) for run in members}
            if len(seeds) == len(members):
                settings.append(members)
            else:  # a seed has runs that were made from others, as the evaluations of two models
                settings += groups.by_setting(members, self._by_id, pooled, labels=False)
        return min(settings, key=lambda members: (-len(members), groups.order(members[0])))

    def seeds(self, headline: Headline, number: Number) -> str:
        """Return how many seeds a number has: "5", or "10 × 3" for several kinds of repetition."""
        first, sizes = number.runs[0], number.group_sizes
        if sizes:
            return f"{len(sizes)} × {sizes[0]}" if len(set(sizes)) == 1 else str(sum(sizes))
        if headline.parents or len(number.runs) > 1:
            return str(len(number.objectives))
        counts = []
        for flag in headline.seeds or ("seeds",):
            repeated = groups.flag_of(first, flag, self._by_id)
            if repeated is not None:
                counts.append(_repetitions(repeated))
            elif headline.seeds:
                raise CatalogError(
                    f"{headline.where}: seeds: run {first.id8} has no flag {flag!r}"
                    f"{suggestion(flag, first.flags)}"
                )
        return " × ".join(map(str, counts)) or "1"

    def _counted(self, headline: Headline, runs: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the runs whose numbers count and that have one: runs themselves, or parents."""
        counted = {run.run: run for run in runs}
        if headline.parents:
            ids = [parent for run in counted.values() for parent in run.parents]
            found = {i: self._by_id[i] for i in ids if i in self._by_id}
            counted = {i: run for i, run in found.items() if run.operation == headline.parents}
        return [
            run
            for run in counted.values()
            if record_numbers.value(run, headline.metric) is not None
        ]

    def _number(self, headline: Headline, runs: Sequence[RunRecord]) -> Number:
        counted, metric = self._counted(headline, runs), headline.metric
        objectives = record_numbers.objectives(counted, metric)
        sizes: tuple[int, ...] = ()
        if headline.mean_by:
            try:
                grouped = groups.by_flag(counted, headline.mean_by, self._by_id).values()
            except LookupError as error:
                raise CatalogError(f"{headline.where}: mean_by: {error}") from None
            objectives = record_numbers.mean_objectives(grouped, metric)
            sizes = tuple(map(len, grouped))
        numbers = [objective["value"] for objective in objectives]
        statistic = "mean" if headline.compared_flag else headline.statistic
        bounds = None
        if statistic == "mean" or len(counted) == 1:
            bounds = (
                statistics.bounds(objectives)
                if headline.mean_by and len(counted) > 1
                else record_numbers.bounds(counted, metric)
            )
        flag = headline.compared_flag
        point = runs[0].comparable_flags.get(flag) if flag else None
        # Records hold shares; the cells of their tables have the unit of the table.
        in_percent = headline.unit == "%" and metric.startswith(record_numbers.TABLE)
        scale = 0.01 if in_percent else 1.0
        value = scale * statistics.statistic(statistic, numbers)
        bounds = bounds and (scale * bounds[0], scale * bounds[1])
        if bounds and headline.unit == "%":
            bounds = record_numbers.of_share(bounds, (scale * number for number in numbers))
        return Number(tuple(runs), value, bounds, tuple(objectives), point, sizes)


def unsupported(finding: Finding, measured: Mapping[str, Measured]) -> list[Condition]:
    """Return the conditions of a finding that the records do not support; empty where all hold.

    Args:
        finding: The finding.
        measured: Headlines of its study by name.
    """
    return [c for c in finding.conditions if not _supported(c, measured)]


def _supported(condition: Condition, measured: Mapping[str, Measured]) -> bool:
    left = measured[condition.left].number
    if left is None:
        return False
    uncertain = left.bounds is None
    if is_number(condition.right):
        other = (float(condition.right),) * 3
    elif (right := measured[condition.right].number) is not None:
        other = right.value, right.low, right.high
        uncertain = uncertain or right.bounds is None
    else:
        return False
    if uncertain:  # a number without an interval is larger or smaller than nothing
        return condition.sign == "~"
    lower, upper = differences.difference(other, (left.value, left.low, left.high))
    above, below = lower > 0, upper < 0
    return {">": above, "<": below, "~": not above and not below}[condition.sign]


def _maximize(headline: Headline, run: RunRecord) -> bool:
    if headline.goal:
        return headline.goal == "max"
    objective = run.objective
    name = headline.metric
    if objective and name == "objective":
        name = objective["name"]
    return is_maximized(name, objective)


def _fits(run: RunRecord, flags: Mapping[str, tuple[values.Scalar, ...]]) -> bool:
    return all(
        any(_is_same(run.comparable_flags.get(flag), value) for value in accepted)
        for flag, accepted in flags.items()
    )


def _is_same(first: values.Scalar, second: values.Scalar) -> bool:
    """Return whether two values of a flag are equal: 0 is 0.0, but not False."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def _repetitions(value: values.Scalar) -> int:
    """Return a flag's number of repetitions: a number, or the length of a list written with spaces."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return len(str(value).replace(",", " ").split())
