"""Statistics over seeds: medians, interquartile means, performance profiles and orders, with intervals.

Follows Agarwal, Schwarzer, Castro, Courville & Bellemare, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021 (rliable): percentile bootstrap over runs, interquartile mean, performance
profile. With one task, their stratified bootstrap has one stratum. All intervals are 95 %; the resampling has a
fixed seed of its own, so the same numbers give the same intervals. A run without a plateau has infinity as its
number of episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = (0.025, 0.975)


def median(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the median; it is infinite if one of the two middle values is."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    return (np.take(ordered, (count - 1) // 2, axis) + np.take(ordered, count // 2, axis)) / 2


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the interquartile mean; a quarter of the values, rounded down, is cut at both ends."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    middle = np.arange(count // 4, count - count // 4)
    return np.take(ordered, middle, axis=axis).mean(axis)


def resampled(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return resamples with replacement, [RESAMPLES, n], of values [n]."""
    rng = np.random.default_rng(seed)
    return values[rng.integers(len(values), size=(RESAMPLES, len(values)))]


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] = median
) -> tuple[float, float]:
    """Return the percentile bootstrap interval (Efron 1979) of a statistic over seeds.

    Its ends are values of the statistic and not interpolated, so that infinite values are allowed.
    """
    return percentile_interval(statistic(resampled(np.sort(np.asarray(values, float)))))


def percentile_interval(statistics: np.ndarray) -> tuple[float, float]:
    """Return the ends of the percentile interval of a statistic's resamples, which are values of it."""
    ordered = np.sort(statistics)
    low, high = (round(level * (len(ordered) - 1)) for level in LEVEL)
    return float(ordered[low]), float(ordered[high])


def paired_difference(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """Return the median of `second` minus that of `first`, and its percentile bootstrap interval.

    Every resample draws the same seeds for both, because runs with the same seed share initial weights and start
    states. The difference of two infinite medians is 0.

    Args:
        first, second: One number per seed, of the same seeds.
    """
    seeds = np.arange(len(first))

    def difference(rows: np.ndarray) -> np.ndarray:
        before, after = (median(np.asarray(values, float)[rows]) for values in (first, second))
        with np.errstate(invalid="ignore"):
            return np.where(before == after, 0.0, after - before)

    return float(difference(seeds)), percentile_interval(difference(resampled(seeds)))


def performance_profile(
    scores: Sequence[float], thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of seeds whose score exceeds each threshold.

    Returns:
        Shares [k] and their pointwise bootstrap interval [2, k].
    """
    ordered = np.sort(np.asarray(scores, float))
    taus = np.asarray(thresholds)
    samples = resampled(ordered)
    shares = np.stack([(samples > tau).mean(1) for tau in taus], axis=1)
    return (ordered[:, None] > taus).mean(0), np.quantile(shares, LEVEL, axis=0)


def most_frequent_order(groups: dict[str, Sequence[float]]) -> tuple[list[str], float]:
    """Return the most frequent order of the groups' medians over the bootstrap, smallest first, and its share.

    Groups are resampled independently: the same seed of two algorithms shares only its start state and initial
    weights. Groups with infinite medians are equal and keep the given order.

    Args:
        groups: One number per seed by name, at least one group.

    Returns:
        Names, and the share of resamples with exactly this order.
    """
    names = list(groups)
    medians = np.stack(
        [median(resampled(np.sort(np.asarray(groups[n], float)), i)) for i, n in enumerate(names)],
        axis=1,
    )
    ranked = np.argsort(medians, axis=1, kind="stable")
    (best, count), *_ = Counter(map(tuple, ranked.tolist())).most_common(1)
    return [names[i] for i in best], count / RESAMPLES
