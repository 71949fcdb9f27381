"""Runs grouped by equal flags, the best group first, and by setting: runs that differ only in their seed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.model import statistics, values
from runcatalog.model.run_record import FINISHED, NOT_OF_SETTING, RunRecord
from runcatalog.query.fields import suggestion

OPERATION = "operation"  # its place among flags
_SEED = re.compile(r"[ ,;]*\bseed[ =:]*(-?\d+)\b")


@dataclass(frozen=True)
class Group:
    """Trials that differ only in their seed.

    Attributes:
        point: Value by flag in which the groups differ.
        trials: All trials.
        objectives: Objectives of the finished trials.
    """

    point: dict[str, Any]
    trials: tuple[RunRecord, ...]
    objectives: tuple[dict[str, Any], ...]

    @property
    def value(self) -> float | None:
        """Mean of the objective; None unless all objectives are finite and there is at least one."""
        finite = [o["value"] for o in self.objectives if math.isfinite(o["value"])]
        return statistics.mean(finite) if finite and len(finite) == len(self.objectives) else None


def varying(runs: Sequence[RunRecord], *, lacking: bool = True) -> list[str]:
    """Return the names of the flags in which runs differ, without seeds and flags that change no result.

    Args:
        runs: Any runs.
        lacking: Whether a run without a flag differs from those that have it; else a flag that some runs lack, since
            their script did not have it yet, counts by the runs that have it.
    """
    flags = [run.comparable_flags for run in runs]
    names = sorted({name for each in flags for name in each} - NOT_OF_SETTING)
    columns = {n: [each.get(n) for each in flags if lacking or n in each] for n in names}
    return [name for name, column in columns.items() if _differs(column)]


def groups(trials: Sequence[RunRecord], flags: Sequence[str] | None = None) -> list[Group]:
    """Group trials by flags; the best group first, groups without a value last.

    Args:
        trials: Any runs.
        flags: Flags to group by, and `operation`; by default all flags in which the trials differ, except the seed.
    """
    names = varying(trials) if flags is None else list(flags)
    by_point: dict[tuple[Any, ...], list[RunRecord]] = {}
    for trial in sorted(trials, key=order):
        by_point.setdefault(tuple(_key(_property(trial, n)) for n in names), []).append(trial)
    grouped = []
    for members in by_point.values():
        objectives = tuple(m.objective for m in members if m.status == FINISHED and m.objective)
        point = {n: _property(members[0], n) for n in names}
        grouped.append(Group(point, tuple(members), objectives))
    sign = sort_sign(trials)

    def rank(group: Group) -> tuple[bool, float, list[tuple[int, float, str]]]:
        value = group.value
        point = [values.sort_key(v) for v in group.point.values()]
        return value is None, sign * (value or 0.0), point

    return sorted(grouped, key=rank)


def by_setting(
    runs: Iterable[RunRecord],
    known: Mapping[str, RunRecord] | None = None,
    pooled: Collection[str] = (),
    *,
    labels: bool = True,
) -> list[list[RunRecord]]:
    """Group runs that differ only in their seed; members by start.

    Args:
        runs: The runs.
        known: Records by id. With them, labels and parents separate settings too, unless these differ only in seeds.
        pooled: Further flags whose values do not separate settings.
        labels: Whether labels may separate settings.
    """

    def setting(run: RunRecord) -> tuple[object, ...]:
        flags = {name: value for name, value in compared(run).items() if name not in pooled}
        return flags, run.reported_by, label(run) if labels and known is not None else ""

    by_origin: dict[str, list[RunRecord]] = {}
    for run in runs:
        relative = origins(run, known, of_seed=True) if known else []
        by_origin.setdefault(repr((setting(run), relative)), []).append(run)
    # Runs with the same parent belong together too, although the parent has the same seed as only some of them.
    merged: dict[str, list[RunRecord]] = {}
    for key, members in by_origin.items():
        absolute = {repr(origins(m, known)) for m in members} if known else set()
        if len(absolute) == 1:
            key = repr((setting(members[0]), absolute))
        merged.setdefault(key, []).extend(members)
    return [sorted(members, key=order) for members in merged.values()]


def label(record: RunRecord) -> str:
    """Return the label without the seed, in which runs of a setting differ."""
    own = str(record.seed)
    return _SEED.sub(lambda m: "" if m[1] == own else m[0], record.label).strip()


def repetitions(runs: Iterable[RunRecord], known: Mapping[str, RunRecord]) -> dict[str, str]:
    """Return a key by run, equal for runs that agree in seed, flags and origin: repetitions, no independent samples.

    Runs without a seed agree where all that finished have the same objective, as those of a deterministic script have:
    they say nothing of other seeds.

    Args:
        runs: The runs.
        known: Records by id, for the settings of the runs that they started from.
    """
    keys: dict[str, str] = {}
    objectives: dict[str, set[str]] = {}
    runs = list(runs)
    for run in runs:
        key = keys[run.run] = repr((run.seed, compared(run), origins(run, known, of_seed=True)))
        if run.status == FINISHED:
            objectives.setdefault(key, set()).add(repr(run.objective))
    for run in runs:
        is_known = run.status == FINISHED and run.objective is not None
        if run.seed is None and not (is_known and len(objectives[keys[run.run]]) == 1):
            keys[run.run] = run.run
    return keys


def without_repetitions(
    runs: Sequence[RunRecord], known: Mapping[str, RunRecord]
) -> list[RunRecord]:
    """Return one run of those that are repetitions of one another: the newest finished, else the newest; by start.

    Args:
        runs: The runs.
        known: Records by id, as for :func:`repetitions`.
    """
    kept: dict[str, RunRecord] = {}
    keys = repetitions(runs, known)
    for run in sorted(runs, key=order):
        before = kept.get(keys[run.run])
        if before is None or run.status == FINISHED or before.status != FINISHED:
            kept[keys[run.run]] = run
    return sorted(kept.values(), key=order)


def over_seeds(scored: Iterable[tuple[dict[str, Any], RunRecord]]) -> list[dict[str, Any]]:
    """Return an objective per seed, the mean over its runs, which are not independent samples.

    Args:
        scored: Runs with their values in the form of objectives; a run without a seed counts as a seed of its own.
    """
    by_seed: dict[object, list[dict[str, Any]]] = {}
    for objective, run in scored:
        by_seed.setdefault(run.run if run.seed is None else run.seed, []).append(objective)
    return [_mean(same_seed) for same_seed in by_seed.values()]


def _mean(objectives: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the objectives of a seed; the result is a counted rate if all of them are."""
    if len(objectives) == 1:
        return objectives[0]
    counts = [statistics.counted(objective) for objective in objectives]
    value = statistics.mean([objective["value"] for objective in objectives])
    counted = {"value": value, "kind": "rate", "count": sum(counts)}
    # What belongs to a single run says nothing of the mean.
    shared = {n: v for n, v in objectives[0].items() if n not in ("outcomes", "interval", "count")}
    return shared | (counted if all(counts) else {"value": value, "kind": "mean"})


