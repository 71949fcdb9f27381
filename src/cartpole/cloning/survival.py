"""Survival: how long greedy policies balance the pole, and statistics over experts and orders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient import seed_statistics as statistics
from cartpole.policy_gradient.env import MAX_STEPS, CartPoleBatch, random_starts
from cartpole.policy_gradient.networks import Params
from runcatalog import record
from runcatalog.numbers import wilson


def lifetimes(policies: Params, starts: np.ndarray) -> np.ndarray:
    """Return the steps for which greedy policies balance the pole, at most 500.

    All starts of one policy are stepped together, and ended episodes are removed from the batch. Policies
    follow one after the other: their states fit the processor's cache, and early failures save time.

    Args:
        policies: Stacked parameters [R, …].
        starts: float64 [S, 4].

    Returns:
        int [R, S].
    """
    runs = len(policies["w0"])
    steps = np.zeros((runs, len(starts)), np.int64)
    for run in range(runs):
        policy = networks.take(policies, slice(run, run + 1))
        env = CartPoleBatch(len(starts))
        observed, columns = env.reset(starts), np.arange(len(starts))
        while len(columns):
            push_right = networks.greedy(policy, observed[None])[0]
            observed, terminated, truncated = env.step(push_right)
            if (terminated | truncated).any():
                steps[run, columns] = env.steps
                alive = env.alive
                columns, observed = columns[alive], observed[alive]
                env.keep(alive)
    return steps


def held_out_starts(seeds: record.Seeds, count: int) -> np.ndarray:
    """Return the start states of the test, float64 [count, 4]; no training episode begins there."""
    return random_starts(seeds.generator("test starts"), count)


def unused_starts(seeds: record.Seeds, count: int) -> np.ndarray:
    """Return start states for a test where `held_out_starts` decide something, float64 [count, 4]."""
    return random_starts(seeds.generator("test starts that decide nothing"), count)


def survival_rate(steps: np.ndarray) -> np.ndarray:
    """Return the share of starts from which the pole is balanced for 500 steps, [R] from lifetimes [R, S]."""
    return (steps == MAX_STEPS).mean(-1)


@dataclass(frozen=True)
class Shares:
    """Shares of starts survived, float64 [K, J] by name of the data set: K experts, J orders.

    The bootstrap draws experts, and orders within an expert. All names share the draws, because clones of two
    data sets with the same expert and order are a pair (equal initial weights, equal episodes).

    Attributes:
        by_name: The shares.
        count: Number of independent outcomes behind a mean: of starts, since all clones are tested on the same ones.
    """

    by_name: dict[str, np.ndarray]
    count: int

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Means over the resamples, [RESAMPLES] by name."""
        experts, orders = next(iter(self.by_name.values())).shape
        rng = np.random.default_rng(0)
        rows = rng.integers(experts, size=(statistics.RESAMPLES, experts, 1))
        columns = rng.integers(orders, size=(statistics.RESAMPLES, experts, orders))
        return {name: shares[rows, columns].mean((1, 2)) for name, shares in self.by_name.items()}

    def interval(self, name: str) -> tuple[float, float]:
        """Return the 95 % interval of a mean: percentiles over experts and orders, never narrower than Wilson's.

        Of one clone, or of clones with equal shares, the resamples are all equal, but other starts give another share.
        """
        low, high = np.quantile(self.resampled[name], statistics.LEVEL)
        least, most = wilson(float(self.by_name[name].mean()) * self.count, self.count)
        return min(float(low), least), max(float(high), most)

    def probability_below(self, left: str, right: str) -> float:
        """Return the share of resamples in which the mean of `left` is below that of `right`; ties count half."""
        a, b = self.resampled[left], self.resampled[right]
        return float((a < b).mean() + (a == b).mean() / 2)

    def most_frequent_order(self, names: list[str]) -> tuple[list[str], float]:
        """Return the most frequent order of the means, lowest first, and its share of the resamples."""
        means = self.resampled
        ranked = np.argsort(np.stack([means[n] for n in names], 1), axis=1, kind="stable")
        (best, count), *_ = Counter(map(tuple, ranked.tolist())).most_common(1)
        return [names[i] for i in best], count / len(ranked)

    def probability_of_order(self, names: list[str]) -> float:
        """Return the share of resamples in which the means strictly increase in this order."""
        means = np.stack([self.resampled[n] for n in names], 1)
        return float((np.diff(means, axis=1) > 0).all(1).mean())
