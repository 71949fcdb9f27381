"""What a batch came to: its trials in groups of equal flags, or as a search over a space."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runcatalog.analysis import sentences
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RUNNING, RunRecord
from runcatalog.text import markdown

# Flags that say how or from where, not what: no group differs by them.
_NOT_COMPARED = {"seed", "resume", "save-name", "save_name"}
MAX_GROUPS = 8
# A cluster: trials of the best quarter, chained by steps of at most this share of the (normalised)
# range, in root mean square over the parameters. 0.2 joins what a person would call one spot.
QUARTILE = 0.25
LINK = 0.2


@dataclass(frozen=True)
class Group:
    """Trials that differ in their seed alone.

    Attributes:
        point: The flags in which it differs from other groups.
        trials: All of them.
        objectives: Objectives of those that finished.
    """

    point: dict[str, Any]
    trials: tuple[RunRecord, ...]
    objectives: tuple[dict[str, Any], ...]

    @property
    def value(self) -> float | None:
        """Mean of the objective; None if nothing finished with a finite one."""
        finite = [o["value"] for o in self.objectives if math.isfinite(o["value"])]
        return statistics.mean(finite) if finite and len(finite) == len(self.objectives) else None


def varying(trials: Sequence[RunRecord]) -> list[str]:
    """Names of the flags in which trials differ, the seed apart."""
    names = sorted({name for trial in trials for name in trial.flags} - _NOT_COMPARED)
    return [n for n in names if len({_key(t.flags.get(n)) for t in trials}) > 1]


def groups(trials: Sequence[RunRecord], flags: Sequence[str] | None = None) -> list[Group]:
    """Returns trials grouped by flags, the best group first, those without a value last.

    Args:
        trials: Any runs.
        flags: Flags to group by; by default all in which they differ, the seed apart.
    """
    names = varying(trials) if flags is None else list(flags)
    by_point: dict[tuple[str, ...], list[RunRecord]] = {}
    for trial in sorted(trials, key=order):
        by_point.setdefault(tuple(_key(trial.flags.get(n)) for n in names), []).append(trial)
    made = []
    for members in by_point.values():
        told = tuple(m.objective for m in members if m.status == FINISHED and m.objective)
        made.append(Group({n: members[0].flags.get(n) for n in names}, tuple(members), told))
    sign = _sign(trials)

    def rank(group: Group) -> tuple[bool, float, list[tuple[int, float, str]]]:
        value = group.value
        point = [_sortable(v) for v in group.point.values()]
        return value is None, sign * (value or 0.0), point

    return sorted(made, key=rank)


def order(record: RunRecord) -> tuple[int, int, str]:
    """Sort key: when it started, then seed, then id."""
    return record.started or 0, record.seed or 0, record.run


def summary(batch: RunRecord | None, trials: Sequence[RunRecord]) -> str:
    """Returns the result cell of a batch, as Markdown."""
    if not trials:
        return sentences.sentence(batch) if batch else "no trials"
    shown = (
        summarise_search([as_searched(batch, t) for t in trials], space_of(batch))
        if is_search(batch, trials)
        else grid_summary(trials)
    )
    parts = [shown]
    variants = {sentences.variant_text(t) for t in trials if t.status == FINISHED}
    if len(variants) == 1 and (only := variants.pop()):
        parts.append(only)
    if running := sum(t.status == RUNNING for t in trials):
        parts.append(f"{running} of {len(trials)} still running")
    if batch is not None:
        if batch.status == KILLED:
            parts.append(f"the batch was {sentences.killed(batch)}")
        elif batch.status == FAILED and any(t.status == FINISHED for t in trials):
            parts.append(f"the batch {sentences.failure(batch)}")
        if batch.reported_by:
            parts.append(f"imported: {markdown.escape(batch.reported_by)}")
    return "; ".join(parts)


def is_search(batch: RunRecord | None, trials: Sequence[RunRecord]) -> bool:
    """Whether an optimizer chose the trials' points."""
    method = ((batch.result if batch else None) or {}).get("method")
    return method not in (None, "", "grid") or any(_origin(t) for t in trials)


