"""What differs between two runs or two batches: flags, metrics, code, machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog.analysis import groups
from runcatalog.analysis.commits import between
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FAILED, FINISHED, RunRecord
from runcatalog.query.fields import close_matches
from runcatalog.text import terminal

CLOCK = "time/"  # metrics that read the clock; they differ between equal runs
_FACTS = ("study", "reason", "reported_by")  # operation, label and status are said above
VALUES = 8  # of a flag over a batch that are named
_MACHINE = ("machine", "gpu", "host_cpu")
_NONE = "–"


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        head: The run or the batch.
        trials: A batch's trials, with their metrics; empty for a run.
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
    """Returns what differs, as lines; sections without a difference are left out.

    Args:
        a: One run or batch.
        b: Another.
        root: The project, in whose repository the commits are looked for.
        metrics: Metrics to show; by default all in which runs differ, of batches the objective (all, if
            their trials differ in their seed alone).
        cells: Width of the tables; None for any.

    Raises:
        CatalogError: One is a run and the other a batch, or a metric is unknown.
    """
    if bool(a.trials) != bool(b.trials):
        run, batch = (b, a) if a.trials else (a, b)
        told = f"{batch.head.id8} is a batch of {len(batch.trials)} runs, {run.head.id8} a run"
        raise CatalogError(f"{told}: two runs or two batches are compared")
    _check_known(metrics, (*a.runs, *b.runs))
    sections = {
        "facts": _pairs(_facts(a.head), _facts(b.head), cells),
        "flags": _pairs(*_flags(a.runs, b.runs), cells),
        "metrics": (_batch_metrics if a.trials else _run_metrics)(a, b, metrics, cells),
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


_TITLES = ("run", "operation", "label", "status", "started (UTC)", "took")


def _title(name: str, side: Side) -> list[str]:
    head = side.head
    operation = head.operation + (f" ({len(side.trials)} runs)" if side.trials else "")
    took = terminal.duration(head.wall_seconds)
    return [name, head.id8, operation, head.label, head.status, terminal.when(head.started), took]


def _pairs(a: Mapping[str, str], b: Mapping[str, str], cells: int | None) -> list[str]:
    """Lines of a table of what two mappings have different."""
    names = sorted({*a, *b})
    rows = [[n, a.get(n, _NONE), b.get(n, _NONE)] for n in names if a.get(n) != b.get(n)]
    return terminal.table(["", "A", "B"], rows, cells=_indented(cells)) if rows else []


def _facts(record: RunRecord) -> dict[str, str]:
    found = {name: str(getattr(record, name)) for name in _FACTS if getattr(record, name)}
    if record.parents:
        found["from"] = ", ".join(parent[:8] for parent in record.parents)
    return found


def _flags(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[dict[str, str]]:
    """The values over the runs of each side of the flags that differ between the sides."""
    found: list[dict[str, str]] = [{}, {}]
    for name in sorted({name for run in (*a, *b) for name in run.flags} - {"resume"}):
        held = [
            _distinct(_exact(run.flags[name]) if name in run.flags else _NONE for run in runs)
            for runs in (a, b)
        ]
        if held[0] == held[1]:
            continue
        shown = _shown({*held[0], *held[1]})
        for side, exact in zip(found, held, strict=True):
            texts = [shown[each] for each in exact]
            side[name] = ", ".join(texts)
            if len(texts) > VALUES:
                side[name] = f"{texts[0]} … {texts[-1]} ({len(texts)} values)"
        if found[0][name] == found[1][name]:  # the many values differ in between
            only = [[shown[e] for e in held[i] if e not in held[1 - i]] for i in (0, 1)]
            for side, texts in zip(found, only, strict=True):
                side[name] += f", of these here alone: {texts[0]}" if texts else ""
    return found


def _exact(value: values.Scalar) -> str:
    """A flag's value with all of its digits; 1 and 1.0 are one."""
    whole = isinstance(value, float) and value.is_integer()
    return values.flag_text(int(value) if whole else value)  # type: ignore[arg-type]


def _shown(exact: Iterable[str]) -> dict[str, str]:
    """How exact values of one flag are shown: with few digits, unless two would look the same."""
    short = {
        each: each if each == _NONE else terminal.value(values.parse_flag(each)) for each in exact
    }
    seen = Counter(short.values())
    return {e: s if seen[s] == 1 else terminal.clean(e) for e, s in short.items()}


def _distinct(held: Iterable[str]) -> list[str]:
    return sorted(set(held), key=_by_value)


