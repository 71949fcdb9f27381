"""Results of a hyperparameter search: best cluster, importance of parameters, bounds, comparison with random search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import groups
from runcatalog.model import statistics, values
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, NOT_OF_SETTING, RunRecord
from runcatalog.numbers import is_finite
from runcatalog.text import sentences

# A cluster: trials of the best quarter, chained by steps of at most this share of the (normalised)
# range, in root mean square over the parameters. 0.2 joins points that look like one cluster in a scatter plot.
QUARTILE = 0.25
LINK = 0.2
EDGE = 0.02  # share of a range that counts as its edge
# Below this cross-validated R² the model misses over nine tenths of the variance of trials that it has not seen, so
# that shares computed from it say little about the search: they count as undetermined.
MIN_R2 = 0.1
RANDOM = "@random"  # suffix of the name of the random search that a search is compared with


def is_search(batch: RunRecord | None, trials: Sequence[RunRecord]) -> bool:
    """Return whether an optimizer chose the trials' points."""
    method = ((batch.result if batch else None) or {}).get("method")
    return method not in (None, "", "grid") or any(origin(t) for t in trials)


def origin(trial: RunRecord) -> str:
    """Return how a search chose a trial's point: "initial", "gp" or "random"; "" for a run of no search."""
    search = (trial.result or {}).get("search")
    return str(search.get("kind") or "") if isinstance(search, dict) else ""


def as_searched(batch: RunRecord | None, trial: RunRecord) -> RunRecord:
    """Return a trial with the metric that the search optimised as its objective, and its own objective in `also`.

    The two may differ: after a short trial a quantity that is learned early is more informative than a rate of 0.
    """
    optimised: Any = ((batch.result if batch else None) or {}).get("optimised")
    name = optimised.get("name") if isinstance(optimised, dict) else None
    own = trial.objective
    if not name or name not in trial.metrics or (own or {}).get("name") == name:
        return trial
    value = values.json_number(trial.metrics[name].last)
    objective = {"name": name, "value": value, "kind": "mean", "goal": optimised.get("goal", "max")}
    if own is not None:
        objective["also"] = [own, *sentences.further(own).values()]
    return trial.with_objective(objective)