def grid_summary(trials: Sequence[RunRecord]) -> str:
    """Returns "best **5e-3**: 99 % [96, 100] opening rate …; 1e-2: …"."""
    ranked = groups(trials)
    if not ranked[0].point:  # seeds alone
        return over_seeds(ranked[0])
    names = list(ranked[0].point)
    good = [g for g in ranked if g.value is not None]
    parts = []
    for group in good[:MAX_GROUPS]:
        point = point_text(group.point, names)
        if group is good[0]:
            first = group.objectives[0]
            what = sentences.objective_text(first, group.value or 0.0)
            tail = _common_after(group.objectives) + sentences.interval(group.objectives)
            parts.append(f"best **{point}**: {what}{tail}")
        else:
            shown = sentences.value_text(group.objectives[0], group.value or 0.0)
            parts.append(f"{point}: {shown}{sentences.interval(group.objectives)}")
    if len(good) > MAX_GROUPS:
        parts.append(f"and {len(good) - MAX_GROUPS} more points")
    if not good:
        parts.append("no trial finished with a result")
    return "; ".join(parts + _failures(ranked, names))


def over_seeds(group: Group) -> str:
    """Returns mean and interval of runs that differ in their seed alone."""
    failed = _failures([group], [])
    if group.value is None:
        told = [t.result for t in group.trials if t.status == FINISHED]
        return "; ".join(["finished, with no result"] * bool(told) + failed) or "running"
    first = group.objectives[0]
    shown = sentences.objective_text(first, group.value)
    told = len(group.objectives)
    seeds = {t.seed for t in group.trials if t.status == FINISHED and t.objective}
    of = f", mean of {told} {'seeds' if len(seeds) == told else 'runs'}" if told > 1 else ""
    tail = f"{_common_after(group.objectives)}{sentences.interval(group.objectives)}{of}"
    return "; ".join([shown + tail + sentences.also(group.objectives), *failed])


def _common_after(objectives: Sequence[dict[str, Any]]) -> str:
    """Returns " after 20 updates", or " after 18–24 updates" where the runs differ."""
    ats = sorted({o["at"] for o in objectives if isinstance(o.get("at"), int | float)})
    if len(ats) < 2:
        return sentences.after(objectives[0])
    last = markdown.count(ats[-1], str(objectives[0].get("axis") or "step"))
    return f" after {markdown.amount(ats[0])}–{last}"


def _failures(ranked: Sequence[Group], names: Sequence[str]) -> list[str]:
    """Returns "5e-3 failed 1 of 3: gradient explosion at update 12" for each group that lost some."""
    parts = []
    for group in ranked:
        lost = [t for t in group.trials if t.status in (FAILED, KILLED)]
        if not lost:
            continue
        why = _counted(Counter(sentences.failure_kind(t) for t in lost))
        if len(lost) == 1:
            why = sentences.failure_kind(lost[0]) + sentences.failure_place(lost[0])
        who = f"{point_text(group.point, names)} " if group.point else ""
        parts.append(f"{who}failed {len(lost)} of {len(group.trials)}: {why}")
    if len(parts) > MAX_GROUPS:
        parts = [*parts[:MAX_GROUPS], f"and {len(parts) - MAX_GROUPS} more points with failures"]
    return parts


def space_of(batch: RunRecord | None) -> Any:
    """What a search looked through, as its record tells it: range by parameter; None if it does not."""
    return ((batch.result if batch else None) or {}).get("space")


def summarise_search(trials: Sequence[RunRecord], space: Any = None) -> str:
    """Returns best point, best cluster, what matters, failures by kind and origins of a search."""
    from runcatalog.analysis import search_summary  # which builds on this module

    done = [t for t in trials if t.status == FINISHED and t.objective]
    done = [t for t in done if t.objective and math.isfinite(t.objective["value"])]
    sign, names = _sign(trials), varying(trials)
    parts = []
    if done:
        ranked = sorted(done, key=lambda t: (sign * _value(t), order(t)))
        best = ranked[0]
        objective = best.objective or {}
        what = sentences.objective_text(objective, _value(best))
        point = point_text({n: best.flags.get(n) for n in names}, names, named=True)
        what += sentences.own_interval(objective) + _also(objective)
        parts.append(f"best{f' **{point}**' if point else ''}: {what} ({best.id8})")
        if cluster := best_cluster(ranked, names):
            parts.append(_cluster_text(cluster, names, len(done)))
        parts += [search_summary.edges(best, space), search_summary.matters(trials)]
    else:
        parts.append("no trial finished with a result")
    lost = [t for t in trials if t.status in (FAILED, KILLED)]
    if lost:
        kinds = Counter(sentences.failure_kind(t) + sentences.failure_place(t) for t in lost)
        if len(kinds) > 3:
            kinds = Counter(sentences.failure_kind(t) for t in lost)
        parts.append(f"{len(lost)} of {len(trials)} trials failed: {_counted(kinds)}")
    parts.append(_origins(trials))
    return "; ".join(part for part in parts if part)


