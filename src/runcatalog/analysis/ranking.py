"""Ranking of an operation's runs over seeds, by intervals, so that a single lucky seed is not ranked first."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runcatalog.analysis import groups as grouping
from runcatalog.analysis.find_runs import find_runs
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Operation, with_added_flags
from runcatalog.model.run_record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    Metric,
    RunRecord,
    is_maximized,
)
from runcatalog.query.fields import suggestion
from runcatalog.store.run_rows import Reader, StoredRun, by_id
from runcatalog.text import sentences, terminal

_WIDEST = 60  # cells of a flag's value in a table; JSON has the whole


@dataclass(frozen=True)
class Measure:
    """Value by which runs are compared.

    Attributes:
        name: A metric, or the name of the objective in the operation's results.
        kind: "objective", "last" or "best" (value of the metric).
        maximize: Whether larger is better.
    """

    name: str
    kind: str
    maximize: bool

    def __str__(self) -> str:
        shown = f"best:{self.name}" if self.kind == "best" else self.name
        kind = "objective, " if self.kind == "objective" else ""
        return f"{terminal.clean(shown)} ({kind}{'max' if self.maximize else 'min'})"


@dataclass
class RankedGroup:
    """Runs with equal values of the flags that are grouped by.

    Attributes:
        point: Value by flag that is grouped by.
        runs: All runs; several runs of a seed differ in other flags.
        scored: (value in the form of an objective, run) of the runs that finished with a finite value.
        rank: Number by which groups of several seeds are ranked; NaN for a single seed.
        parents: Runs that they were made from, if that is what distinguishes them from a group with equal flags.
    """

    point: dict[str, values.Scalar]
    runs: list[RunRecord]
    scored: list[tuple[dict[str, Any], RunRecord]] = field(default_factory=list)
    rank: float = math.nan
    parents: tuple[str, ...] = ()

    @property
    def numbers(self) -> list[float]:
        """A value per seed: the mean of its finished runs."""
        return [objective["value"] for objective in self.by_seed()]

    @property
    def mean(self) -> float:
        """Mean over the seeds with a finished run."""
        return statistics.mean(self.numbers)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the mean over seeds, as on the generated page."""
        return statistics.bounds(self.by_seed())

    @property
    def lost(self) -> list[RunRecord]:
        """Runs that failed or finished without a finite value."""
        scored = {run.run for _, run in self.scored}
        return [r for r in self.runs if r.status in (FAILED, FINISHED) and r.run not in scored]

    @property
    def failed(self) -> int:
        """Number of lost runs."""
        return len(self.lost)

    def by_seed(self, worst: float | None = None) -> list[dict[str, Any]]:
        """Return an objective per seed, the mean over its runs, which are not independent samples.

        Args:
            worst: Value of a failed run; None leaves it out.
        """
        lost = self.lost if worst is not None else []
        return grouping.over_seeds(
            [*self.scored, *(({"value": worst, "kind": "mean"}, run) for run in lost)]
        )


@dataclass
class Ranking:
    """Groups of an operation's runs, the best first.

    Attributes:
        operation: The operation.
        measure: Value by which the groups are compared.
        groups: Groups with a value.
        empty: Groups without a value.
        again: Number of runs left out because the same seed, or a script without a seed and with the same result, ran
            again with the same flags.
        marked: Number of runs left out because they are superseded or retracted.
        other: Number of runs left out because they finished with another objective.
    """

    operation: str
    measure: Measure
    groups: list[RankedGroup]
    empty: list[RankedGroup]
    again: int
    marked: int = 0
    other: int = 0

    @property
    def runs(self) -> list[RunRecord]:
        """All ranked runs, those of empty groups too."""
        return [run for group in (*self.groups, *self.empty) for run in group.runs]