def _by_value(shown: str) -> tuple[bool, float, str]:
    value = values.parse_flag(shown)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return not numeric, float(value) if numeric else 0.0, shown  # type: ignore[arg-type]


def _common(runs: Sequence[RunRecord], name: str) -> dict[str, str]:
    """Entries of a field that is a mapping, over runs."""
    keys = sorted({key for run in runs for key in getattr(run, name)})
    return {k: ", ".join(_distinct(getattr(r, name).get(k, _NONE) for r in runs)) for k in keys}


def _machine(runs: Sequence[RunRecord]) -> dict[str, str]:
    found = {name: ", ".join(_distinct(getattr(run, name) for run in runs)) for name in _MACHINE}
    return {name: shown for name, shown in found.items() if shown}


def _clock(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Mean wall time and speed of runs."""
    found = {}
    walls = [run.wall_seconds for run in runs if run.wall_seconds is not None]
    if walls:
        found["wall time" + (" (mean)" if len(runs) > 1 else "")] = terminal.duration(
            statistics.mean(walls)
        )
    for name in sorted({name for run in runs for name in run.metrics if name.startswith(CLOCK)}):
        last = [run.metrics[name].last for run in runs if name in run.metrics]
        found[name.removeprefix(CLOCK)] = terminal.number(statistics.mean(last))
    return found


def _code(a: Side, b: Side, root: Path) -> list[str]:
    first, second = _states(a.runs), _states(b.runs)
    if first == second:
        return []
    told = [_state_text(side) for side in (first, second)]
    lines = [f"A: {told[0]}", f"B: {told[1]}"]
    commits = [side[-1][0] if side else "" for side in (first, second)]
    if all(commits) and commits[0] != commits[1]:
        lines += between(root, *commits)
    return lines


def _states(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Commit and dirty digest of runs, each once, the latest last."""
    ordered = sorted(runs, key=groups.order)
    return list(dict.fromkeys((run.commit, run.dirty) for run in ordered if run.commit))


def _state_text(states: Sequence[tuple[str, str]]) -> str:
    shown = [
        f"{commit[:12]}{f' with changes {dirty}' if dirty else ''}" for commit, dirty in states
    ]
    return ", ".join(shown) or "no commit was recorded"


def _check_known(metrics: Sequence[str], runs: Sequence[RunRecord]) -> None:
    known = {name for run in runs for name in run.metrics}
    known |= {run.objective["name"] for run in runs if run.objective}
    for name in metrics:
        if name not in known:
            hint = "".join(f", did you mean {each}?" for each in close_matches(name, known)[:1])
            raise CatalogError(f"--metric {name}: neither has it{hint}")


def _run_metrics(a: Side, b: Side, metrics: Sequence[str], cells: int | None) -> list[str]:
    rows = _objective_rows(a.head, b.head, metrics)
    equal = on_the_way = 0
    for name in _named((a.head, b.head), metrics):
        one, other = (side.head.metrics.get(name) for side in (a, b))
        last = _three(one and one.last, other and other.last)
        best = _three(one and one.best, other and other.best)
        if repr(one) == repr(other):  # NaN is equal to itself here
            equal += 1
        elif one and other and repr((one.last, one.best)) == repr((other.last, other.best)):
            on_the_way += 1
        else:
            rows.append([name, *last, *best])
    header = ["", "last A", "last B", "B − A", "best A", "best B", "B − A "]
    lines = terminal.table(header, rows, right=header[1:], cells=_indented(cells)) if rows else []
    if on_the_way:
        lines.append(f"{on_the_way} differ only on the way, not in their last and best value")
    if lines and equal:
        lines.append(f"{equal} more are equal at every step")
    elif not lines and not metrics:
        # A record has a hundred points of a curve, the digest knows all.
        told = [side.head.digest for side in (a, b)]
        names = [
            n for n in ("metrics", "weights") if all(told) and told[0].get(n) != told[1].get(n)
        ]
        lines = [f"the digests of {' and '.join(names)} differ"] if names else []
    return lines


def _objective_rows(a: RunRecord, b: RunRecord, metrics: Sequence[str]) -> list[list[str]]:
    objectives = a.objective, b.objective
    rows = []
    for name in dict.fromkeys(o["name"] for o in objectives if o):
        told = [o["value"] if o and o["name"] == name else None for o in objectives]
        if repr(told[0]) != repr(told[1]) and (not metrics or name in metrics):
            rows.append([f"{name} (objective)", *_three(*told), "", "", ""])
    return rows


def _three(a: float | None, b: float | None) -> list[str]:
    shown = [_NONE if value is None else terminal.number(value) for value in (a, b)]
    both = a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    return [*shown, terminal.signed(b - a) if both else ""]


def _named(runs: Iterable[RunRecord], metrics: Sequence[str]) -> list[str]:
    found = {name for run in runs for name in run.metrics if not name.startswith(CLOCK)}
    if any(run.objective for run in runs):
        found.discard("objective")  # the same under its own name
    return [name for name in sorted(found | set(metrics)) if not metrics or name in metrics]


def _batch_metrics(a: Side, b: Side, metrics: Sequence[str], cells: int | None) -> list[str]:
    names = sorted({*groups.varying(a.trials), *groups.varying(b.trials)})
    points: dict[tuple[str, ...], tuple[list[RunRecord], list[RunRecord]]] = {}
    for index, side in enumerate((a, b)):
        for trial in side.trials:
            key = tuple(_exact(trial.flags.get(n)) for n in names)
            points.setdefault(key, ([], []))[index].append(trial)
    objectives = [o["name"] for trial in (*a.trials, *b.trials) if (o := trial.objective)]
    wanted = list(metrics) or (
        [max(set(objectives), key=objectives.count)]
        if names and objectives
        else _named(a.trials + b.trials, ())
    )
    texts = [_shown({key[i] for key in points}) for i in range(len(names))]
    rows, equal = [], 0
    for key in sorted(points, key=lambda k: [_by_value(v) for v in k]):
        for metric in wanted:
            one, other = (_told(trials, metric) for trials in points[key])
            if not one and not other:
                continue
            lost = [sum(t.status == FAILED for t in trials) for trials in points[key]]
            if repr(one) == repr(other) and lost[0] == lost[1]:
                equal += 1
                continue
            shown = [_over_seeds(one), _over_seeds(other), _difference(one, other)]
            point = [text[value] for text, value in zip(texts, key, strict=True)]
            rows.append([*point, metric, *shown, *(str(n) if n else "" for n in lost)])
    if not rows:
        return []
    header = [*names, "metric", "A", "B", "B − A", "failed A", "failed B"]
    lines = terminal.table(header, rows, cells=_indented(cells))
    lines.append("mean [95 % interval over seeds] (seeds); B − A by seed where both have the same")
    return lines + ([f"{equal} more are equal"] if equal else [])


def _told(trials: Sequence[RunRecord], metric: str) -> list[tuple[int | None, dict[str, Any]]]:
    """(seed, value in the form of an objective) of the trials that finished, by seed."""
    found = []
    for trial in sorted(trials, key=lambda t: (t.seed or 0, groups.order(t))):
        own = trial.objective
        if own and own["name"] == metric:
            told = own
        elif metric in trial.metrics:
            told = {"name": metric, "value": trial.metrics[metric].last, "kind": "mean"}
        else:
            continue
        if trial.status == FINISHED and math.isfinite(told["value"]):
            found.append((trial.seed, told))
    return found


def _over_seeds(told: Sequence[tuple[int | None, dict[str, Any]]]) -> str:
    if not told:
        return _NONE
    mean = terminal.number(statistics.mean([each["value"] for _, each in told]))
    return f"{mean}{_interval(statistics.bounds([each for _, each in told]))} ({len(told)})"


def _difference(
    a: Sequence[tuple[int | None, dict[str, Any]]], b: Sequence[tuple[int | None, dict[str, Any]]]
) -> str:
    if not a or not b:
        return ""
    one, other = ([each["value"] for _, each in side] for side in (a, b))
    mean = terminal.signed(statistics.mean(other) - statistics.mean(one))
    return f"{mean}{_interval(difference_bounds(a, b))}"


def difference_bounds(
    a: Sequence[tuple[int | None, dict[str, Any]]], b: Sequence[tuple[int | None, dict[str, Any]]]
) -> tuple[float, float] | None:
    """Returns the 95 % bootstrap interval of the difference of two means; None for single runs.

    Where both have the same seeds, the differences by seed are resampled, else each side on its own.

    Args:
        a: (seed, objective) of each run of one side, by seed.
        b: The same of the other.
    """
    one, other = ([each["value"] for _, each in side] for side in (a, b))
    if len(one) < 2 or len(other) < 2:
        return None
    seeds = [[seed for seed, _ in side] for side in (a, b)]
    if seeds[0] == seeds[1] and None not in seeds[0] and len(set(seeds[0])) == len(one):
        return statistics.bootstrap([y - x for x, y in zip(one, other, strict=True)])
    return statistics.bootstrap_difference(one, other)


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else " [{}, {}]".format(*map(terminal.number, bounds))


def _indented(cells: int | None) -> int | None:
    return None if cells is None else max(20, cells - 2)
