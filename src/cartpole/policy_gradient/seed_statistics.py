"""What 20 seeds allow to say: medians, shares, interquartile means, profiles and orders, with intervals.

In the manner of Agarwal, Schwarzer, Castro, Courville & Bellemare, "Deep Reinforcement Learning at the Edge
of the Statistical Precipice", NeurIPS 2021 (rliable): percentile bootstrap over runs, interquartile mean,
performance profile. There is one task, so that their stratified bootstrap has one stratum. All intervals are 95 %;
the resampling has its own fixed seed: the same numbers give the same intervals. A run that never reached its plateau
has infinity as its number of episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = (0.025, 0.975)


def median(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Median; infinite where one of the two middle values is."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    return (np.take(ordered, (count - 1) // 2, axis) + np.take(ordered, count // 2, axis)) / 2


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean: of the middle half; a quarter of the values, rounded down, is cut at each end."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    middle = np.arange(count // 4, count - count // 4)
    return np.take(ordered, middle, axis=axis).mean(axis)


def resampled(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Resamples with replacement, [RESAMPLES, n], of values [n]."""
    rng = np.random.default_rng(seed)
    return values[rng.integers(len(values), size=(RESAMPLES, len(values)))]


def interval(
    values: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] = median
) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron 1979) of a statistic over seeds.

    Its ends are values that the statistic took, so that infinity is no difficulty.
    """
    found = np.sort(statistic(resampled(np.sort(np.asarray(values, float)))))
    low, high = (round(level * (len(found) - 1)) for level in LEVEL)
    return float(found[low]), float(found[high])


def profile(scores: Sequence[float], thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Performance profile: the share of seeds that score more than each threshold.

    Returns:
        Shares [k] and their pointwise bootstrap interval [2, k].
    """
    ordered = np.sort(np.asarray(scores, float))
    taus = np.asarray(thresholds)
    draws = np.sort(resampled(ordered), axis=1)
    shares = np.stack([(draws > tau).mean(1) for tau in taus], axis=1)
    return (ordered[:, None] > taus).mean(0), np.quantile(shares, LEVEL, axis=0)


def order(groups: dict[str, Sequence[float]]) -> tuple[list[str], float]:
    """The most frequent order of the groups' medians, smallest first, over the bootstrap, and its share.

    Groups are resampled one by one: the same seed under two algorithms shares no more than its start
    state and initial weights. Groups with infinite medians are equal, and told in the order given.

    Args:
        groups: One number per seed by name, at least one group.

    Returns:
        Names, and the probability of that very order.
    """
    names = list(groups)
    medians = np.stack(
        [median(resampled(np.sort(np.asarray(groups[n], float)), i)) for i, n in enumerate(names)],
        axis=1,
    )
    ranked = np.argsort(medians, axis=1, kind="stable")
    (best, count), *_ = Counter(map(tuple, ranked.tolist())).most_common(1)
    return [names[i] for i in best], count / RESAMPLES
