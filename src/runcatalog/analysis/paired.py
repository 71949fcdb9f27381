"""Runs compared level by level, where both have their outcomes on the same levels of a fixed set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runcatalog.analysis import differences
from runcatalog.model import statistics
from runcatalog.model.run_record import RunRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from runcatalog.record.evaluation import LevelOutcomes

_SIGNIFICANCE = 0.05  # level of the test, as of the 95 % intervals
_EQUAL = 1e-9  # difference of means that rounding may give


@dataclass(frozen=True)
class Difference:
    """A difference of two runs or settings, second minus first.

    Attributes:
        value: Of two settings that of the means.
        interval: 95 % interval; None without one.
        method: How it was computed, with the number of levels and seeds; or why it is not paired.
        first_only, second_only: Number of levels on which only the first, only the second has the higher rate; None
            where levels are not paired.
        p_value: Of McNemar's exact test of two runs that played every level once; None for others.
    """

    value: float
    interval: tuple[float, float] | None
    method: str = ""
    first_only: int | None = None
    second_only: int | None = None
    p_value: float | None = None

    @property
    def is_any(self) -> bool:
        """Whether the two differ on some level, or in their value."""
        return bool(self.first_only or self.second_only or self.value)

    @property
    def is_determined(self) -> bool:
        """Whether the interval excludes 0, and the test finds a difference."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return False
        return self.p_value is None or self.p_value < _SIGNIFICANCE

    @property
    def detectable(self) -> float | None:
        """Smallest difference that such a comparison finds with 80 % power; None without an interval."""
        return statistics.detectable(self.interval) if self.interval else None


def compare(
    first: Sequence[RunRecord], second: Sequence[RunRecord], name: str, second_name: str = ""
) -> Difference | str:
    """Compare two settings level by level.

    Args:
        first, second: Runs of a setting each, which differ in their seed alone.
        name: Name of the rate as in :func:`runcatalog.record.level_outcomes`, or `objective`.
        second_name: Its name in the second; "" for the same.

    Returns:
        The comparison; or why the runs are not paired, such as "B has no outcomes per level".
    """
    names = name, second_name or name
    first, second = _by_seed(first), _by_seed(second)
    sides = []
    for title, runs, own_name in zip("AB", (first, second), names, strict=True):
        sides.append([outcomes for run in runs if (outcomes := _outcomes(run, own_name))])
        if not runs or len(sides[-1]) < len(runs):
            return f"{title} has no outcomes per level"
    if len({outcomes.levels for side in sides for outcomes in side}) > 1:
        return "the levels differ"
    successes = [[outcomes.success for outcomes in side] for side in sides]
    if all(len(side) == 1 and side[0].shape[1] == 1 for side in successes):
        return _two_runs(successes[0][0][:, 0], successes[1][0][:, 0])
    seeds = [[run.seed for run in runs] for runs in (first, second)]
    are_same = seeds[0] == seeds[1] and None not in seeds[0] and len({*seeds[0]}) == len(seeds[0])
    return _two_settings(successes[0], successes[1], are_same)


def _by_seed(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs in order of their seeds, those without a seed first."""
    return sorted(runs, key=lambda run: (run.seed is not None, run.seed or 0))


def _outcomes(run: RunRecord, name: str) -> LevelOutcomes | None:
    objective = run.objective if name == "objective" else None
    return run.outcomes.get(name if objective is None else objective["name"])


def _two_runs(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Difference:
    """Compare two runs that played every level once."""
    count = len(first)
    only = int((first & ~second).sum()), int((second & ~first).sum())
    p, q = (n / count for n in only)
    # The shares of levels that only one has solved are those of a multinomial, hence negatively correlated.
    correlation = -math.sqrt(p * q / ((1 - p) * (1 - q))) if p * q else 0.0
    shares = [(n / count, *statistics.wilson(n, count)) for n in only]
    bounds = differences.difference(shares[0], shares[1], correlation)
    return Difference(
        q - p, bounds, f"exact McNemar, {count} levels", *only, statistics.mcnemar(*only)
    )


def _two_settings(
    first: Sequence[NDArray[np.bool_]], second: Sequence[NDArray[np.bool_]], same_seeds: bool
) -> Difference:
    """Compare settings with several seeds, or several games of a level."""
    import numpy as np

    rates = [np.stack([success.mean(axis=1) for success in side]) for side in (first, second)]
    change = rates[1].mean(axis=0) - rates[0].mean(axis=0)
    bounds = None  # a single level says nothing of others
    if len(change) > 1:
        bounds = statistics.interval_over_levels(*rates, same_seeds=same_seeds)
        if bounds[1] - bounds[0] < _EQUAL:
            # All levels changed alike. Others may not: their share is at most Wilson's bound of none.
            others = statistics.wilson(0, len(change))[1]
            bounds = max(-1.0, bounds[0] - others), min(1.0, bounds[1] + others)
    counts = " and ".join(dict.fromkeys(str(len(side)) for side in rates))
    levels = f"{len(change)} level{'s' * (len(change) != 1)}"
    method = f"{levels} × {counts} seed{'s' * (counts != '1')}"
    only = int((change < -_EQUAL).sum()), int((change > _EQUAL).sum())
    return Difference(float(change.mean()), bounds, method, *only)
