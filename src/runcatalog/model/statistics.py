"""Intervals and clusters; of a few seeds in plain Python: a catalog is checked faster than numpy is imported."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution
RESAMPLES = 2000
LOW, HIGH = int(0.025 * RESAMPLES), int(0.975 * RESAMPLES) - 1  # ranks of the bounds among them
OFTEN = 50  # intervals of as many values, from which on numpy finds them
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
    if ordered[0] == ordered[-1]:
        return (math.fsum(ordered) / count,) * 2
    if count <= MANY:
        return _resamples(count, seed).interval(ordered)
    generator = _by_numpy(seed)
    means = []
    for _ in range(RESAMPLES):
        drawn = (generator.random_sample(count) * count).astype(int)
        means.append(math.fsum(map(ordered.__getitem__, drawn.tolist())) / count)
    means.sort()
    return means[LOW], means[HIGH]


@lru_cache(maxsize=32)
def _resamples(count: int, seed: int) -> _Resamples:
    """RESAMPLES draws of indices as random.Random makes them; of few values many are alike."""
    if count > FEW:
        places = _by_numpy(seed).random_sample((RESAMPLES, count)) * count
        return _Resamples(places.astype("H"), [1] * RESAMPLES)
    generator = random.Random(seed)
    draws = (generator.choices(range(count), k=count) for _ in range(RESAMPLES))
    drawn = Counter(tuple(sorted(draw)) for draw in draws)
    return _Resamples(list(drawn), list(drawn.values()))


def _by_numpy(seed: int) -> np.random.RandomState:
    """The generator random.Random(seed), of many numbers at once much faster."""
    import numpy as np

    state = random.Random(seed).getstate()[1]
    made = np.random.RandomState()
    made.set_state(("MT19937", state[:-1], state[-1]))
    return made


class _Resamples:
    """Draws of so many values, for the interval of the mean of any of them.

    Args:
        drawn: Indices of the values drawn, [draws, count].
        times: How often each was drawn, [draws].
    """

    def __init__(self, drawn: Sequence[Sequence[int]] | np.ndarray, times: Sequence[int]) -> None:
        self._drawn, self._times = drawn, times
        self._asked = 0

    def interval(self, ordered: Sequence[float]) -> tuple[float, float]:
        """Returns the bounds for some values, which are in order."""
        self._asked += 1
        # numpy takes as long to import as so many intervals of few values take without it.
        if (len(ordered) > FEW or self._asked > OFTEN) and (found := self._by_numpy(ordered)):
            return found
        means = []
        for place, times in enumerate(self._times):
            means += [self._mean(place, ordered)] * times
        means.sort()
        return means[LOW], means[HIGH]

    def _mean(self, place: int, ordered: Sequence[float]) -> float:
        drawn = self._drawn[place]
        return math.fsum(map(ordered.__getitem__, drawn)) / len(drawn)

    def _by_numpy(self, ordered: Sequence[float]) -> tuple[float, float] | None:
        """The same bounds to the bit: rounded sums tell which few draws may be the bounds."""
        import numpy as np

        drawn, times = self._arrays
        sums = np.array(ordered)[drawn].sum(axis=1)
        error = 1e-10 * max(-ordered[0], ordered[-1]) * len(ordered)
        if not (np.isfinite(sums).all() and 1e-300 < error < math.inf):
            return None
        order = np.argsort(sums)
        counted = np.cumsum(times[order])
        bounds = []
        for rank in (LOW, HIGH):
            near = sums[order[np.searchsorted(counted, rank, side="right")]]
            lower = int(times[sums < near - error].sum())
            means: list[float] = []
            for place in np.flatnonzero(np.abs(sums - near) <= error):
                means += [self._mean(place, ordered)] * int(times[place])
            means.sort()
            bounds.append(means[rank - lower])
        return bounds[0], bounds[1]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        return np.asarray(self._drawn), np.asarray(self._times)


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