def rank(
    reader: Reader,
    operation: str,
    metric: str = "",
    goal: str = "",
    by: Sequence[str] | None = None,
    operations: Callable[[], Mapping[str, Operation]] = dict,
    query: str = "",
) -> Ranking:
    """Return the groups of an operation's runs, the best first.

    Groups of two or more seeds are ranked by the worse end of the 95 % interval of their mean. In this interval a
    failed run counts as the worst value of all finished ones; where the interval without it ends worse, that end
    counts. A single seed has no such interval and is ranked below them, by its value.

    Args:
        reader: Source of the runs.
        operation: Name as typed after `guild run`, of single runs, trials or batches.
        metric: Metric whose last value is compared, "best:NAME" for its best value; "" for the objective.
        goal: "max" or "min"; "" to use the objective's goal, or to infer it from the metric's name.
        by: Flags to group by; by default all except the seed and those that do not change what a run computes, and the
            runs that a run was made from.
        operations: Returns the declared operations by name, for what runs from before a flag did; called only where
            runs of an operation have different flags, since reading the declarations takes time.
        query: Only runs that match it are ranked; see :mod:`runcatalog.query.language`. "" for all.

    Raises:
        CatalogError: The operation, the metric or a flag does not exist, or no run of the operation matches the query.
    """
    by_run = by_id(reader.runs())
    stored, marked = _of_operation(by_run, operation)
    known = {run: s.record for run, s in by_run.items()}
    if _have_different_flags(known.values()):
        known = {r.run: r for r in with_added_flags(known.values(), operations())}
    measure = _measure(operation, stored, metric, goal)
    runs = [s for s in stored if not _is_batch(s.record)]
    if query:
        found = find_runs(reader, query, by_run)
        matching = {s.run for s in found.stored}
        runs = [s for s in runs if s.run in matching]
        if not runs:
            hint = f": {found.hint}" if found.hint else ""
            raise CatalogError(f"no run of {operation} matches {query}{hint}")
    single = [s for s in runs if not _has_other_objective(s.record, measure)]
    records = [known[s.run] for s in single]
    metric_values = _metric_values(reader, single, measure)
    kept = grouping.without_repetitions(records, known)
    groups = _by_setting(kept, known) if by is None else _by_flags(kept, _known_flags(by, kept))
    for group in groups:
        for record in group.runs:
            objective = _objective(record, measure, metric_values.get(record.run))
            if objective and record.status == FINISHED and math.isfinite(objective["value"]):
                group.scored.append((objective, record))
    ranking = _ranked(operation, measure, groups, len(records) - len(kept))
    return replace(ranking, marked=marked, other=len(runs) - len(single))


def _have_different_flags(records: Iterable[RunRecord]) -> bool:
    """Return whether an operation has runs with different flags, as when its script got one."""
    names: dict[str, frozenset[str]] = {}
    return any(
        names.setdefault(r.operation, frozenset(r.flags)) != r.flags.keys()
        for r in records
        if r.flags
    )


def _by_flags(records: Sequence[RunRecord], names: Sequence[str]) -> list[RankedGroup]:
    """Group runs by the values of some flags."""
    groups: dict[tuple[str, ...], RankedGroup] = {}
    for record in records:
        point = {name: record.comparable_flags.get(name) for name in names}
        key = tuple(values.flag_text(value) for value in point.values())
        groups.setdefault(key, RankedGroup(point, [])).runs.append(record)
    return list(groups.values())


def _by_setting(records: Sequence[RunRecord], known: Mapping[str, RunRecord]) -> list[RankedGroup]:
    """Group runs that differ only in their seed; a setting includes the runs that a run was made from."""
    names = grouping.varying(records)
    groups = [
        RankedGroup({name: runs[0].comparable_flags.get(name) for name in names}, runs)
        for runs in grouping.by_setting(records, known, labels=False)
    ]
    alike = Counter(repr(group.point) for group in groups)
    for group in groups:
        if alike[repr(group.point)] > 1:
            group.parents = tuple(dict.fromkeys(p for run in group.runs for p in run.parents))
    return groups