def origins(
    run: RunRecord, known: Mapping[str, RunRecord], *, of_seed: bool = False
) -> list[object]:
    """Return what a run started from: operation, flags, seed and parents of each parent, equal for a rerun of it.

    A parent that is not known, or has neither flags nor a seed, as a batch, is identified by its id.

    Args:
        run: The run.
        known: Records by id.
        of_seed: Of a parent with the run's seed return operation and flags alone, as of those of other seeds.
    """

    def identity(parent: str) -> object:
        record = known.get(parent)
        if record is None or not (record.flags or record.seed is not None):
            return parent
        setting = record.operation, compared(record), record.reported_by
        if of_seed and record.seed == run.seed:
            return setting
        return *setting, record.seed, record.parents

    return [identity(parent) for parent in run.parents]


def compared(run: RunRecord) -> dict[str, values.Scalar]:
    """Return the flags that may change a run's result, without its seed, in order of their names."""
    return {n: v for n, v in sorted(run.comparable_flags.items()) if n not in NOT_OF_SETTING}


def name_of(run: RunRecord, names: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first name whose flags have their values in the run; "" without one.

    Args:
        run: The run.
        names: Values by flag as in :func:`has`, by the name of the setting that they make.
    """
    return next((name for name, flags in names.items() if has(run, flags)), "")


def has(run: RunRecord, flags: Mapping[str, Any]) -> bool:
    """Return whether flags of a run, or its `operation`, have these values; None for a flag that the run lacks."""
    return all(_property(run, flag) == value for flag, value in flags.items())


def order(record: RunRecord) -> tuple[int, int, str]:
    """Sort key: start time, then seed, then id."""
    return record.started or 0, record.seed or 0, record.run


def sort_sign(trials: Sequence[RunRecord]) -> int:
    """Return the sign with which ascending order is best first: -1 where larger is better, else 1."""
    goals = [o.get("goal", "max") for t in trials if (o := t.objective)]
    return 1 if goals and goals[0] == "min" else -1


def flag_of(run: RunRecord, flag: str, by_id: Mapping[str, RunRecord]) -> values.Scalar:
    """Return the value of a flag of a run, else of the first run that it started from that has it; None without one."""
    origins = (run, *(by_id[parent] for parent in run.parents if parent in by_id))
    found = (origin.comparable_flags for origin in origins)
    return next((flags[flag] for flags in found if flag in flags), None)


def by_flag(
    runs: Iterable[RunRecord], flag: str, by_id: Mapping[str, RunRecord]
) -> dict[str, list[RunRecord]]:
    """Return the runs by their value of :func:`flag_of` as text, in the order of their first ones.

    Raises:
        LookupError: A run has no such flag.
    """
    grouped: dict[str, list[RunRecord]] = {}
    for run in runs:
        value = flag_of(run, flag, by_id)
        if value is None:
            raise LookupError(f"run {run.id8} has no flag {flag!r}{suggestion(flag, run.flags)}")
        grouped.setdefault(values.flag_text(value), []).append(run)
    return grouped


def _property(run: RunRecord, name: str) -> values.Scalar:
    """Return the value of a flag of a run, None without it; the run's operation for `operation`."""
    flags = run.comparable_flags
    return run.operation if name == OPERATION and name not in flags else flags.get(name)


def _differs(column: Sequence[values.Scalar]) -> bool:
    """Return whether values are not all the same; 1, 1.0 and True differ."""
    first = column[0]
    return any(v is not first and (type(v) is not type(first) or v != first) for v in column)


def _key(value: values.Scalar) -> tuple[type, values.Scalar]:
    """Return a flag's value with its type, so that 1, 1.0 and True differ."""
    return type(value), value
