"""Differences between two runs or two batches: flags, metrics, code, machine."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog.analysis import groups, paired, record_numbers
from runcatalog.analysis.commits import between
from runcatalog.analysis.differences import MIN_SEEDS, interval_of_difference
from runcatalog.analysis.paired import Difference
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FAILED, FINISHED, RunRecord
from runcatalog.numbers import is_number
from runcatalog.query.fields import suggestion
from runcatalog.text import terminal

CLOCK = "time/"  # metrics that read the clock; they differ between equal runs
# Operation, label and status are in the first table.
_FACTS = ("study", "reason", "reported_by", "superseded_by", "superseded_why", "retracted")
_NAMED = 5  # most metrics that a sentence names
VALUES = 8  # most values of a flag over a batch that are listed
_MACHINE = ("machine", "gpu", "host_cpu")
_NONE = "–"

_COUNTS = ["only A", "only B", "p", "detectable"]
_DIFFERENCE = ["B − A", *_COUNTS, "method"]


@dataclass(frozen=True)
class Side:
    """A run or a batch to compare.

    Attributes:
        head: Record of the run or of the batch.
        trials: Trials of a batch, with their metrics; empty for a run.
    """

    head: RunRecord
    trials: tuple[RunRecord, ...] = ()

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The trials, or the run itself."""
        return self.trials or (self.head,)


def diff(
    a: Side, b: Side, root: Path, metrics: Sequence[str] = (), cells: int | None = None
) -> list[str]:
    """Return the differences as lines; sections without a difference are left out.

    Args:
        a: First run or batch.
        b: Second run or batch.
        root: Folder of the project, whose repository should have the commits.
        metrics: Metrics to show; by default all that differ between two runs, and the objective of two batches
            (all metrics where their trials differ only in the seed).
        cells: Width of the tables in terminal cells; None for no limit.

    Raises:
        CatalogError: A run is compared with a batch, or a metric is unknown.
    """
    _check(a, b, metrics)
    sections = {
        "facts": _pairs(_facts(a.head), _facts(b.head), cells),
        "flags": _pairs(*_flags(a.runs, b.runs), cells),
        "metrics": (_batch_metrics if a.trials else _run_metrics)(a, b, metrics, cells),
        "differences": [] if a.trials else _run_differences(a.head, b.head, metrics, cells),
        "code": _code(a, b, root),
        "versions": _pairs(_common(a.runs, "versions"), _common(b.runs, "versions"), cells),
        "environment": _pairs(
            _common(a.runs, "environment"), _common(b.runs, "environment"), cells
        ),
        "machine": _pairs(_machine(a.runs), _machine(b.runs), cells),
    }
    lines = terminal.table(["", *_TITLES], [_title("A", a), _title("B", b)], cells=cells)
    for name, section in sections.items():
        if section:
            lines += ["", name, *(f"  {line}" for line in section)]
    if not any(sections.values()):
        lines += ["", "no difference in flags, metrics, code, versions or machine"]
    time = _pairs(_clock(a.runs), _clock(b.runs), cells)
    return lines + (["", "time", *(f"  {line}" for line in time)] if time else [])


def as_json(a: Side, b: Side, metrics: Sequence[str] = ()) -> str:
    """Return what differs between two runs or two batches as JSON; every difference is a pair of A and B.

    Flags, versions and facts of a batch are lists of the values of its runs; metrics are last values by run.
    `differences` has B − A with its interval, by metric and flags.

    Args:
        a: First run or batch.
        b: Second run or batch.
        metrics: Metrics to include; by default all that differ.

    Raises:
        CatalogError: See :func:`diff`.
    """
    _check(a, b, metrics)
    fields = {
        "facts": lambda run: {name: getattr(run, name) for name in (*_FACTS, "operation", "label")},
        "flags": lambda run: run.flags,
        "metrics": lambda run: {
            name: metric.last
            for name, metric in run.metrics.items()
            if (not metrics or name in metrics) and not name.startswith(CLOCK)
        },
        "code": lambda run: {"commit": run.commit, "dirty": run.dirty},
        "versions": lambda run: run.versions,
        "environment": lambda run: run.environment,
        "machine": lambda run: {name: getattr(run, name) for name in _MACHINE},
    }
    content: dict[str, Any] = {
        name: {"run": side.head.run, "operation": side.head.operation, "runs": len(side.runs)}
        for name, side in (("A", a), ("B", b))
    }
    for field, read in fields.items():
        sides = [[read(run) for run in side.runs] for side in (a, b)]
        names = sorted({name for side in sides for entries in side for name in entries})
        listed = bool(a.trials)
        pairs = {name: [_json_values(side, name, listed) for side in sides] for name in names}
        content[field] = {
            name: pair for name, pair in pairs.items() if repr(pair[0]) != repr(pair[1])
        }
    if a.trials:
        compared = [(m.point, m.metric, m.difference) for m in _matched(a, b, metrics)]
    else:
        compared = [({}, *named) for named in _differences(a.head, b.head, metrics)]
    content["differences"] = [
        {"flags": point, "metric": metric, **vars(difference)}
        | {"determined": difference.is_determined, "detectable": difference.detectable}
        for point, metric, difference in compared
        if difference
    ]
    return json.dumps(values.to_json(content), indent=1, ensure_ascii=False)


