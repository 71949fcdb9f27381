"""The best runs of an operation, over seeds: a lucky one must not win."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runcatalog.analysis import groups as grouping
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    Metric,
    RunRecord,
    is_maximized,
)
from runcatalog.query.fields import close_matches
from runcatalog.store.run_rows import Reader, StoredRun
from runcatalog.text import sentences, terminal


@dataclass(frozen=True)
class Measure:
    """What runs are compared by.

    Attributes:
        name: A metric, or what the operation's results call their objective.
        kind: "objective", "last" or "best".
        maximize: Whether large is good.
    """

    name: str
    kind: str
    maximize: bool

    def __str__(self) -> str:
        shown = f"best:{self.name}" if self.kind == "best" else self.name
        told = "its objective, " if self.kind == "objective" else ""
        return f"{terminal.clean(shown)} ({told}{'max' if self.maximize else 'min'})"


@dataclass
class Group:
    """Runs that differ in their seed alone, or in what they were not grouped by.

    Attributes:
        point: The flags that tell it from other groups.
        runs: All of them; a seed more than once where they also differ in what they were not grouped by.
        told: Of those that finished with a finite value, (value as an objective, run).
        rank: Number that groups of several seeds are ranked by.
    """

    point: dict[str, values.Scalar]
    runs: list[RunRecord]
    told: list[tuple[dict[str, Any], RunRecord]] = field(default_factory=list)
    rank: float = math.nan

    @property
    def numbers(self) -> list[float]:
        """A value a seed: the mean of its runs that finished."""
        return [objective["value"] for objective in self.by_seed()]

    @property
    def mean(self) -> float:
        """Mean of the seeds with a run that finished."""
        return statistics.mean(self.numbers)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the mean over seeds, as in the catalog."""
        return statistics.bounds(self.by_seed())

    @property
    def lost(self) -> list[RunRecord]:
        """Runs that failed, or finished without a finite value."""
        told = {run.run for _, run in self.told}
        return [r for r in self.runs if r.status in (FAILED, FINISHED) and r.run not in told]

    @property
    def failed(self) -> int:
        """How many these are."""
        return len(self.lost)

    def by_seed(self, worst: float | None = None) -> list[dict[str, Any]]:
        """Returns an objective a seed, the mean of its runs: these are no further draws of the seed.

        Args:
            worst: Value of a run that failed; None leaves it out.
        """
        found: dict[object, list[dict[str, Any]]] = {}
        for objective, run in self.told:
            found.setdefault(_seed(run), []).append(objective)
        for run in self.lost if worst is not None else ():
            found.setdefault(_seed(run), []).append({"value": worst, "kind": "mean"})
        return [_mean(objectives) for objectives in found.values()]

    def count(self, status: str) -> int:
        """Runs with a status."""
        return sum(run.status == status for run in self.runs)


@dataclass
class Ranking:
    """The groups of an operation, the best first.

    Attributes:
        operation: The operation.
        measure: What they are compared by.
        groups: The groups with a value.
        empty: Those without one.
        again: Runs left out because the same seed with the same flags ran again.
    """

    operation: str
    measure: Measure
    groups: list[Group]
    empty: list[Group]
    again: int

    @property
    def runs(self) -> list[RunRecord]:
        """All runs that were looked at."""
        return [run for group in (*self.groups, *self.empty) for run in group.runs]


def rank(
    reader: Reader,
    operation: str,
    metric: str = "",
    goal: str = "",
    by: Sequence[str] | None = None,
) -> Ranking:
    """Returns the groups of an operation's runs, the best first.

    Groups of two seeds or more are ranked by the worse end of the 95 % interval of their mean, in which a
    run that failed counts as the worst value that any run has. A single seed has no such interval: it
    stands below them, by its value.

    Args:
        reader: The runs.
        operation: Name as typed after `guild run`, of single runs, trials or batches.
        metric: Metric whose last value counts, "best:NAME" for its best one; "" for the objective.
        goal: "max" or "min"; "" for what the objective says, or the metric's name.
        by: Flags to group by; by default all but the seed.

    Raises:
        CatalogError: There is no such operation, metric or flag.
    """
    stored = _of_operation(reader, operation)
    measure = _measure(operation, stored, metric, goal)
    members = [each for each in stored if not _is_head(each.record)]
    records = [each.record for each in members]
    values_ = _values(reader, members, measure)
    kept = _each_seed_once(records)
    names = grouping.varying(kept) if by is None else _known_flags(by, kept)
    found: dict[tuple[str, ...], Group] = {}
    for record in kept:
        point = {name: record.flags.get(name) for name in names}
        key = tuple(values.flag_text(value) for value in point.values())
        group = found.setdefault(key, Group(point, []))
        group.runs.append(record)
        told = _told(record, measure, values_.get(record.run))
        if told is not None and record.status == FINISHED and math.isfinite(told["value"]):
            group.told.append((told, record))
    return _ranked(operation, measure, list(found.values()), len(records) - len(kept))