def as_searched(batch: RunRecord | None, trial: RunRecord) -> RunRecord:
    """A trial with what the search optimised as its objective, and its own objective beside it.

    A search may look at another metric than the one that its trials are for: what is learned early says
    more after a short trial than a rate that is still 0.
    """
    told = ((batch.result if batch else None) or {}).get("optimised")
    name = told.get("name") if isinstance(told, dict) else None
    own = trial.objective
    if not name or name not in trial.metrics or (own or {}).get("name") == name:
        return trial
    value = values.json_number(trial.metrics[name].last)
    objective = {"name": name, "value": value, "kind": "mean", "goal": told.get("goal", "max")}
    if own is not None:
        objective["also"] = own
    return replace(trial, result={**(trial.result or {}), "objective": objective})


def _also(objective: dict[str, Any]) -> str:
    """Returns ", opening rate 101 %" where the objective names a second metric."""
    also = objective.get("also")
    try:
        told = {**also, "value": values.number(also["value"])}
        return f", {sentences.objective_text(told, told['value'])}"
    except (TypeError, KeyError, ValueError):
        return ""


def best_cluster(ranked: Sequence[RunRecord], names: Sequence[str]) -> list[RunRecord]:
    """Returns the cluster of good trials with the best mean; none if no two are close.

    The best quarter of the trials (at least 3 of them) is grouped by single linkage in the
    normalised space (:func:`runcatalog.model.statistics.normalised`, ranges over all trials); neighbours are at most
    LINK apart in root mean square over the parameters.

    Args:
        ranked: Finished trials, best first.
        names: Flags that span the space.
    """
    if len(ranked) < 2 or not names:
        return []
    count = min(len(ranked), max(3, math.ceil(QUARTILE * len(ranked))))
    points = statistics.normalised([[t.flags.get(n) for t in ranked] for n in names])[:count]
    found = statistics.single_linkage(points, LINK * math.sqrt(len(names)))
    clusters = [[ranked[i] for i in group] for group in found if len(group) > 1]
    sign = _sign(ranked)
    return min(
        clusters,
        key=lambda c: (sign * statistics.mean([_value(t) for t in c]), -len(c)),
        default=[],
    )


def _cluster_text(cluster: Sequence[RunRecord], names: Sequence[str], total: int) -> str:
    spans = []
    for name in names:
        column = [t.flags.get(name) for t in cluster]
        shown = list(dict.fromkeys(markdown.flag_value(v) for v in sorted(column, key=_sortable)))
        span = shown[0] if len(shown) == 1 else f"{shown[0]}–{shown[-1]}"
        if len(shown) > 1 and any(isinstance(v, str) for v in column):
            span = " or ".join(shown)
        spans.append(f"{markdown.escape(name)}={span}")
    objective = cluster[0].objective or {}
    low, high = sorted((_value(cluster[0]), _value(cluster[-1])))
    shown = [sentences.value_text(objective, v) for v in (low, high)]
    reach = shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
    return f"best cluster ({len(cluster)} of {total}): {', '.join(spans)}: {reach}"


def _origins(trials: Sequence[RunRecord]) -> str:
    kinds = Counter(_origin(t) for t in trials if _origin(t))
    if not kinds:
        return ""
    first = ["initial"] if "initial" in kinds else []
    rest = sorted(kind for kind in kinds if kind != "initial")
    return ", ".join(
        f"{kinds[kind]} {'initial' if kind == 'initial' else f'proposed by {markdown.escape(kind)}'}"
        for kind in first + rest
    )


def _origin(trial: RunRecord) -> str:
    search = (trial.result or {}).get("search")
    return str(search.get("kind") or "") if isinstance(search, dict) else ""


def point_text(point: dict[str, Any], names: Sequence[str], *, named: bool = False) -> str:
    """Returns "5e-3", or "lr=5e-3, clip=0.3" where more than one flag varies."""
    if len(names) == 1 and not named:
        return markdown.flag_value(point[names[0]])
    return ", ".join(f"{markdown.escape(n)}={markdown.flag_value(point[n])}" for n in names)


def _counted(kinds: Counter[str]) -> str:
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == 1:
        return ordered[0][0]
    shown = [f"{count} × {kind}" for kind, count in ordered[:4]]
    return ", ".join(shown + ["…"] * (len(ordered) > 4))


def _sign(trials: Sequence[RunRecord]) -> int:
    """-1 to sort the best first where large is good, else 1."""
    goals = [o.get("goal", "max") for t in trials if (o := t.objective)]
    return 1 if goals and goals[0] == "min" else -1


def _value(trial: RunRecord) -> float:
    return (trial.objective or {})["value"]


def _key(value: Any) -> str:
    return values.flag_text(value)


def _sortable(value: Any) -> tuple[int, float, str]:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if numeric else (1, 0.0, str(value))