def ranked(trials: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the finished trials with a finite objective, best first."""
    sign = groups.sort_sign(trials)
    return sorted(filter(_has_value, trials), key=lambda t: (sign * value(t), groups.order(t)))


def has_failed(trial: RunRecord) -> bool:
    """Return whether a trial counts as failed: also one that finished without a finite objective."""
    return trial.status in (FAILED, KILLED) or (trial.status == FINISHED and not _has_value(trial))


def value(trial: RunRecord) -> float:
    """Return the value of a trial's objective."""
    return (trial.objective or {})["value"]


def best_cluster(ranked: Sequence[RunRecord], names: Sequence[str]) -> list[RunRecord]:
    """Return the cluster of good trials with the best mean; empty if no two are close.

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
    linked = statistics.single_linkage(points, LINK * math.sqrt(len(names)))
    clusters = [[ranked[i] for i in group] for group in linked if len(group) > 1]
    sign = groups.sort_sign(ranked)
    return min(
        clusters,
        key=lambda c: (sign * statistics.mean([value(t) for t in c]), -len(c)),
        default=[],
    )


@dataclass(frozen=True)
class Share:
    """A parameter's share of the objective's variance, with its 95 % interval.

    Attributes:
        determined: Whether the model's R² is at least MIN_R2 and the interval is above 0.
    """

    name: str
    value: float
    low: float
    high: float
    determined: bool


@dataclass(frozen=True)
class Importance:
    """Importance of a search's parameters, as computed by :mod:`runcatalog.search.importance` at its end.

    Attributes:
        shares: Shares of the parameters, the largest first.
        r2: Cross-validated R² of the model that they are computed from.
        trials: Number of trials.
    """

    shares: tuple[Share, ...]
    r2: float
    trials: int

    @property
    def determined(self) -> tuple[Share, ...]:
        """Shares whose interval is above 0; empty where the model's R² is below MIN_R2."""
        return tuple(share for share in self.shares if share.determined)


def importance_of(batch: RunRecord | None) -> Importance | None:
    """Return the importance in a search's record; None if it is missing or invalid."""
    stored: Any = ((batch.result if batch else None) or {}).get("importance")
    try:
        r2, trials = values.number(stored["r2"]), int(stored["trials"])
        numbers = {
            str(name): [values.number(share[key]) for key in ("share", "low", "high")]
            for name, share in stored["parameters"].items()
        }
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None
    if not numbers or not all(math.isfinite(v) for row in ([r2], *numbers.values()) for v in row):
        return None
    ranked = sorted(numbers.items(), key=lambda item: (-item[1][0], item[0]))
    shares = (
        Share(name, value, low, high, r2 >= MIN_R2 and low > 0)
        for name, (value, low, high) in ranked
    )
    return Importance(tuple(shares), r2, trials)


@dataclass(frozen=True)
class Edge:
    """A parameter of the best setting within EDGE of a bound of the space.

    Attributes:
        bound: "lower" or "upper".
        low, high: The space's range.
    """

    name: str
    bound: str
    low: float
    high: float


def edges(batch: RunRecord | None, best: RunRecord) -> list[Edge]:
    """Return the parameters of a search's best trial that lie at a bound of the space that it recorded."""
    space = ((batch.result if batch else None) or {}).get("space")
    close = []
    for name, bounds in sorted(space.items()) if isinstance(space, dict) else ():
        place = _place(best.flags.get(name), bounds)
        if place is not None and min(place, 1 - place) <= EDGE:
            bound = "lower" if place < 0.5 else "upper"
            close.append(Edge(name, bound, bounds["low"], bounds["high"]))
    return close


@dataclass(frozen=True)
class Comparison:
    """A search compared with a random search at an equal number of trials.

    Attributes:
        trials: Number of trials of either.
        objective: The objective of both.
        best, random: Best value of the search and of the random search.
        reached: Trials until the search reached the random search's best value; None if it did not.
    """

    trials: int
    objective: dict[str, Any]
    best: float
    random: float
    reached: int | None


def against_random(own: Sequence[RunRecord], random: Sequence[RunRecord]) -> Comparison | None:
    """Compare a search with a random search; None where either has no result.

    Args:
        own: Trials of the search, with the metric that it optimised as their objective.
        random: Trials of the random search.
    """
    count = min(len(own), len(random))
    first, others = (sorted(trials, key=_number)[:count] for trials in (own, random))
    best, best_random = ranked(first), ranked(others)
    if not best or not best_random:
        return None
    sign = groups.sort_sign(own)
    reached = (
        i
        for i, trial in enumerate(first, 1)
        if _has_value(trial) and sign * value(trial) <= sign * value(best_random[0])
    )
    objective = next(t.objective for t in first if _has_value(t)) or {}
    return Comparison(count, objective, value(best[0]), value(best_random[0]), next(reached, None))


def peer_of(own: Sequence[RunRecord], others: Mapping[str, Sequence[RunRecord]]) -> str:
    """Return the id of the random search to compare with: of equal fixed flags, preferably of equal seed; "" for none.

    Args:
        own: A search's trials.
        others: Trials of the random searches by their ids, the latest last.
    """

    def fixed(trials: Sequence[RunRecord], left_out: set[str]) -> dict[str, Any]:
        flags = trials[0].comparable_flags
        return {name: value for name, value in flags.items() if name not in left_out}

    alike: list[str] = []
    for run, trials in others.items():
        searched = {*NOT_OF_SETTING, *groups.varying(own), *groups.varying(trials)}
        if trials and fixed(own, searched) == fixed(trials, searched):
            alike.append(run)
    same_seed = [run for run in alike if others[run][0].seed == own[0].seed]
    return (same_seed or alike or [""])[-1]


def _place(value: object, bounds: object) -> float | None:
    """Return the position of a value in a range, 0 to 1; None without a range."""
    if not isinstance(bounds, Mapping) or not is_finite(value):
        return None
    low, high = bounds.get("low"), bounds.get("high")
    if not (is_finite(low) and is_finite(high)) or not low < high:
        return None
    if bounds.get("log") and low > 0 and value > 0:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _has_value(trial: RunRecord) -> bool:
    objective = trial.objective if trial.status == FINISHED else None
    return objective is not None and math.isfinite(objective["value"])


def _number(trial: RunRecord) -> tuple[float, tuple[int, int, str]]:
    """Sort key: the trial's number in its search, then the order of other runs."""
    search = (trial.result or {}).get("search")
    number = search.get("trial") if isinstance(search, dict) else None
    return (number if is_finite(number) else math.inf), groups.order(trial)