def _ranked(operation: str, measure: Measure, groups: list[Group], again: int) -> Ranking:
    worse = min if measure.maximize else max
    sign = -1 if measure.maximize else 1
    told = [group for group in groups if group.told]
    everything = [objective["value"] for group in told for objective, _ in group.told]
    for group in told:
        if len(group.numbers) > 1:
            bounds = statistics.bounds(group.by_seed(worse(everything)))
            group.rank = worse(bounds or [group.mean])

    def key(group: Group) -> tuple[bool, float, float, str]:
        single = math.isnan(group.rank)
        return single, sign * (0.0 if single else group.rank), sign * group.mean, str(group.point)

    empty = [group for group in groups if not group.told]
    return Ranking(operation, measure, sorted(told, key=key), empty, again)


def _of_operation(reader: Reader, operation: str) -> list[StoredRun]:
    by_run: dict[str, StoredRun] = {}
    for each in reader.runs():
        by_run.setdefault(each.run, each)
    named = {run for run, each in by_run.items() if each.tags.get("operation") == operation}
    if not named:
        known = {each.tags.get("operation", "") for each in by_run.values()}
        hint = "".join(f"; did you mean {name}?" for name in close_matches(operation, known)[:1])
        hint = hint or "; `catalog sync` brings in what has run"
        raise CatalogError(f"no run of {operation!r} in MLflow{hint}")
    found = [s for s in by_run.values() if s.run in named or s.tags.get("batch") in named]
    batch_ids = {each.tags.get("batch") for each in by_run.values()}
    # A batch that only its trials name as one is no run to compare either.
    return [s for s in found if s.run not in batch_ids or _is_head(s.record)]


def _is_head(record: RunRecord) -> bool:
    return bool((record.result or {}).get("batch"))


def _measure(operation: str, stored: Sequence[StoredRun], metric: str, goal: str) -> Measure:
    objectives = [o for s in stored if (o := s.record.objective)]
    kind, name = "last", metric
    if metric.startswith("best:"):
        kind, name = "best", metric.removeprefix("best:")
    if not metric:
        searched = [
            told
            for s in stored
            if s.record.operation == operation
            and isinstance(told := (s.record.result or {}).get("optimised"), dict)
            and told.get("name")
        ]
        if searched:  # a search: its own objective, not its trials'
            told = searched[-1]
            return Measure(str(told["name"]), "last", (goal or told.get("goal")) != "min")
        if not objectives:
            raise CatalogError(f"no run of {operation} has an objective: --metric NAME")
        kind, name = "objective", Counter(o["name"] for o in objectives).most_common(1)[0][0]
    told = next((o for o in objectives if o["name"] == name), None)
    if kind == "last" and told is not None:
        kind = "objective"  # the result says it, with how often it was counted
    known = {each for s in stored for each in s.last}
    if kind != "objective" and name not in known:
        hint = "".join(f", did you mean {each}?" for each in close_matches(name, known)[:1])
        raise CatalogError(f"no run of {operation} has the metric {name!r}{hint}")
    maximize = is_maximized(name, told) if not goal else goal == "max"
    return Measure(name, kind, maximize)


def _values(reader: Reader, stored: Sequence[StoredRun], measure: Measure) -> dict[str, float]:
    """Last or best value of the metric, by run."""
    if measure.kind != "best":
        return {each.run: each.last[measure.name] for each in stored if measure.name in each.last}
    points = reader.points([each.id for each in stored])
    found = {each.run: points.get(each.id, {}).get(measure.name) for each in stored}
    return {
        run: Metric.of(curve, maximize=measure.maximize).best
        for run, curve in found.items()
        if curve
    }


def _told(record: RunRecord, measure: Measure, value: float | None) -> dict[str, Any] | None:
    """A run's value in the form of an objective; None without one."""
    if measure.kind == "objective":
        objective = record.objective
        return objective if objective and objective["name"] == measure.name else None
    return None if value is None else {"name": measure.name, "value": value, "kind": "mean"}


def _seed(run: RunRecord) -> object:
    """What tells a run's seed from others'; a run without one is a draw of its own."""
    return run.run if run.seed is None else run.seed


