"""Result cells of batches: trials in groups of equal flags, or a search over a space, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from runcatalog.analysis import differences, groups, searches
from runcatalog.analysis.groups import Group
from runcatalog.analysis.searches import Comparison, Share
from runcatalog.model import values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RUNNING, RunRecord
from runcatalog.pages.tables import cells
from runcatalog.text import markdown, sentences

MAX_GROUPS = 8


def summary(batch: RunRecord | None, trials: Sequence[RunRecord]) -> str:
    """Return the result cell of a batch; of a run without trials, or a batch that started none, its own sentence."""
    if not trials:
        return sentences.sentence(batch) if batch else "no trials"
    is_search = searches.is_search(batch, trials)
    parts = [search_summary(batch, trials) if is_search else grid_summary(trials)]
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


def grid_summary(trials: Sequence[RunRecord]) -> str:
    """Return the groups of a grid, best first: "best **5e-3**: 99 % [96, 100] opening rate …; 1e-2: …".

    As in the matrix of a sweep, the first one is called best only where it is distinguishable from all others.
    """
    ranked = groups.groups(trials)
    if not ranked[0].point:  # seeds alone
        return over_seeds(ranked[0])
    names = list(ranked[0].point)
    good = [g for g in ranked if g.value is not None]
    kinds = {str(group.objectives[0]["name"]) for group in good}
    has_first = len(good) > 1 and good[0].value != good[1].value and len(kinds) == 1
    has_best = has_first and not differences.best([group.objectives for group in good])[1]
    parts = []
    for group in good[:MAX_GROUPS]:
        point = sentences.point_text(group.point, names)
        if group is good[0] or len(kinds) > 1:
            first = group.objectives[0]
            shown = sentences.objective_text(first, group.value or 0.0)
            tail = _after(group.objectives) + sentences.interval(group.objectives)
            parts.append(f"{f'best **{point}**' if has_best else point}: {shown}{tail}")
        else:
            shown = sentences.value_text(group.objectives[0], group.value or 0.0)
            parts.append(f"{point}: {shown}{sentences.interval(group.objectives)}")
    if len(good) > MAX_GROUPS:
        more = len(good) - MAX_GROUPS
        parts.append(f"and {more} more setting{'s' * (more > 1)}")
    if has_first and not has_best:
        parts.append("which is best is undetermined")
    if not good:
        parts.append("no trial finished with a result")
    return "; ".join(parts + _failures(ranked, names))


def over_seeds(group: Group) -> str:
    """Return mean and interval of runs that differ only in their seed."""
    failed = _failures([group], [])
    if group.value is None:
        finished = any(t.status == FINISHED for t in group.trials)
        return "; ".join(["finished, with no result"] * finished + failed) or "running"
    first, count = group.objectives[0], len(group.objectives)
    shown = sentences.objective_text(first, group.value)
    seeds = {t.seed for t in group.trials if t.status == FINISHED and t.objective}
    of = f", mean of {count} {'seeds' if len(seeds) == count else 'runs'}" if count > 1 else ""
    tail = f"{_after(group.objectives)}{sentences.interval(group.objectives)}{of}"
    return "; ".join([shown + tail + sentences.also(group.objectives), *failed])


def _after(objectives: Sequence[dict[str, Any]]) -> str:
    """Return " after 20 updates", " after 18–24 updates" where the runs differ; "" without steps."""
    shown = cells.after(objectives)
    return f" after {shown}" if shown else ""


def _failures(ranked: Sequence[Group], names: Sequence[str]) -> list[str]:
    """Return "5e-3 failed 1 of 3: gradient explosion at update 12" per group with failures."""
    parts = []
    for group in ranked:
        lost = [t for t in group.trials if t.status in (FAILED, KILLED)]
        if not lost:
            continue
        why = _counted(Counter(sentences.failure_kind(t) for t in lost))
        if len(lost) == 1:
            why = sentences.failure_kind(lost[0]) + sentences.failure_place(lost[0])
        who = f"{sentences.point_text(group.point, names)} " if group.point else ""
        parts.append(f"{who}failed {len(lost)} of {len(group.trials)}: {why}")
    if len(parts) > MAX_GROUPS:
        parts = [*parts[:MAX_GROUPS], f"and {len(parts) - MAX_GROUPS} more settings with failures"]
    return parts


def search_summary(batch: RunRecord | None, trials: Sequence[RunRecord]) -> str:
    """Return best setting, best cluster, importance, failures by kind and origins of a search.

    Args:
        batch: The search; None where it has no record.
        trials: Its trials.
    """
    trials = [searches.as_searched(batch, trial) for trial in trials]
    names, ranked = groups.varying(trials), searches.ranked(trials)
    parts = []
    if ranked:
        best = ranked[0]
        objective = best.objective or {}
        shown = sentences.objective_text(objective, searches.value(best))
        point = sentences.point_text({n: best.flags.get(n) for n in names}, names, named=True)
        shown += sentences.own_interval(objective) + _also(objective)
        parts.append(f"best{f' **{point}**' if point else ''}: {shown} ({best.id8})")
        if cluster := searches.best_cluster(ranked, names):
            parts.append(_cluster_text(cluster, names, len(ranked)))
        parts += [edge_text(searches.edges(batch, best)), importance_text(batch)]
    else:
        parts.append("no trial finished with a result")
    lost = list(filter(searches.has_failed, trials))
    if lost:
        kinds = Counter(_failure_kind(t) + sentences.failure_place(t) for t in lost)
        if len(kinds) > 3:
            kinds = Counter(map(_failure_kind, lost))
        parts.append(f"{len(lost)} of {len(trials)} trials failed: {_counted(kinds)}")
    parts.append(_origins(trials))
    return "; ".join(part for part in parts if part)


def _failure_kind(trial: RunRecord) -> str:
    """Return how a trial failed, as a search says it of one that finished."""
    if trial.status != FINISHED:
        return sentences.failure_kind(trial)
    return f"no finite {markdown.escape((trial.objective or {}).get('name') or 'objective')}"


def importance_text(batch: RunRecord | None) -> str:
    """Return the importance of a search's parameters; "" where it was not computed."""
    importance = searches.importance_of(batch)
    if importance is None:
        return ""
    fit = f"cross-validated R² {markdown.number(importance.r2, 2)} over {importance.trials} trials"
    if importance.r2 <= 0:
        return f"the model predicts nothing ({fit}), so no ranking of parameters"
    if importance.r2 < searches.MIN_R2:
        return f"the effect of every parameter is undetermined, R² being below {searches.MIN_R2} ({fit})"
    determined = importance.determined
    if not determined:
        return f"the effect of every parameter is undetermined ({fit})"
    first, *more = map(share_text, determined[:3])
    return f"importance: {first} of the variance{''.join(f', {s}' for s in more)} ({fit})"


