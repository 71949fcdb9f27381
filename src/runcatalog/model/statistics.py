"""Intervals and clusters. numpy is imported on use, since most commands need no interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runcatalog.numbers import Z95, is_finite
from runcatalog.numbers import wilson as wilson
from runcatalog.record.evaluation import counted as counted
from runcatalog.record.evaluation import independent_games as independent_games

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

STATISTICS = ("mean", "median", "min", "max")
_Z80 = 0.8416212335729143  # 80 % quantile of the standard normal distribution


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean (Student 1908, Biometrika 6, 1-25).

    Of three seeds it covers the mean of all in 95 % of cases where their values are normally distributed; percentiles
    of a bootstrap do in 75 %, and of five in 84 %.

    Args:
        values: Values per seed, at least two.
    """
    return _around(mean(values), [_variance_of_mean(values)])


def interval_of_difference(
    first: Sequence[float], second: Sequence[float], coverage: float = 0.95
) -> tuple[float, float]:
    """Return Welch's interval of the mean of `second` minus that of `first` (Welch 1947, Biometrika 34, 28-35).

    Args:
        first, second: Values per seed of each side, at least two.
        coverage: Probability with which such an interval has the difference.
    """
    parts = [_variance_of_mean(first), _variance_of_mean(second)]
    return _around(mean(second) - mean(first), parts, coverage)


def interval_over_levels(
    first: ArrayLike, second: ArrayLike, *, same_seeds: bool
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of `second` minus that of `first`, for other levels and other seeds.

    From the variance components of two crossed random factors, levels and seeds (Searle, Casella and McCulloch 1992,
    *Variance Components*, chapter 4). The single seed of a side says nothing of other seeds.

    Args:
        first, second: Success rates, [seeds, levels], on the same levels, at least two.
        same_seeds: Whether the rows of both are of the same seeds.
    """
    import numpy as np

    sides = [np.asarray(second, float), -np.asarray(first, float)]
    if same_seeds:
        sides = [sides[0] + sides[1]]
    change = sum(side.mean(axis=0) for side in sides)
    levels = len(change)
    parts = [(float(change.var(ddof=1)) / levels, levels - 1)]
    for side in sides:
        seeds = len(side)
        if seeds > 1:
            of_seeds = side.mean(axis=1)
            rest = side - of_seeds[:, None] - side.mean(axis=0) + side.mean()
            both = (seeds - 1) * (levels - 1)
            # The variance over levels has the interaction's already.
            interaction = float((rest**2).sum()) / both / seeds / levels
            parts += [(float(of_seeds.var(ddof=1)) / seeds, seeds - 1), (-interaction, both)]
    return _around(float(change.mean()), parts)


def _around(
    centre: float, parts: Sequence[tuple[float, int]], coverage: float = 0.95
) -> tuple[float, float]:
    """Return the interval around a mean whose variance is a sum.

    Args:
        centre: The mean.
        parts: Each part of the variance with its degrees of freedom; those of the sum are Satterthwaite's (1946,
            Biometrics Bulletin 2, 110-114). The sum is at least its first part.
        coverage: As for :func:`interval_of_difference`.
    """
    variance = max(sum(part for part, _ in parts), parts[0][0])
    if variance <= 0:
        return centre, centre
    if not math.isfinite(variance):  # the squares of numbers above 1e154
        return -math.inf, math.inf
    # As shares, since the square of a small or large variance is 0 or no number.
    freedom = max(1.0, 1 / sum((part / variance) ** 2 / count for part, count in parts))
    whole = math.floor(freedom)
    beyond = (freedom - whole) * (whole + 1) / freedom  # 0 to 1, linear in 1 / freedom
    quantile, following = (t_quantile(count, coverage) for count in (whole, whole + 1))
    quantile += beyond * (following - quantile)
    half = quantile * math.sqrt(variance)
    return centre - half, centre + half


@lru_cache(1000)
def t_quantile(freedom: int, coverage: float = 0.95) -> float:
    """Return the t with P(|T| < t) = coverage of Student's t distribution; importing scipy.stats.t takes half a second.

    With t = sqrt(freedom) tan(a), P(|T| < t) is the integral of cos^(freedom - 1) from 0 to a, divided by that to pi/2.

    Args:
        freedom: Degrees of freedom, a whole number from 1 on; from 10,000 on the quantile is that of 10,000.
        coverage: Probability between -t and t; 0.95 gives the 97.5 % quantile.
    """
    freedom = min(freedom, 10_000)

    def integral(angle: float) -> float:
        cosine, sine = math.cos(angle), math.sin(angle)
        total = angle if freedom % 2 else sine
        for power in range(3 - freedom % 2, freedom, 2):
            total = (cosine ** (power - 1) * sine + (power - 1) * total) / power
        return total

    low, high = 0.0, math.pi / 2
    whole = integral(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if integral(middle) < coverage * whole else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _variance_of_mean(values: Sequence[float]) -> tuple[float, int]:
    """Return the variance of the mean, exactly 0 of equal values, and its degrees of freedom."""
    freedom = len(values) - 1
    if min(values) == max(values):
        return 0.0, freedom
    centre = mean(values)
    squares = _sum([(value - centre) * (value - centre) for value in values])
    return squares / freedom / len(values), freedom


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the two-sided p-value of McNemar's test in its exact form (McNemar 1947, Psychometrika 12, 153-157).

    Args:
        first_only, second_only: Number of levels that only the first, only the second has solved.
    """
    count = first_only + second_only
    tail = sum(math.comb(count, k) for k in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**count)