def _mean(objectives: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several objectives of a seed as one, counted if each of them was."""
    if len(objectives) == 1:
        return objectives[0]
    counts = [statistics.counted(objective) for objective in objectives]
    value = statistics.mean([objective["value"] for objective in objectives])
    told = {"value": value, "kind": "rate", "count": sum(counts)}
    return objectives[0] | (told if all(counts) else {"value": value, "kind": "mean"})


def _each_seed_once(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs without those whose flags, seed included, ran again: one that finished, else the newest."""
    kept: dict[object, RunRecord] = {}
    for record in sorted(records, key=grouping.order):
        flags = {k: v for k, v in record.flags.items() if k not in ("resume", "save-name")}
        key: object = record.run if record.seed is None else repr((record.seed, flags))
        before = kept.get(key)
        if before is None or record.status == FINISHED or before.status != FINISHED:
            kept[key] = record
    return list(kept.values())


def _known_flags(by: Sequence[str], records: Sequence[RunRecord]) -> list[str]:
    known = {name for record in records for name in record.flags}
    for name in by:
        if name not in known:
            hint = "".join(f", did you mean {each}?" for each in close_matches(name, known)[:1])
            raise CatalogError(f"--group-by {name}: no run has this flag{hint}")
    return list(dict.fromkeys(by))


def as_table(ranking: Ranking, limit: int, cells: int | None) -> list[str]:
    """Returns the ranking as lines: what was compared, the groups, how they are ranked.

    Args:
        ranking: The groups.
        limit: How many at most; 0 for all.
        cells: Width of the table; None for any.
    """
    measure, groups = ranking.measure, ranking.groups
    lines = [f"{terminal.clean(ranking.operation)}: {measure}; {_counts(ranking)}"]
    if groups:
        shown = groups[:limit] if limit else groups
        points = list(shown[0].point)
        again = any(len(group.told) > len(group.numbers) for group in shown)
        counts = ["seeds", "runs"] if again else ["seeds"]
        header = ["", *points, "mean", "95 % interval", *counts, "failed", "best run"]
        rows = [
            [
                f"{place}.",
                *(terminal.value(group.point[name]) for name in points),
                *_row(group, measure, again),
            ]
            for place, group in enumerate(shown, 1)
        ]
        lines += ["", *terminal.table(header, rows, right={*header[:-1]}, cells=cells), ""]
        if len(shown) < len(groups):
            lines.append(f"{len(groups) - len(shown)} more (-n 0 shows all)")
    return lines + _notes(ranking)


def _row(group: Group, measure: Measure, again: bool) -> list[str]:
    sign = -1 if measure.maximize else 1
    best = min(group.told, key=lambda told: (sign * told[0]["value"], grouping.order(told[1])))[1]
    bounds = group.bounds
    interval = "" if bounds is None else "[{}, {}]".format(*map(terminal.number, bounds))
    failed = f"{group.failed} of {len(group.runs)}" if group.failed else ""
    counts = [str(len(group.numbers)), *([str(len(group.told))] if again else [])]
    return [terminal.number(group.mean), interval, *counts, failed, best.id8]


def _counts(ranking: Ranking) -> str:
    runs = ranking.runs
    total = len(ranking.groups) + len(ranking.empty)
    parts = [f"{_plural(len(runs), 'run')}, {_plural(total, 'point')}"]
    failed = sum(group.failed for group in (*ranking.groups, *ranking.empty))
    for count, word in (
        (failed, "failed"),
        (sum(run.status == KILLED for run in runs), "killed"),
        (sum(run.status == RUNNING for run in runs), "running"),
        (ranking.again, "left out, for the same seed ran again"),
    ):
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _notes(ranking: Ranking) -> list[str]:
    groups, lines = ranking.groups, []
    several = [group for group in groups if not math.isnan(group.rank)]
    single = groups[len(several) :]
    if several:
        told = "ranked by the worse end of the interval over seeds"
        if any(group.failed for group in several):
            told += ", in which a failed run counts as the worst value of all"
        lines.append(told + ("; single seeds stand below, by their value" if single else ""))
        first = several[0]
        most = max(len(group.numbers) for group in several)
        if len(first.numbers) < most:
            lines.append(f"the first has {len(first.numbers)} seeds, others up to {most}")
        sign = 1 if ranking.measure.maximize else -1
        lucky = [group for group in single if sign * group.mean > sign * first.mean]
        if lucky:
            place, reach = groups.index(lucky[0]) + 1, terminal.number(lucky[0].mean)
            lines.append(
                f"{place}. reached {reach} with one seed, which may be luck: more seeds tell"
            )
    elif single:
        lines.append("one seed each: no interval over seeds, and the order may be luck")
    for group in ranking.empty[:5]:
        where = sentences.point_text(group.point, list(group.point), named=True) or "all"
        lines.append(f"{terminal.plain(where)}: no value ({_plural(len(group.runs), 'run')})")
    if len(ranking.empty) > 5:
        lines.append(f"{len(ranking.empty) - 5} more points without a value")
    commits = {(run.commit, run.dirty) for run in ranking.runs if run.commit}
    if len(commits) > 1:
        lines.append(f"the runs are of {len(commits)} states of the code (catalog diff shows them)")
    return lines


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