def _ranked(operation: str, measure: Measure, groups: list[RankedGroup], again: int) -> Ranking:
    worse = min if measure.maximize else max
    sign = -1 if measure.maximize else 1
    scored = [group for group in groups if group.scored]
    all_values = [objective["value"] for group in scored for objective, _ in group.scored]
    worst = worse(all_values, default=math.nan)
    for group in scored:
        if len(group.numbers) > 1:
            # Also without the failed runs: as further seeds they may make the interval narrower.
            bounds = [statistics.bounds(group.by_seed(value)) or () for value in (worst, None)]
            group.rank = worse([end for ends in bounds for end in ends], default=group.mean)

    def key(group: RankedGroup) -> tuple[bool, float, float, int, str]:
        single = math.isnan(group.rank)
        rank = 0.0 if single else sign * group.rank
        return single, rank, sign * group.mean, group.failed, str(group.point)

    empty = [group for group in groups if not group.scored]
    return Ranking(operation, measure, sorted(scored, key=key), empty, again)


def _of_operation(by_run: Mapping[str, StoredRun], operation: str) -> tuple[list[StoredRun], int]:
    """Return an operation's current runs, and how many of its runs are superseded or retracted."""
    named = {run for run, s in by_run.items() if s.tags.get("operation") == operation}
    if not named:
        operations = {s.tags.get("operation", "") for s in by_run.values()}
        hint = suggestion(operation, operations) or "; `catalog sync` adds new runs"
        raise CatalogError(f"no run of {operation!r}{hint}")
    members = [s for s in by_run.values() if s.run in named or s.batch in named]
    batch_ids = {s.batch for s in by_run.values()}
    # A batch may be known only from the tags of its trials; it is not a run to compare.
    members = [s for s in members if s.run not in batch_ids or _is_batch(s.record)]
    marked = {s.run for s in members if not s.is_current}
    current = [s for s in members if s.run not in marked and s.batch not in marked]
    if not current:
        raise CatalogError(f"all runs of {operation} are superseded or retracted")
    return current, len(members) - len(current)


def _is_batch(record: RunRecord) -> bool:
    return bool((record.result or {}).get("batch"))


def _measure(operation: str, stored: Sequence[StoredRun], metric: str, goal: str) -> Measure:
    objectives = [o for s in stored if (o := s.record.objective)]
    kind, name = "last", metric
    if metric.startswith("best:"):
        kind, name = "best", metric.removeprefix("best:")
    if not metric:
        optimised = [
            o
            for s in stored
            if s.record.operation == operation
            and s.record.status == FINISHED
            and isinstance(o := (s.record.result or {}).get("optimised"), dict)
            and o.get("name")
        ]
        if optimised:  # the objective of a search takes precedence over that of its trials
            last = optimised[-1]
            return Measure(str(last["name"]), "last", (goal or last.get("goal")) != "min")
        if not objectives:
            raise CatalogError(f"no run of {operation} has an objective: --metric METRIC")
        kind, name = "objective", Counter(o["name"] for o in objectives).most_common(1)[0][0]
    objective = next((o for o in objectives if o["name"] == name), None)
    if kind == "last" and objective is not None:
        kind = "objective"  # the result also has the number of samples
    known = {metric for s in stored for metric in s.last}
    if kind != "objective" and name not in known:
        hint = suggestion(name, known)
        raise CatalogError(f"no run of {operation} has the metric {name!r}{hint}")
    maximize = is_maximized(name, objective) if not goal else goal == "max"
    return Measure(name, kind, maximize)


def _metric_values(
    reader: Reader, stored: Sequence[StoredRun], measure: Measure
) -> dict[str, float]:
    """Return the last or best value of the metric, by run."""
    if measure.kind != "best":
        return {s.run: s.last[measure.name] for s in stored if measure.name in s.last}
    points = reader.points([s.id for s in stored])
    curves = {s.run: points.get(s.id, {}).get(measure.name) for s in stored}
    return {
        run: Metric.from_points(curve, maximize=measure.maximize).best
        for run, curve in curves.items()
        if curve
    }


def _has_other_objective(record: RunRecord, measure: Measure) -> bool:
    """Return whether a run finished with an objective other than that by which runs are compared."""
    objective = record.objective if record.status == FINISHED else None
    if objective is None or measure.kind != "objective":
        return False
    return bool(objective["name"] != measure.name)