def detectable(interval: tuple[float, float]) -> float:
    """Return the smallest difference that a comparison with such a 95 % interval finds with 80 % power.

    1.96 + 0.84 standard errors (Cohen 1988, *Statistical Power Analysis*) where half the interval is 1.96 of them; with
    few seeds, where it is more, a little less would be found.
    """
    return (1 + _Z80 / Z95) * (interval[1] - interval[0]) / 2


def bounds(objectives: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of objectives over seeds, :func:`interval`; None without one.

    A few seeds that happen to agree would give too narrow an interval. Where successes were counted, it is therefore at
    least as wide as the Wilson interval of as many games as :func:`independent_games` says. For a single run it is that
    interval, or the `interval` that the objective states. A rate's interval is within [0, 1].
    """
    if len(objectives) == 1 and "interval" in objectives[0]:
        low, high = objectives[0]["interval"]
        return low, high
    numbers = [o["value"] for o in objectives]
    if not all(math.isfinite(v) for v in numbers):
        return None
    low, high = interval(numbers) if len(numbers) > 1 else (math.inf, -math.inf)
    if are_rates(objectives):
        low, high = max(low, 0.0), min(high, 1.0)
    if count := independent_games(objectives):
        least, most = wilson(min(mean(numbers) * count, count), count)
        low, high = min(low, least), max(high, most)
    return (low, high) if low <= high else None


def are_rates(objectives: Sequence[dict[str, Any]]) -> bool:
    """Return whether all objectives are rates in [0, 1]; a source may have counted some wrongly, above 1."""
    return all(o.get("kind") == "rate" and 0 <= o["value"] <= 1 for o in objectives)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, the same for every order of the values; NaN of infinities of both signs."""
    return _sum(values) / len(values)


def _sum(values: Sequence[float]) -> float:
    """Return the sum, rounded once; infinite or NaN where it is no number."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # above the largest number; infinities of both signs
        return sum(values)


def statistic(name: str, values: Sequence[float]) -> float:
    """Return the mean, median, min or max of values, NaN where one of them is: it has no place in an order.

    Args:
        name: One of STATISTICS.
        values: The values, at least one.
    """
    import statistics  # on use, since it imports fractions and decimals

    if any(map(math.isnan, values)):
        return math.nan
    functions: tuple[Callable[[Sequence[float]], float], ...] = (mean, statistics.median, min, max)
    return dict(zip(STATISTICS, functions, strict=True))[name](values)


def single_linkage(points: Sequence[Sequence[float]], distance: float) -> list[list[int]]:
    """Cluster points by single linkage: chains of steps of at most `distance` connect the points of a cluster.

    Args:
        points: Coordinates, a row per point.
        distance: Largest Euclidean step.

    Returns:
        Groups of indices, largest first, then by smallest index.
    """
    root = list(range(len(points)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i in range(len(points)):
        for j in range(i):
            if math.dist(points[i], points[j]) <= distance:
                low, high = sorted((find(i), find(j)))
                root[high] = low
    groups: dict[int, list[int]] = {}
    for i in range(len(points)):
        groups.setdefault(find(i), []).append(i)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def normalised(columns: Sequence[Sequence[object]]) -> list[list[float]]:
    """Return points of mixed parameters as coordinates in [0, 1].

    A numeric parameter is scaled by its range over all points, logarithmically if it is positive and spans a factor of
    100 or more. The values of any other parameter are one-hot coordinates, scaled so that two different values have
    distance 1.

    Args:
        columns: Values per parameter, every column with a value per point.

    Returns:
        A row per point.
    """
    rows: list[list[float]] = [[] for _ in (columns[0] if columns else ())]
    for column in columns:
        numbers = [float(v) for v in column if is_finite(v)]
        if len(numbers) == len(column):
            low, high = min(numbers), max(numbers)
            if low > 0 and high >= 100 * low:
                numbers = [math.log(v) for v in numbers]
                low, high = math.log(low), math.log(high)
            span = (high - low) or 1.0
            for row, value in zip(rows, numbers, strict=True):
                row.append((value - low) / span)
        else:
            names = sorted({str(v) for v in column})
            for row, given in zip(rows, column, strict=True):
                row += [math.sqrt(0.5) if str(given) == name else 0.0 for name in names]
    return rows
