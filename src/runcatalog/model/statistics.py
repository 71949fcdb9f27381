"""Intervals and clusters. numpy is imported on use, since most commands need no interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runcatalog.numbers import Z95, is_finite
from runcatalog.numbers import wilson as wilson
from runcatalog.record.evaluation import counted as counted
from runcatalog.record.evaluation import trials as trials

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

RESAMPLES = 2000
LOW, HIGH = (
    int(0.025 * RESAMPLES),
    int(0.975 * RESAMPLES) - 1,
)  # ranks of the bounds in the sorted resamples
_BLOCK = 2_000_000  # numbers drawn at once, 16 MB
_Z80 = 0.8416212335729143  # 80 % quantile of the standard normal distribution


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean (Efron 1979, Annals 7, 1-26).

    The order of the values does not matter. scipy.stats.bootstrap gives the same bounds up to the draws, and takes
    over a second to import.

    Args:
        values: Values per seed, at least one.
        seed: Seed of the resampling.
    """
    if min(values) == max(values):
        return (mean(values),) * 2
    return _bootstrap(tuple(sorted(values)), seed)


@lru_cache(1000)  # the cells of a row ask for the same interval several times
def _bootstrap(values: tuple[float, ...], seed: int) -> tuple[float, float]:
    return _percentiles(_resampled_means(values, _generator(seed)))


def bootstrap_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of `second` minus the mean of `first`, unpaired."""
    generator = _generator(0)
    first_means = _resampled_means(first, generator)
    return _percentiles(_resampled_means(second, generator) - first_means)


def bootstrap_over_levels(
    first: ArrayLike, second: ArrayLike, *, same_seeds: bool
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of `second` minus that of `first`.

    Every resample draws levels, the same for both, and seeds (Owen 2007, "The pigeonhole bootstrap", Annals of Applied
    Statistics 1, 386-411). The single seed of a side says nothing of other seeds.

    Args:
        first, second: Success rates, [seeds, levels], on the same levels.
        same_seeds: Whether the rows of both are of the same seeds, which are then drawn together.
    """
    import numpy as np

    sides = [np.asarray(second, float), -np.asarray(first, float)]
    if same_seeds:
        sides = [sides[0] + sides[1]]
    count = sides[0].shape[1]
    generator, means = _generator(0), []
    rows = max(1, _BLOCK // (count * max(map(len, sides))))
    for start in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - start)
        levels = (generator.random_sample((size, count)) * count).astype(int)
        total = np.zeros(size)
        for side in sides:
            seeds = (generator.random_sample((size, len(side))) * len(side)).astype(int)
            of_seeds = side[:, levels].mean(axis=2)  # [seeds, size]
            total += np.take_along_axis(of_seeds, seeds.T, axis=0).mean(axis=0)
        means.append(total)
    return _percentiles(np.concatenate(means))


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

    1.96 + 0.84 standard errors (Cohen 1988, *Statistical Power Analysis*), of which half the interval has 1.96.
    """
    return (1 + _Z80 / Z95) * (interval[1] - interval[0]) / 2


def bounds(objectives: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Return the 95 % interval of objectives over seeds: bootstrap of the mean; None without one.

    A few seeds that happen to agree would give too narrow an interval. Where successes were counted, it is therefore at
    least as wide as the Wilson interval of as many games as :func:`trials` says. For a single run it is that interval,
    or the `interval` that the objective states.
    """
    if len(objectives) == 1 and "interval" in objectives[0]:
        low, high = objectives[0]["interval"]
        return low, high
    numbers = [o["value"] for o in objectives]
    if not all(math.isfinite(v) for v in numbers):
        return None
    low, high = bootstrap(numbers) if len(numbers) > 1 else (math.inf, -math.inf)
    if count := trials(objectives):
        least, most = wilson(min(mean(numbers) * count, count), count)
        low, high = min(low, least), max(high, most)
    return (low, high) if low <= high else None


def _generator(seed: int) -> np.random.RandomState:
    """Return a generator with the numbers of `random.Random(seed)`."""
    import numpy as np

    return np.random.RandomState([seed])


def _resampled_means(values: Sequence[float], generator: np.random.RandomState) -> np.ndarray:
    """Return the means of RESAMPLES samples with replacement, an array of shape (RESAMPLES,)."""
    import numpy as np

    ordered, count = np.sort(np.asarray(values, float)), len(values)
    rows = max(1, _BLOCK // count)
    means = []
    for start in range(0, RESAMPLES, rows):
        shape = (min(rows, RESAMPLES - start), count)
        means.append(ordered[(generator.random_sample(shape) * count).astype(int)].mean(axis=1))
    return np.concatenate(means)


def _percentiles(means: np.ndarray) -> tuple[float, float]:
    means.sort()
    return float(means[LOW]), float(means[HIGH])


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, the same for every order of the values."""
    return math.fsum(values) / len(values)


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
            for row, value in zip(rows, column, strict=True):
                row += [math.sqrt(0.5) if str(value) == name else 0.0 for name in names]
    return rows