def edge_text(edges: Sequence[searches.Edge]) -> str:
    """Return the parameters of the best setting that lie at the edge of the space; "" if none does."""
    parts = []
    for edge in edges:
        low, high = (
            markdown.flag_value(values.parse_flag(bound)) for bound in (edge.low, edge.high)
        )
        parts.append(f"{markdown.escape(edge.name)} at the {edge.bound} edge of {low} to {high}")
    return f"the best setting has {' and '.join(parts)}" if parts else ""


def comparison_text(comparison: Comparison, id8: str) -> str:
    """Return how a search compares with a random one at equal numbers of trials.

    Args:
        comparison: The comparison.
        id8: Id of the random search, as shown.
    """
    best, random = (
        sentences.value_text(comparison.objective, value)
        for value in (comparison.best, comparison.random)
    )
    reached = "was not reached"
    if comparison.reached is not None:
        reached = f"was reached after {markdown.count(comparison.reached, 'trial')}"
    count = comparison.trials
    return f"with {count} trials, best {best} against {random} of random search ({id8}), whose best {reached}"


def share_text(share: Share) -> str:
    """Return "lr 63 % [48, 71]"; a share of the variance lies between 0 and 1."""
    value, low, high = (
        round(100 * min(max(v, 0.0), 1.0)) for v in (share.value, share.low, share.high)
    )
    return f"{markdown.escape(share.name)} {value} % [{low}, {high}]"


def _also(objective: dict[str, Any]) -> str:
    """Return ", opening rate 101 %" for every further metric that the objective names."""
    entries = sentences.further(objective).values()
    return "".join(f", {sentences.objective_text(entry, entry['value'])}" for entry in entries)


def _cluster_text(cluster: Sequence[RunRecord], names: Sequence[str], total: int) -> str:
    spans = []
    for name in names:
        column = sorted((t.flags.get(name) for t in cluster), key=values.sort_key)
        shown = list(dict.fromkeys(map(markdown.flag_value, column)))
        span = shown[0] if len(shown) == 1 else f"{shown[0]}–{shown[-1]}"
        if len(shown) > 1 and any(isinstance(v, str) for v in column):
            span = " or ".join(shown)
        spans.append(f"{markdown.escape(name)}={span}")
    objective = cluster[0].objective or {}
    low, high = sorted((searches.value(cluster[0]), searches.value(cluster[-1])))
    shown = [sentences.value_text(objective, v) for v in (low, high)]
    reach = shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
    return f"best cluster ({len(cluster)} of {total}): {', '.join(spans)}: {reach}"


def _origins(trials: Sequence[RunRecord]) -> str:
    kinds = Counter(kind for trial in trials if (kind := searches.origin(trial)))
    if not kinds:
        return ""
    first = ["initial"] if "initial" in kinds else []
    rest = sorted(kind for kind in kinds if kind != "initial")
    return ", ".join(
        f"{kinds[kind]} {'initial' if kind == 'initial' else f'proposed by {markdown.escape(kind)}'}"
        for kind in first + rest
    )


def _counted(kinds: Counter[str]) -> str:
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == 1:
        return ordered[0][0]
    shown = [f"{count} × {kind}" for kind, count in ordered[:4]]
    return ", ".join(shown + ["…"] * (len(ordered) > 4))
