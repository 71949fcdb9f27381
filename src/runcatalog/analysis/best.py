"""Which of several settings is best, and which cannot be told apart from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runcatalog.model import statistics

MIN_SEEDS = 3  # fewer give no interval of a difference

Objectives = Sequence[dict[str, Any]]


def best(settings: Sequence[Objectives]) -> tuple[int, list[int]]:
    """Return the index of the setting with the best mean, and the indices of those that cannot be told apart from it.

    Args:
        settings: Objectives of the seeds of every setting; one without objectives is left out.

    Returns:
        (index, others): the setting is best only where `others` is empty; index is -1 without any objective.
    """
    means = {i: statistics.mean([o["value"] for o in s]) for i, s in enumerate(settings) if s}
    means = {i: mean for i, mean in means.items() if math.isfinite(mean)}
    if not means:
        return -1, []
    goal = next(s for s in settings if s)[0].get("goal", "max")
    sign = 1 if goal == "min" else -1
    first = min(means, key=lambda i: (sign * means[i], i))
    return first, [i for i in means if i != first and not differ(settings[first], settings[i])]


def differ(first: Objectives, second: Objectives) -> bool:
    """Return whether the 95 % interval of the difference of two means leaves 0 out; False with too few seeds."""
    if min(len(first), len(second)) < MIN_SEEDS:
        return False
    a, b = ([o["value"] for o in s] for s in (first, second))
    if not all(map(math.isfinite, [*a, *b])):
        return False
    low, high = statistics.bootstrap_difference(a, b)
    if low <= 0 <= high:
        return False
    counts = [sum(statistics.counted(o) for o in s) for s in (first, second)]
    if not all(counts):
        return True
    # A few seeds that happen to agree give too narrow an interval: Newcombe's of the pooled counts leaves 0 out too
    # (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10).
    p, q = (statistics.mean(x) for x in (a, b))
    own = (statistics.wilson(min(x * n, n), n) for x, n in zip((p, q), counts, strict=True))
    lower, upper = difference((p, *next(own)), (q, *next(own)))
    return not lower <= 0 <= upper


def difference(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float]:
    """Return the 95 % interval of second minus first, from the value, lower and upper bound of each.

    Newcombe 1998, method 10; for other intervals than Wilson's: Zou and Donner 2008, Statistics in Medicine 27,
    1693-1702.
    """
    p, p_low, p_high = first
    q, q_low, q_high = second
    lower = (q - p) - math.hypot(q - q_low, p_high - p)
    upper = (q - p) + math.hypot(q_high - q, p - p_low)
    return lower, upper
