"""What a search tells beside its best point: what matters, where it ends, and whether chance does as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runcatalog.analysis import groups, sentences
from runcatalog.analysis.importance import MIN_TRIALS, Importance, Share, importance
from runcatalog.model import values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.text import markdown

EDGE = 0.02  # share of a range that counts as its edge
RANDOM = "@random"  # what the name of a search's peer ends in


def importance_of(trials: Sequence[RunRecord]) -> Importance | None:
    """Returns how much each parameter of a search matters; None where nothing can be said.

    Args:
        trials: With what the search optimised as their objective (:func:`runcatalog.analysis.groups.as_searched`).
    """
    ended = [t for t in trials if t.status in (FAILED, KILLED) or _finite(t)]
    sign = 1 if _is_maximised(trials) else -1
    told = [sign * (t.objective or {})["value"] if _finite(t) else None for t in ended]
    names = groups.varying(ended)
    return importance({n: [t.flags.get(n) for t in ended] for n in names}, told)


def matters(trials: Sequence[RunRecord]) -> str:
    """Returns which parameter of a search matters most, as a part of its sentence; nothing of few trials."""
    found = importance_of(trials) if len(groups.varying(trials)) > 1 else None
    if found is None:
        ended = sum(t.status in (FINISHED, FAILED, KILLED) for t in trials)
        few = ended < MIN_TRIALS and len(groups.varying(trials)) > 1
        return f"{ended} trials are too few to tell which parameter matters" if few else ""
    seen = f"cross-validated R² {markdown.number(found.r2, 2)} over {found.trials} trials"
    first, *others = found.shares
    if found.r2 <= 0:
        return f"no parameter can be told apart ({seen})"
    if not found.told:
        return f"{_named(first)} may matter: {_span(first)} of the variance, not certain ({seen})"
    if first not in found.told:  # a smaller one is surer
        return f"{_named(found.told[0])} matters: {_span(found.told[0])} of the variance ({seen})"
    if not found.leads:
        rival = f"not certain to be more than {_named(others[0])}, {_span(others[0])}"
        return f"{_named(first)} matters: {_span(first)} of the variance, {rival} ({seen})"
    more = [s for s in found.told if s is not first]
    then = f", then {', '.join(f'{_named(s)} {_span(s)}' for s in more[:2])}" if more else ""
    return f"{_named(first)} matters most: {_span(first)} of the variance{then} ({seen})"


def edges(best: RunRecord, space: object) -> str:
    """Returns which parameters of the best point lie at the edge of the space; nothing if none does.

    Args:
        best: The best trial.
        space: Range by parameter as `low`, `high` and `log`, as a search records it.
    """
    parts = []
    for name, told in sorted(space.items()) if isinstance(space, dict) else ():
        place = _place(best.flags.get(name), told)
        if place is not None and min(place, 1 - place) <= EDGE:
            which = "lower" if place < 0.5 else "upper"
            low, high = (
                markdown.flag_value(values.parse_flag(told[end])) for end in ("low", "high")
            )
            parts.append(f"{markdown.escape(name)} at the {which} edge of {low} to {high}")
    return f"the best point has {' and '.join(parts)}" if parts else ""


def against_random(own: Sequence[RunRecord], peer: Sequence[RunRecord], id8: str) -> str:
    """Returns how a search compares with a random one at equal numbers of trials; nothing without results.

    Args:
        own: Its trials, with what it optimised as their objective.
        peer: Those of the random search.
        id8: Its id, as it is to be shown.
    """
    mine, theirs = (sorted(each, key=_number) for each in (own, peer))
    count = min(len(mine), len(theirs))
    sign = 1 if _is_maximised(own) else -1

    def best(trials: Sequence[RunRecord]) -> float | None:
        told = [sign * (t.objective or {})["value"] for t in trials if _finite(t)]
        return max(told, default=None)

    ours, chance = best(mine[:count]), best(theirs[:count])
    if ours is None or chance is None:
        return ""
    objective = next(t.objective for t in mine if _finite(t)) or {}
    shown = [sentences.value_text(objective, sign * v) for v in (ours, chance)]
    reach = (
        i + 1 for i, t in enumerate(mine[:count]) if (b := best([t])) is not None and b >= chance
    )
    first = next(reach, 0)
    reached = f"which it had after {markdown.count(first, 'trial')}" if first else "not reached"
    return f"of {count} trials each, best {shown[0]} against {shown[1]} by random search ({id8}), {reached}"


def peer_of(own: Sequence[RunRecord], others: Mapping[str, Sequence[RunRecord]]) -> str:
    """Returns which random search to compare with: of equal budgets, of equal seed if there is one; "" for none.

    Args:
        own: A search's trials.
        others: Those of each random search by its id, the latest last.
    """

    def fixed(trials: Sequence[RunRecord], left_out: set[str]) -> dict[str, Any]:
        return {k: v for k, v in trials[0].flags.items() if k not in left_out}

    found: list[str] = []
    for run, trials in others.items():
        searched = {"seed", *groups.varying(own), *groups.varying(trials)}
        if trials and fixed(own, searched) == fixed(trials, searched):
            found.append(run)
    same = [run for run in found if others[run][0].seed == own[0].seed]
    return (same or found or [""])[-1]


def _named(share: Share) -> str:
    return markdown.escape(share.name)


def _span(share: Share) -> str:
    """Returns "63 % [48, 71]"; a share of the variance lies between 0 and 1."""
    value, low, high = (min(max(v, 0.0), 1.0) for v in (share.value, share.low, share.high))
    return f"{round(100 * value)} % [{round(100 * low)}, {round(100 * high)}]"


def _place(value: object, told: object) -> float | None:
    """Where a value lies in a range, 0 to 1; None where there is no range."""
    if not isinstance(told, Mapping) or not _is_number(value):
        return None
    low, high = told.get("low"), told.get("high")
    if not (_is_number(low) and _is_number(high)) or not low < high:
        return None
    if told.get("log") and low > 0 and value > 0:  # type: ignore[operator]
        return math.log(value / low) / math.log(high / low)  # type: ignore[operator]
    return (value - low) / (high - low)  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _finite(trial: RunRecord) -> bool:
    objective = trial.objective if trial.status == FINISHED else None
    return objective is not None and math.isfinite(objective["value"])


def _is_maximised(trials: Sequence[RunRecord]) -> bool:
    goals = [o.get("goal", "max") for t in trials if (o := t.objective)]
    return not goals or goals[0] != "min"


def _number(trial: RunRecord) -> tuple[float, tuple[int, int, str]]:
    """When a search ran a trial: its number, where it is told."""
    search = (trial.result or {}).get("search")
    told = search.get("trial") if isinstance(search, dict) else None
    return (told if _is_number(told) else math.inf), groups.order(trial)
