"""Intervals of differences of settings: which is best, and which are indistinguishable from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runcatalog.model import statistics

MIN_SEEDS = 3  # fewer give no interval of a difference

Objectives = Sequence[dict[str, Any]]


def best(settings: Sequence[Objectives]) -> tuple[int, list[int]]:
    """Return the index of the setting with the best mean, and those of the settings that are indistinguishable from it.

    Args:
        settings: Objectives of the seeds of every setting; one without objectives is left out, and one whose objective
            is not that of the first.

    Returns:
        (index, others): the setting is best only where `others` is empty; index is -1 without any objective.
    """
    compared = next((s[0] for s in settings if s), {})
    means = {
        i: statistics.mean([o["value"] for o in s])
        for i, s in enumerate(settings)
        if s and s[0].get("name") == compared.get("name")
    }
    means = {i: mean for i, mean in means.items() if math.isfinite(mean)}
    if not means:
        return -1, []
    sign = 1 if compared.get("goal", "max") == "min" else -1
    first = min(means, key=lambda i: (sign * means[i], i))
    return first, [i for i in means if i != first and not differ(settings[first], settings[i])]


def differ(first: Objectives, second: Objectives, *, pairs: int = 1) -> bool:
    """Return whether the 95 % interval of the difference of two means excludes 0; False with too few seeds.

    Args:
        first, second: Objectives of the seeds of each side.
        pairs: As for :func:`interval_of_difference`.
    """
    bounds = interval_of_difference(first, second, pairs=pairs)
    return bounds is not None and not bounds[0] <= 0 <= bounds[1]


def interval_of_difference(
    first: Objectives, second: Objectives, *, paired: bool = False, pairs: int = 1
) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of `second` minus the mean of `first`.

    Welch's, or Student's of the differences where the sides are paired, and within [-1, 1] for rates; None with fewer
    than MIN_SEEDS seeds or a value that is not finite. Where successes were counted, it is at least as wide as that of
    as many games as `statistics.independent_games` says.

    Args:
        first, second: Objectives of the seeds of each side.
        paired: Both have the same seeds in the same order: the interval is that of their differences.
        pairs: Number of pairs of which this one was chosen by its values: Welch's intervals of all of them hold
            together in 95 % of cases (Bonferroni).
    """
    if min(len(first), len(second)) < MIN_SEEDS:
        return None
    a, b = ([o["value"] for o in s] for s in (first, second))
    if not all(map(math.isfinite, [*a, *b])):
        return None
    if paired:
        low, high = statistics.interval([y - x for x, y in zip(a, b, strict=True)])
    else:
        low, high = statistics.interval_of_difference(a, b, 1 - 0.05 / pairs)
    if statistics.are_rates((*first, *second)):
        low, high = max(low, -1.0), min(high, 1.0)
    counts = [statistics.independent_games(s) for s in (first, second)]
    if not all(counts):
        return low, high
    # A few seeds that happen to agree give too narrow an interval: it is at least as wide as Newcombe's of the pooled
    # counts (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10).
    p, q = (statistics.mean(x) for x in (a, b))
    own = [statistics.wilson(min(x * n, n), n) for x, n in zip((p, q), counts, strict=True)]
    lower, upper = difference((p, *own[0]), (q, *own[1]))
    return min(low, lower), max(high, upper)


def difference(
    first: tuple[float, float, float], second: tuple[float, float, float], correlation: float = 0.0
) -> tuple[float, float]:
    """Return the 95 % interval of second minus first, from the value, lower and upper bound of each.

    Newcombe 1998, method 10; for other intervals than Wilson's: Zou and Donner 2008, Statistics in Medicine 27,
    1693-1702; with a correlation of the two: Zou 2007, Psychological Methods 12, 399-413.
    """
    p, p_low, p_high = first
    q, q_low, q_high = second
    lower = (q - p) - _distance(q - q_low, p_high - p, correlation)
    upper = (q - p) + _distance(q_high - q, p - p_low, correlation)
    return lower, upper


def _distance(a: float, b: float, correlation: float) -> float:
    shared = 2 * correlation * a * b if correlation else 0.0  # a bound may be infinite
    return math.sqrt(max(0.0, a * a + b * b - shared))
