"""Intervals and clusters; of a few seeds in plain Python: a catalog is checked faster than numpy is imported."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution
RESAMPLES = 2000
# A catalog asks for thousands of intervals of as many values: their draws are kept,
FEW = 20  # up to here with equal ones put together,
MANY = 1000  # up to here as they are, 4 MB at most for a number of values.


def wilson(successes: float, count: int) -> tuple[float, float]:
    """Returns the 95 % score interval of a rate (Wilson 1927, JASA 22, 209-212).

    Args:
        successes: Number of successes, 0 … count.
        count: Number of trials, at least 1.

    Returns:
        (low, high), both in [0, 1].
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}")
    rate, z2 = successes / count, Z95 * Z95
    centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == count else min(1.0, centre + half)
    return low, high


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % percentile bootstrap interval of the mean (Efron 1979, Annals 7, 1-26).

    The same values in whatever order give the same interval.

    Args:
        values: One per seed, at least one.
        seed: Of the resampling.
    """
    ordered, count = sorted(values), len(values)
    means = []
    for drawn, times in _resamples(count, seed) if count <= MANY else _draws(count, seed):
        means += [math.fsum(map(ordered.__getitem__, drawn)) / count] * times
    means.sort()
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def _draws(count: int, seed: int) -> Iterator[tuple[Sequence[int], int]]:
    """(which of the values were drawn, how often), RESAMPLES in all, as random.Random draws them."""
    generator = random.Random(seed)
    if count <= FEW:
        for _ in range(RESAMPLES):
            yield generator.choices(range(count), k=count), 1
        return
    import numpy as np  # the same generator and, of many values, much faster

    state = generator.getstate()[1]
    many = np.random.RandomState()
    many.set_state(("MT19937", state[:-1], state[-1]))
    for _ in range(RESAMPLES):
        yield array("L", (many.random_sample(count) * count).astype("L").tobytes()), 1


@lru_cache(maxsize=32)
def _resamples(count: int, seed: int) -> list[tuple[Sequence[int], int]]:
    """The same, kept; of few values there are few different draws, which are put together."""
    if count > FEW:
        return [(array("H", drawn), times) for drawn, times in _draws(count, seed)]
    drawn = Counter(tuple(sorted(draw)) for draw, _ in _draws(count, seed))
    return list(drawn.items())


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, the same for every order of the values."""
    return math.fsum(values) / len(values)


def single_linkage(points: Sequence[Sequence[float]], distance: float) -> list[list[int]]:
    """Groups points that a chain of steps, none longer than `distance`, connects.

    Args:
        points: Coordinates, one row per point.
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
    """Returns points of mixed parameters as coordinates in [0, 1].

    A numeric parameter is scaled by its range over all points, on a logarithm if it is positive and
    spans a factor of 100 or more. For any other parameter each value is an axis of its own, so that two
    different values are 1 apart.

    Args:
        columns: One per parameter, each with a value per point.

    Returns:
        One row per point.
    """
    rows: list[list[float]] = [[] for _ in (columns[0] if columns else ())]
    for column in columns:
        numbers = [float(v) for v in column if _is_number(v)]
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