def _json_values(entries: Sequence[Mapping[str, Any]], name: str, listed: bool) -> Any:
    """Return a run's value of a name, or the distinct values of a batch in a list; None stands for no value."""
    found = {repr(entry.get(name)): entry.get(name) for entry in entries}
    distinct = sorted(found.values(), key=values.sort_key)
    return distinct if listed else distinct[0]


_TITLES = ("run", "operation", "label", "status", "started (UTC)", "took")


def _title(name: str, side: Side) -> list[str]:
    head = side.head
    operation = head.operation + (f" ({len(side.trials)} runs)" if side.trials else "")
    took = terminal.duration(head.wall_seconds)
    return [name, head.id8, operation, head.label, head.status, terminal.when(head.started), took]


def _pairs(a: Mapping[str, str], b: Mapping[str, str], cells: int | None) -> list[str]:
    """Return a table of the entries that differ between two mappings."""
    names = sorted({*a, *b})
    rows = [[n, a.get(n, _NONE), b.get(n, _NONE)] for n in names if a.get(n) != b.get(n)]
    return terminal.table(["", "A", "B"], rows, cells=_indented(cells)) if rows else []


def _facts(record: RunRecord) -> dict[str, str]:
    facts = {name: str(getattr(record, name)) for name in _FACTS if getattr(record, name)}
    if record.parents:
        facts["from"] = ", ".join(parent[:8] for parent in record.parents)
    return facts


def _flags(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> tuple[dict[str, str], dict[str, str]]:
    """Return, per side, the text of the flags whose values differ between the sides."""
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for name in sorted({name for run in (*a, *b) for name in run.flags} - {"resume"}):
        exact = [
            _distinct(_exact(run.flags[name]) if name in run.flags else _NONE for run in runs)
            for runs in (a, b)
        ]
        if exact[0] == exact[1]:
            continue
        shown = _shown({*exact[0], *exact[1]})
        for side, side_values in zip(sides, exact, strict=True):
            texts = [shown[value] for value in side_values]
            side[name] = ", ".join(texts)
            if len(texts) > VALUES:
                side[name] = f"{texts[0]} … {texts[-1]} ({len(texts)} values)"
        if sides[0][name] == sides[1][name]:  # the sides differ only in values that "…" hides
            only = [[shown[v] for v in exact[i] if v not in exact[1 - i]] for i in (0, 1)]
            for side, texts in zip(sides, only, strict=True):
                side[name] += f", only here: {texts[0]}" if texts else ""
    return sides


def _exact(value: values.Scalar) -> str:
    """Return a flag's value with all of its digits; 1.0 is written as 1."""
    whole = isinstance(value, float) and value.is_integer()
    return values.flag_text(int(value) if whole else value)  # type: ignore[arg-type]


def _shown(exact: Iterable[str]) -> dict[str, str]:
    """Map exact values of a flag to short text; values whose short texts are equal keep all digits."""
    short = {
        text: text if text == _NONE else terminal.value(values.parse_flag(text)) for text in exact
    }
    counts = Counter(short.values())
    return {e: s if counts[s] == 1 else terminal.clean(e) for e, s in short.items()}


def _distinct(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts), key=_numeric_order)


def _numeric_order(shown: str) -> tuple[bool, float, str]:
    value = values.parse_flag(shown)
    numeric = is_number(value)
    return not numeric, float(value) if numeric else 0.0, shown  # type: ignore[arg-type]


def _common(runs: Sequence[RunRecord], name: str) -> dict[str, str]:
    """Return the distinct values of the keys of a mapping field over runs."""
    keys = sorted({key for run in runs for key in getattr(run, name)})
    return {k: ", ".join(_distinct(getattr(r, name).get(k, _NONE) for r in runs)) for k in keys}


