"""Behaviour cloning: the update rule, for many clones in lockstep.

    state-action pairs (s, a) with a the expert's greedy action
    L(theta) = -1/B sum log pi(a | s; theta)     cross-entropy over a minibatch of B pairs
    theta <- Adam(theta, dL/dtheta)

A clone's data set and expert are given by index, so that one stack of data serves all clones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cartpole.cloning.options import CloneConfig
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Adam, Params, Shape
from cartpole.policy_gradient.reinforce import loss_gradient
from runcatalog import record

HIDDEN = (8, 4)  # widths of a clone's hidden layers, as in the source
_UPDATES_PER_CHUNK = 200  # updates whose indices are drawn together; limits memory


@dataclass(frozen=True)
class Clones:
    """Experts and orders of a list of clones.

    Attributes:
        experts: Index of the expert of each clone, int [R].
        orders: Index of the order of each clone, int [R].
    """

    experts: np.ndarray
    orders: np.ndarray

    @classmethod
    def product(cls, experts: int, orders: int) -> Clones:
        """Return all orders of all experts, expert after expert."""
        return cls(np.repeat(np.arange(experts), orders), np.tile(np.arange(orders), experts))

    def __len__(self) -> int:
        return len(self.experts)


class PairOrder:
    """Endless sequence of a clone's training pairs, pass after pass.

    Args:
        indices: The data set, in playing order.
        rng: Random numbers of the order.
        shuffle: True: pairs in random order, a new one in every pass. False: episodes in random order, the
            same in every pass, with the pairs of an episode as they were played.
        limit: Number of pairs in one pass, the first of the order; 0 for all.
        episodes: (episodes, horizon): index e * horizon + t is step t of episode e.

    Attributes:
        used: The pairs of one pass, int [n].
    """

    def __init__(
        self,
        indices: np.ndarray,
        rng: np.random.Generator,
        *,
        shuffle: bool,
        limit: int = 0,
        episodes: tuple[int, int] = (1, 1),
    ) -> None:
        if shuffle:
            ordered = rng.permutation(indices)
        else:
            rank = rng.permutation(episodes[0])
            ordered = indices[np.argsort(rank[indices // episodes[1]], kind="stable")]
        self.used = ordered[:limit] if limit else ordered
        self._rng, self._shuffle = rng, shuffle
        self._rest = self.used

    def take(self, count: int) -> np.ndarray:
        """Return the next indices, int [count]."""
        parts, missing = [], count
        while missing:
            if not len(self._rest):
                self._rest = self._rng.permutation(self.used) if self._shuffle else self.used
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return np.concatenate(parts)


def new_clones(seeds: record.Seeds, clones: Clones) -> Params:
    """Return untrained clones; the initial weights depend on expert and order alone, not on the data."""
    pairs = zip(clones.experts, clones.orders, strict=True)
    return networks.initial(
        Shape(HIDDEN),
        [seeds.generator(f"clone of {expert}", int(order)) for expert, order in pairs],
    )


def fit(
    params: Params,
    observations: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    orders: Sequence[PairOrder],
    config: CloneConfig,
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Train clones in place; every update is one Adam step of every clone.

    For one clone this equals a plain loop in torch over its minibatches with `cross_entropy`, `backward` and
    `torch.optim.Adam` (a test compares both).

    Args:
        params: Stacked parameters [R, …]; changed in place.
        observations, labels: Data sets, float32 [K, M, 4] and bool [K, M].
        rows: Index of the data set of each clone, int [R].
        orders: Order of the pairs of each clone.
        config: `updates`, `batch_size`, `lr`, `decay`, `standardise`.
        progress: Called with the number of completed updates.
    """
    scale = _input_scale(observations, rows, orders) if config.standardise else None
    adam = Adam(params, config.lr)
    initial_lr, size = adam.lr, config.batch_size
    data_sets = rows[:, None]
    weights = np.full((len(rows), size), 1 / size)
    no_entropy = np.zeros(len(rows))
    for first in range(0, config.updates, _UPDATES_PER_CHUNK):
        count = min(_UPDATES_PER_CHUNK, config.updates - first)
        chunk = np.stack([order.take(count * size) for order in orders])
        for update in range(count):
            minibatch = chunk[:, update * size : (update + 1) * size]
            if config.decay:
                adam.lr = initial_lr * (1 - (first + update) / config.updates)
            inputs = observations[data_sets, minibatch]
            if scale is not None:
                inputs = (inputs - scale.mean) / scale.deviation
            activated = networks.activations(params, inputs)
            # Cross-entropy is the policy-gradient loss with the label as action and advantage 1.
            with np.errstate(over="ignore"):  # a large logit: exp() is infinite, the probability 0
                gradient = loss_gradient(
                    activated[-1], labels[data_sets, minibatch], np.float64(1), weights, no_entropy
                )
            adam.step(networks.gradients(params, activated, gradient))
        if progress:
            progress(first + count)
    if scale is not None:
        scale.fold(params)
    record.check_finite(config.updates, params)


@dataclass(frozen=True)
class _InputScale:
    """Mean and standard deviation of each clone's pairs, float32 [R, 1, 4].

    States of a balanced pole are so close to zero that the biases alone decide which of the four units of the
    last hidden layer are active. In 1.5 % of untrained networks none is, and as many networks lose all of them
    in training: such a clone always takes the same action. Standardised inputs prevent that.
    """

    mean: np.ndarray
    deviation: np.ndarray

    def fold(self, params: Params) -> None:
        """Change networks for standardised inputs into equal networks for unscaled inputs."""
        params["w0"] /= self.deviation.swapaxes(1, 2)
        params["b0"] -= (self.mean @ params["w0"])[:, 0]


def _input_scale(
    observations: np.ndarray, rows: np.ndarray, orders: Sequence[PairOrder]
) -> _InputScale:
    data = [observations[row, order.used] for row, order in zip(rows, orders, strict=True)]
    mean = np.stack([inputs.mean(0, np.float64) for inputs in data])[:, None]
    deviation = np.stack([inputs.std(0, np.float64) for inputs in data])[:, None]
    return _InputScale(mean.astype(np.float32), np.maximum(deviation, 1e-6).astype(np.float32))
