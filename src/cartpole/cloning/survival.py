"""How long greedy policies keep the pole up, and what their shares say over experts and orders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient import seed_statistics as intervals
from cartpole.policy_gradient.env import MAX_STEPS, STATE, CartPoleBatch, random_starts
from cartpole.policy_gradient.networks import Params
from runcatalog import record


def lifetimes(policies: Params, starts: np.ndarray) -> np.ndarray:
    """Steps that greedy policies keep the pole up, at most 500.

    All starts of a policy are stepped together and those that have ended dropped. Policy after policy:
    the states of one stay in the processor's cache, and one that falls early costs no more.

    Args:
        policies: Stacked parameters [R, …].
        starts: float64 [S, 4].

    Returns:
        int [R, S].
    """
    runs = len(policies["w0"])
    found = np.zeros((runs, len(starts)), np.int64)
    for run in range(runs):
        policy = networks.take(policies, slice(run, run + 1))
        env = CartPoleBatch(len(starts))
        seen, where = env.reset(starts), np.arange(len(starts))
        while len(where):
            logits = networks.forward(policy, seen[None])[0]
            seen, terminated, truncated = env.step(logits[:, 1] > logits[:, 0])
            if (terminated | truncated).any():
                found[run, where] = env.steps
                going = env.alive
                where, seen = where[going], seen[going]
                env.keep(going)
    return found


def held_out_starts(seeds: record.Seeds, count: int) -> np.ndarray:
    """The start states on which clones are reported, float64 [count, 4]; none is trained on."""
    return random_starts(seeds.generator("test starts"), count).reshape(-1, STATE)


def whole(lived: np.ndarray) -> np.ndarray:
    """Share of starts from which the pole is still up after 500 steps: [R] from [R, S]."""
    return (lived == MAX_STEPS).mean(-1)


@dataclass(frozen=True)
class Shares:
    """Shares of starts survived, by name of what was learned from: float64 [K, J] each.

    K experts are a sample of experts, and the J orders of each a sample of what else is random. The
    bootstrap draws experts, and for each one orders; the same ones for every name, since clones of two
    data sets with the same expert and order are a pair (equal first weights, equal episodes).
    """

    of: dict[str, np.ndarray]

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Means over a resample, [RESAMPLES] by name."""
        experts, orders = next(iter(self.of.values())).shape
        rng = np.random.default_rng(0)
        rows = rng.integers(experts, size=(intervals.RESAMPLES, experts, 1))
        columns = rng.integers(orders, size=(intervals.RESAMPLES, experts, orders))
        return {name: shares[rows, columns].mean((1, 2)) for name, shares in self.of.items()}

    def interval(self, name: str) -> tuple[float, float]:
        """95 % percentile interval of the mean."""
        low, high = np.quantile(self.resampled[name], intervals.LEVEL)
        return float(low), float(high)

    def less(self, left: str, right: str) -> float:
        """Share of resamples in which the mean of `left` is below that of `right`, ties half."""
        means = self.resampled
        a, b = means[left], means[right]
        return float((a < b).mean() + (a == b).mean() / 2)

    def order(self, names: list[str]) -> tuple[list[str], float]:
        """The most frequent order of some means, worst first, and its share of resamples."""
        means = self.resampled
        ranked = np.argsort(np.stack([means[n] for n in names], 1), axis=1, kind="stable")
        (best, count), *_ = Counter(map(tuple, ranked.tolist())).most_common(1)
        return [names[i] for i in best], count / len(ranked)

    def ordered(self, names: list[str]) -> float:
        """Share of resamples in which the means are in exactly this order, worst first."""
        means = np.stack([self.resampled[n] for n in names], 1)
        return float((np.diff(means, axis=1) > 0).all(1).mean())