def _machine(runs: Sequence[RunRecord]) -> dict[str, str]:
    texts = {name: ", ".join(_distinct(getattr(run, name) for run in runs)) for name in _MACHINE}
    return {name: text for name, text in texts.items() if text}


def _clock(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return mean wall time and speeds of runs."""
    means = {}
    walls = [run.wall_seconds for run in runs if run.wall_seconds is not None]
    if walls:
        means["wall time" + (" (mean)" if len(runs) > 1 else "")] = terminal.duration(
            statistics.mean(walls)
        )
    for name in sorted({name for run in runs for name in run.metrics if name.startswith(CLOCK)}):
        last = [run.metrics[name].last for run in runs if name in run.metrics]
        means[name.removeprefix(CLOCK)] = terminal.number(statistics.mean(last))
    return means


def _code(a: Side, b: Side, root: Path) -> list[str]:
    first, second = _states(a.runs), _states(b.runs)
    if first == second:
        return []
    lines = [f"A: {_state_text(first)}", f"B: {_state_text(second)}"]
    commits = [side[-1][0] if side else "" for side in (first, second)]
    if all(commits) and commits[0] != commits[1]:
        lines += between(root, *commits)
    return lines


def _states(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the distinct (commit, digest of uncommitted changes) of runs, the latest last."""
    ordered = sorted(runs, key=groups.order)
    return list(dict.fromkeys((run.commit, run.dirty) for run in ordered if run.commit))


def _state_text(states: Sequence[tuple[str, str]]) -> str:
    shown = [
        f"{commit[:12]}{f' with changes {dirty}' if dirty else ''}" for commit, dirty in states
    ]
    return ", ".join(shown) or "no commit was recorded"


def _check(a: Side, b: Side, metrics: Sequence[str]) -> None:
    if bool(a.trials) != bool(b.trials):
        run, batch = (b, a) if a.trials else (a, b)
        kinds = f"{batch.head.id8} is a batch of {len(batch.trials)} runs, {run.head.id8} a run"
        raise CatalogError(f"{kinds}: give two runs or two batches")
    _check_known(metrics, (*a.runs, *b.runs))


def _check_known(metrics: Sequence[str], runs: Sequence[RunRecord]) -> None:
    known = {name for run in runs for name in run.metrics}
    known |= {run.objective["name"] for run in runs if run.objective}
    for name in metrics:
        if name not in known:
            raise CatalogError(f"--metric {name}: neither has it{suggestion(name, known)}")


def _run_metrics(a: Side, b: Side, metrics: Sequence[str], cells: int | None) -> list[str]:
    rows = _objective_rows(a.head, b.head, metrics)
    equal, same_last_and_best = 0, []
    for name in _metric_names((a.head, b.head), metrics):
        first, second = (side.head.metrics.get(name) for side in (a, b))
        last = _difference_cells(first.last if first else None, second.last if second else None)
        best = _difference_cells(first.best if first else None, second.best if second else None)
        if repr(first) == repr(second):  # repr, since NaN is not equal to itself
            equal += 1
        elif (
            first and second and repr((first.last, first.best)) == repr((second.last, second.best))
        ):
            same_last_and_best.append(name)
        else:
            rows.append([name, *last, *best])
    header = ["", "last A", "last B", "B − A", "best A", "best B", "B − A "]
    lines = terminal.table(header, rows, right=header[1:], cells=_indented(cells)) if rows else []
    if count := len(same_last_and_best):
        named = ", ".join(map(terminal.clean, same_last_and_best[:_NAMED])) + ", …" * (
            count > _NAMED
        )
        one = "1 differs at some step, but not in its last and best value"
        several = f"{count} differ at some step, but not in their last and best value"
        lines.append(f"{one if count == 1 else several}: {named}")
    if lines and equal:
        lines.append(f"{equal} more are equal at every step")
    elif not lines and not metrics:
        # A record has at most a hundred points of a curve; the digest is of all points.
        first_digest, second_digest = a.head.digest, b.head.digest
        names = [
            n
            for n in ("metrics", "weights")
            if first_digest and second_digest and first_digest.get(n) != second_digest.get(n)
        ]
        lines = [f"the digests of {' and '.join(names)} differ"] if names else []
    return lines


def _objective_rows(a: RunRecord, b: RunRecord, metrics: Sequence[str]) -> list[list[str]]:
    objectives = a.objective, b.objective
    rows = []
    for name in dict.fromkeys(o["name"] for o in objectives if o):
        first, second = (o["value"] if o and o["name"] == name else None for o in objectives)
        if repr(first) != repr(second) and (not metrics or name in metrics):
            rows.append([f"{name} (objective)", *_difference_cells(first, second), "", "", ""])
    return rows


def _difference_cells(a: float | None, b: float | None) -> list[str]:
    """Return the cells "A", "B" and "B − A"."""
    shown = [_NONE if value is None else terminal.number(value) for value in (a, b)]
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return [*shown, ""]
    return [*shown, terminal.signed(b - a)]


def _metric_names(runs: Iterable[RunRecord], metrics: Sequence[str]) -> list[str]:
    names = {name for run in runs for name in run.metrics if not name.startswith(CLOCK)}
    if any(run.objective for run in runs):
        names.discard("objective")  # the objective is also a metric under its own name
    return [name for name in sorted(names | set(metrics)) if not metrics or name in metrics]


def _run_differences(
    a: RunRecord, b: RunRecord, metrics: Sequence[str], cells: int | None
) -> list[str]:
    """Return a table of the differences of two runs that have an interval."""
    compared = list(_differences(a, b, metrics))
    rows = [
        [name, *_difference_texts(difference)] for name, difference in compared if difference.is_any
    ]
    if not rows:
        return []
    header = ["", *_DIFFERENCE]
    lines = terminal.table(header, rows, right=_COUNTS, cells=_indented(cells))
    lines.append(
        "; ".join(["[95 % interval]", *_legend([difference for _, difference in compared])])
    )
    equal = len(compared) - len(rows)
    return lines + ([f"{equal} more are equal on every level"] if equal else [])


def _differences(
    a: RunRecord, b: RunRecord, metrics: Sequence[str]
) -> Iterator[tuple[str, Difference]]:
    """Yield the differences of the rates that both have by level, and of the objective, by name."""
    first_outcomes, second_outcomes = a.outcomes, b.outcomes
    names = [name for name in first_outcomes if name in second_outcomes]
    objectives = {objective["name"] for run in (a, b) if (objective := run.objective)}
    names += objectives - {*names} if len(objectives) == 1 else []
    for name in names:
        if metrics and name not in metrics:
            continue
        comparison = paired.compare([a], [b], name)
        if isinstance(comparison, Difference):
            yield name, comparison
            continue
        first, second = (record_numbers.value(run, name) for run in (a, b))
        sides = (record_numbers.Side([run], name) for run in (a, b))
        bounds = record_numbers.bounds_of_difference(*sides)
        if first is not None and second is not None and bounds:
            yield name, Difference(second - first, bounds, f"unpaired: {comparison}")


def _legend(differences: Sequence[Difference | None]) -> list[str]:
    """Return what the columns of `_COUNTS` mean, those that are there."""
    shown = [difference for difference in differences if difference]
    texts = []
    if any(difference.first_only is not None for difference in shown):
        texts.append("only A, only B: levels on which that side succeeds more often")
    if any(difference.interval for difference in shown):
        texts.append("detectable: smallest difference found with 80 % power")
    return texts


def _difference_texts(difference: Difference | None) -> list[str]:
    """Return the cells of `_DIFFERENCE`."""
    if difference is None:
        return [""] * len(_DIFFERENCE)
    ends = _interval(difference.interval)
    verdict = ", undetermined" if ends and not difference.is_determined else ""
    counts = (difference.first_only, difference.second_only)
    return [
        f"{terminal.signed(difference.value)}{ends}{verdict}",
        *("" if count is None else str(count) for count in counts),
        *(
            "" if number is None else terminal.number(number, 2)
            for number in (difference.p_value, difference.detectable)
        ),
        difference.method,
    ]


@dataclass(frozen=True)
class _Matched:
    """Trials of two batches with the same flags.

    Attributes:
        point: Flags in which trials of either batch differ, without the seed.
        metric: The compared metric.
        first, second: Finished trials with its value, in the form of an objective; by seed.
        failed: Number of failed trials of each batch.
    """

    point: dict[str, Any]
    metric: str
    first: Sequence[tuple[RunRecord, dict[str, Any]]]
    second: Sequence[tuple[RunRecord, dict[str, Any]]]
    failed: tuple[int, int]

    @property
    def values(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The values of both in the form of objectives, by seed."""
        first, second = ([o for _, o in side] for side in (self.first, self.second))
        return first, second

    @property
    def is_paired(self) -> bool:
        """Whether both have the same seeds, each once."""
        first, second = ([run.seed for run, _ in side] for side in (self.first, self.second))
        return first == second and None not in first and len(set(first)) == len(first)

    @property
    def difference(self) -> Difference | None:
        """The difference of the means; None where one side has no value."""
        if not self.first or not self.second:
            return None
        runs = [[run for run, _ in side] for side in (self.first, self.second)]
        comparison = paired.compare(runs[0], runs[1], self.metric)
        if isinstance(comparison, Difference):
            return comparison
        first, second = self.values
        value = statistics.mean(_numbers(second)) - statistics.mean(_numbers(first))
        interval = interval_of_difference(first, second, paired=self.is_paired)
        is_rate = all(objective.get("kind") == "rate" for objective in first + second)
        why = f"unpaired: {comparison}" if is_rate else ""  # other metrics have no levels
        return Difference(value, interval, why)


def _matched(a: Side, b: Side, metrics: Sequence[str]) -> Iterator[_Matched]:
    """Yield the trials of two batches by flags and metric."""
    names = sorted({*groups.varying(a.trials), *groups.varying(b.trials)})
    points: dict[tuple[str, ...], tuple[list[RunRecord], list[RunRecord]]] = {}
    for index, side in enumerate((a, b)):
        for trial in side.trials:
            key = tuple(_exact(trial.flags.get(n)) for n in names)
            points.setdefault(key, ([], []))[index].append(trial)
    objectives = [o["name"] for trial in (*a.trials, *b.trials) if (o := trial.objective)]
    shown_metrics = list(metrics) or (
        [Counter(objectives).most_common(1)[0][0]]
        if names and objectives
        else dict.fromkeys([*objectives, *_metric_names(a.trials + b.trials, ())])
    )
    for key in sorted(points, key=lambda k: [_numeric_order(v) for v in k]):
        first, second = points[key]
        point = {name: (first or second)[0].flags.get(name) for name in names}
        failed = (sum(t.status == FAILED for t in first), sum(t.status == FAILED for t in second))
        for metric in shown_metrics:
            yield _Matched(point, metric, _scored(first, metric), _scored(second, metric), failed)


def _batch_metrics(a: Side, b: Side, metrics: Sequence[str], cells: int | None) -> list[str]:
    matched = [m for m in _matched(a, b, metrics) if m.first or m.second]
    names = list(matched[0].point) if matched else []
    texts = [_shown({_exact(m.point[name]) for m in matched}) for name in names]
    rows, differences, equal = [], [], 0
    for trials in matched:
        first, second = trials.values
        if repr(first) == repr(second) and trials.failed[0] == trials.failed[1]:
            equal += 1
            continue
        point = [text[_exact(v)] for text, v in zip(texts, trials.point.values(), strict=True)]
        differences.append(trials.difference)
        shown = [_over_seeds(first), _over_seeds(second), *_difference_texts(differences[-1])]
        rows.append([*point, trials.metric, *shown, *(str(n) if n else "" for n in trials.failed)])
    if not rows:
        return []
    header = [*names, "metric", "A", "B", *_DIFFERENCE, "failed A", "failed B"]
    lines = terminal.table(header, rows, cells=_indented(cells))
    legend = (
        "mean [95 % interval over seeds] (seeds); B − A per seed where both have equal seeds, "
        f"its interval from {MIN_SEEDS} seeds on"
    )
    lines.append("; ".join([legend, *_legend(differences)]))
    return lines + ([f"{equal} more are equal"] if equal else [])


def _scored(trials: Sequence[RunRecord], metric: str) -> list[tuple[RunRecord, dict[str, Any]]]:
    """Return the finished trials with their values in the form of objectives, by seed."""
    finished = []
    for trial in sorted(trials, key=lambda t: (t.seed or 0, groups.order(t))):
        own = trial.objective
        if own and own["name"] == metric:
            objective = own
        elif metric in trial.metrics:
            objective = {"name": metric, "value": trial.metrics[metric].last, "kind": "mean"}
        else:
            continue
        if trial.status == FINISHED and math.isfinite(objective["value"]):
            finished.append((trial, objective))
    return finished


def _over_seeds(side: Sequence[dict[str, Any]]) -> str:
    if not side:
        return _NONE
    mean = terminal.number(statistics.mean(_numbers(side)))
    return f"{mean}{_interval(statistics.bounds(side))} ({len(side)})"


def _numbers(side: Sequence[dict[str, Any]]) -> list[float]:
    return [objective["value"] for objective in side]


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else " [{}, {}]".format(*map(terminal.number, bounds))


def _indented(cells: int | None) -> int | None:
    return None if cells is None else max(20, cells - 2)