def _objective(record: RunRecord, measure: Measure, value: float | None) -> dict[str, Any] | None:
    """Return a run's value in the form of an objective; None without one."""
    if measure.kind == "objective":
        objective = record.objective
        return objective if objective and objective["name"] == measure.name else None
    return None if value is None else {"name": measure.name, "value": value, "kind": "mean"}


def _known_flags(by: Sequence[str], records: Sequence[RunRecord]) -> list[str]:
    known = {name for record in records for name in record.comparable_flags}
    for name in by:
        if name not in known:
            raise CatalogError(f"--group-by {name}: no run has this flag{suggestion(name, known)}")
    return list(dict.fromkeys(by))


def as_table(
    ranking: Ranking, limit: int, cells: int | None, *, every_flag: bool = False
) -> list[str]:
    """Return the ranking as lines: the measure, the table of groups, notes on the order.

    A flag is a column if the shown groups differ in it; what they have in common stands in a line below.

    Args:
        ranking: The groups.
        limit: Largest number of groups; 0 for all.
        cells: Width of the table in terminal cells; None for no limit. A table that is wider becomes a list.
        every_flag: Whether all groups' flags are columns, however wide the table gets.
    """
    measure, groups = ranking.measure, ranking.groups
    lines = [f"{terminal.clean(ranking.operation)}: {measure}; {_counts(ranking)}"]
    if groups:
        shown = groups[:limit] if limit else groups
        whole = [{n: terminal.value(v) for n, v in group.point.items()} for group in shown]
        names = [n for n in whole[0] if every_flag or len({text[n] for text in whole}) > 1]
        texts = [{n: terminal.cut(text, _WIDEST) for n, text in each.items()} for each in whole]
        made_from = ["made from"] if any(group.parents for group in shown) else []
        again = any(len(group.scored) > len(group.numbers) for group in shown)
        counts = ["seeds", "runs"] if again else ["seeds"]
        header = ["", *names, *made_from, "mean", "95 % interval", *counts, "failed", "best run"]
        rows = [
            [
                f"{place}.",
                *(text[name] for name in names),
                *(_parents(group) for _ in made_from),
                *_row(group, measure, again),
            ]
            for place, (group, text) in enumerate(zip(shown, texts, strict=True), 1)
        ]
        table = terminal.table(header, rows, right={*header[:-1]})
        if not every_flag and cells is not None and max(map(terminal.width, table)) > cells:
            table = _list(header, rows, names, cells)
        lines += ["", *table, ""]
        if common := [f"{n}={texts[0][n]}" for n in texts[0] if n not in names]:
            lines += _wrapped(
                f"{'all have' if len(shown) > 1 else 'it has'} {' '.join(common)}", cells, "  "
            )
        if len(shown) < len(groups):
            lines.append(f"{len(groups) - len(shown)} more (-n 0 shows all)")
    return lines + _notes(ranking)


def _list(
    header: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str], cells: int
) -> list[str]:
    """Return the groups as a table of their numbers, each followed by its flags in a line or more."""
    narrow = [0, *range(1 + len(names), len(header))]
    numbers = terminal.table(
        [header[i] for i in narrow],
        [[row[i] for i in narrow] for row in rows],
        right={header[i] for i in narrow[:-1]},
    )
    lines = [numbers[0]]
    for row, line in zip(rows, numbers[1:], strict=True):
        flags = " ".join(f"{name}={row[1 + i]}" for i, name in enumerate(names))
        lines += [line, *_wrapped(f"    {flags}", cells, "    ")]
    return lines


def _wrapped(text: str, cells: int | None, indent: str) -> list[str]:
    if cells is None:
        return [text]
    return textwrap.wrap(
        text, max(40, cells), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def as_json(ranking: Ranking, limit: int) -> str:
    """Return the ranking as JSON: the measure, and per group flags, mean, interval, seeds and runs.

    Args:
        ranking: The groups.
        limit: Largest number of groups; 0 for all.
    """
    measure = ranking.measure
    groups = [
        {
            "flags": group.point,
            "made_from": list(group.parents),
            "mean": group.mean,
            "interval": group.bounds,
            "seeds": len(group.numbers),
            "failed": group.failed,
            "best_run": _best(group, measure).run,
            "runs": [run.run for run in group.runs],
        }
        for group in (ranking.groups[:limit] if limit else ranking.groups)
    ]
    content = {
        "operation": ranking.operation,
        "metric": measure.name,
        "kind": measure.kind,
        "goal": "max" if measure.maximize else "min",
        "groups": groups,
    }
    return json.dumps(values.to_json(content), indent=1, ensure_ascii=False)


def _best(group: RankedGroup, measure: Measure) -> RunRecord:
    """Return the run of a group with the best value, the first of several."""
    sign = -1 if measure.maximize else 1
    return min(group.scored, key=lambda pair: (sign * pair[0]["value"], grouping.order(pair[1])))[1]


def _parents(group: RankedGroup) -> str:
    """Return the runs that a group's runs were made from, the first two of them."""
    ids = [parent[:8] for parent in group.parents]
    return " ".join(ids[:2] + ["…"] * (len(ids) > 2))


def _row(group: RankedGroup, measure: Measure, again: bool) -> list[str]:
    bounds = group.bounds
    interval = "" if bounds is None else "[{}, {}]".format(*map(terminal.number, bounds))
    failed = f"{group.failed} of {len(group.runs)}" if group.failed else ""
    counts = [str(len(group.numbers)), *([str(len(group.scored))] if again else [])]
    return [terminal.number(group.mean), interval, *counts, failed, _best(group, measure).id8]


def _counts(ranking: Ranking) -> str:
    runs = ranking.runs
    total = len(ranking.groups) + len(ranking.empty)
    parts = [f"{_plural(len(runs), 'run')}, {_plural(total, 'setting')}"]
    failed = sum(group.failed for group in (*ranking.groups, *ranking.empty))
    for count, word in (
        (failed, "failed"),
        (sum(run.status == KILLED for run in runs), "killed"),
        (sum(run.status == RUNNING for run in runs), "running"),
        (ranking.again, f"left out because {_again(runs)} ran again"),
        (ranking.marked, "superseded or retracted"),
        (ranking.other, "left out with another objective"),
    ):
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _again(runs: Sequence[RunRecord]) -> str:
    return "the same" if all(run.seed is None for run in runs) else "the same seed"


def _notes(ranking: Ranking) -> list[str]:
    groups, lines = ranking.groups, []
    several = [group for group in groups if not math.isnan(group.rank)]
    single = groups[len(several) :]
    if several:
        rule = "ranked by the worse end of the interval over seeds"
        if any(group.failed for group in several):
            rule += ", in which a failed run counts as the worst value of all finished ones"
        lines.append(rule + ("; single seeds are ranked below, by their value" if single else ""))
        first = several[0]
        most = max(len(group.numbers) for group in several)
        if len(first.numbers) < most:
            lines.append(f"the first has {len(first.numbers)} seeds, others up to {most}")
        sign = 1 if ranking.measure.maximize else -1
        lucky = [group for group in single if sign * group.mean > sign * first.mean]
        if lucky:
            place, reach = groups.index(lucky[0]) + 1, terminal.number(lucky[0].mean)
            lines.append(
                f"{place}. reached {reach} with a single seed, which may be chance: run more seeds"
            )
    elif single:
        lines.append(
            "a single seed per setting: no interval over seeds, and the order may be chance"
        )
    are_test_results = (run.split == "test" for group in groups for _, run in group.scored)
    if ranking.measure.kind == "objective" and any(are_test_results):
        lines.append("measured on a test set, which a choice between settings uses up")
    for group in ranking.empty[:5]:
        where = sentences.point_text(group.point, list(group.point), named=True) or "all"
        lines.append(f"{terminal.plain(where)}: no value ({_plural(len(group.runs), 'run')})")
    if len(ranking.empty) > 5:
        lines.append(f"{_plural(len(ranking.empty) - 5, 'more setting')} without a value")
    commits = {(run.commit, run.dirty) for run in ranking.runs if run.commit}
    if len(commits) > 1:
        lines.append(
            f"the runs are of {len(commits)} commits or uncommitted changes: catalog diff shows if the code differs"
        )
    return lines


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
