"""Behaviour cloning for many clones at once: flags, the order of the pairs, training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cartpole.cloning import survival
from cartpole.cloning.demonstrations import ACTING, Pairs, as_labelled, left, play, sampling
from cartpole.policy_gradient import algorithms, networks
from cartpole.policy_gradient.env import MAX_STEPS, random_starts
from cartpole.policy_gradient.networks import Adam, Params, Shape
from runcatalog import record
from runcatalog.record import option

# Updates whose pairs are gathered at once: memory against the cost of a call.
_CHUNK = 200


@dataclass(frozen=True)
class CloneConfig(record.Config):
    """Flags that all behaviour cloning shares. Defaults: what clones an expert whole."""

    experts: str = option("experts", "runs or checkpoints with the experts, separated by commas")
    episodes: int = option(400, "episodes that an expert plays; source: 2000", low=1, high=100_000)
    horizon: int = option(
        MAX_STEPS,
        "pairs are an episode's first so many actions; source: 100",
        low=1,
        high=MAX_STEPS,
    )
    acting: str = option(
        "greedy", "the expert's actions; labels are always greedy; source: see docs", choices=ACTING
    )
    scale: float = option(
        1.0, "factor of the restrictions' half-widths [1]; source: 1", low=0, low_open=True
    )
    limit: int = option(
        0, "pairs that are used, the first so many; 0: all; source: 10000", low=0, high=10_000_000
    )
    shuffle: bool = option(True, "pairs in random order, not as played; source: no")
    batch_size: int = option(50, "pairs in one update; source: 1", low=1, high=10_000)
    updates: int = option(10_000, "updates of each clone; source: 10000", low=1, high=10_000_000)
    lr: float = option(5e-3, "Adam's step size [1]; source: 1e-3", low=0, low_open=True, high=1)
    standardise: bool = option(
        True,
        "train on inputs with mean 0 and deviation 1, then fold that into the weights; source: no",
    )
    decay: bool = option(True, "step size falls linearly to zero; source: no")
    orders: int = option(3, "clones of one data set: order of pairs and first weights", low=1)
    starts: int = option(800, "random starts on which a clone is tested; source: 800", low=1)


@dataclass(frozen=True)
class Clones:
    """Who a list of clones learns from.

    Attributes:
        experts: Each clone's expert, int [R].
        orders: Each clone's order, int [R].
    """

    experts: np.ndarray
    orders: np.ndarray

    @classmethod
    def of(cls, experts: int, orders: int) -> Clones:
        """All orders of all experts, expert after expert."""
        return cls(np.repeat(np.arange(experts), orders), np.tile(np.arange(orders), experts))

    def __len__(self) -> int:
        return len(self.experts)


def demonstrate(experts: Params, config: CloneConfig, seeds: record.Seeds) -> Pairs:
    """The experts' episodes from random starts, [K, episodes, horizon]."""
    count = len(experts["w0"])
    starts = np.stack(
        [random_starts(seeds.generator("demonstrations", k), config.episodes) for k in range(count)]
    )
    actor = as_labelled
    if config.acting == "sampled":
        shape = (config.episodes, config.horizon)
        draws = [seeds.generator("demonstration actions", k).random(shape) for k in range(count)]
        actor = sampling(experts, np.stack(draws))
    return play(experts, starts, config.horizon, actor)


class PairOrder:
    """The endless sequence in which a clone sees its pairs, pass after pass.

    Args:
        indices: The data set, in playing order.
        rng: The order's random numbers.
        shuffle: Whether pairs come in random order, another in every pass. Otherwise episodes come in
            random order, the same in every pass, and the pairs of one as they were played.
        limit: Pairs of one pass, the first so many of the order; 0 for all.
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
        """The next indices, int [count]."""
        parts, missing = [], count
        while missing:
            if not len(self._rest):
                self._rest = self._rng.permutation(self.used) if self._shuffle else self.used
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return np.concatenate(parts)


def new_clones(seeds: record.Seeds, clones: Clones) -> Params:
    """Untrained clones; those of one expert and order are equal, whatever they are to learn."""
    drawn = zip(clones.experts, clones.orders, strict=True)
    return networks.initial(
        Shape(), [seeds.generator(f"clone of {expert}", int(order)) for expert, order in drawn]
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
    """Trains clones with cross-entropy, each update one Adam step of every clone.

    Args:
        params: Stacked parameters [R, …]; changed in place.
        observations, labels: Data sets, float32 [K, M, 4] and bool [K, M].
        rows: Each clone's data set, int [R].
        orders: Each clone's pairs.
        config: `updates`, `batch_size`, `lr`, `decay`.
        progress: Called with the number of updates made.
    """
    scale = _scale(observations, rows, orders) if config.standardise else None
    adam = Adam(params, config.lr)
    constant, size = adam.lr, config.batch_size
    which = rows[:, None]
    weights = np.full((len(rows), size), 1 / size)
    no_entropy = np.zeros(len(rows))
    for first in range(0, config.updates, _CHUNK):
        count = min(_CHUNK, config.updates - first)
        chosen = np.stack([order.take(count * size) for order in orders])
        for update in range(count):
            here = chosen[:, update * size : (update + 1) * size]
            if config.decay:
                adam.lr = constant * (1 - (first + update) / config.updates)
            inputs = observations[which, here]
            if scale is not None:
                inputs = (inputs - scale.mean) / scale.deviation
            activated = networks.activations(params, inputs)
            # Cross-entropy is the policy-gradient loss with the label as action and advantage 1.
            with np.errstate(over="ignore"):  # a sure clone: exp() is infinite, the probability 0
                slope = algorithms.policy_slope(
                    activated[-1], labels[which, here], np.float64(1), weights, no_entropy
                )
            adam.step(networks.gradients(params, activated, slope))
        if progress:
            progress(first + count)
    if scale is not None:
        scale.fold(params)
    record.check_finite(config.updates, params)


@dataclass(frozen=True)
class _Scale:
    """Mean and deviation of each clone's pairs, float32 [R, 1, 4].

    States of a balanced pole are so near zero that biases alone decide which of the four units of the last
    hidden layer are active. Of fresh networks 1.5 % have none, and as many lose theirs in training: such
    a clone knows one action only. With standardised inputs that does not happen.
    """

    mean: np.ndarray
    deviation: np.ndarray

    def fold(self, params: Params) -> None:
        """Makes networks for standardised inputs the same networks for plain ones."""
        params["w0"] /= self.deviation.swapaxes(1, 2)
        params["b0"] -= (self.mean @ params["w0"])[:, 0]


def _scale(observations: np.ndarray, rows: np.ndarray, orders: Sequence[PairOrder]) -> _Scale:
    used = [observations[row, order.used] for row, order in zip(rows, orders, strict=True)]
    mean = np.stack([each.mean(0, np.float64) for each in used])[:, None]
    deviation = np.stack([each.std(0, np.float64) for each in used])[:, None]
    return _Scale(mean.astype(np.float32), np.maximum(deviation, 1e-6).astype(np.float32))


@dataclass(frozen=True)
class Outcome:
    """Clones of every expert in every order, by what they learned from.

    Attributes:
        params: Trained parameters, stacked over (name, expert, order).
        pairs: What the experts played.
        left: Pairs that a restriction left of each expert's, int [K].
        used: Pairs that clones were trained on, int [K].
        lived: Steps survived, int [K, J, S].
    """

    params: Params
    pairs: Pairs
    left: dict[str, np.ndarray]
    used: dict[str, np.ndarray]
    lived: dict[str, np.ndarray]

    @cached_property
    def shares(self) -> survival.Shares:
        """Shares of starts that clones survive."""
        return survival.Shares({name: survival.whole(each) for name, each in self.lived.items()})


def clone(
    experts: Params,
    config: CloneConfig,
    run: record.Run,
    names: Sequence[str],
    *,
    equal: bool = False,
) -> Outcome:
    """Clones each expert from its pairs under each restriction, all clones in one batch.

    Args:
        experts: Stacked policies [K, …].
        config: Flags.
        run: Seeds, progress.
        names: Of `demonstrations.RESTRICTIONS`.
        equal: Cut all data sets of an expert down to the size of the smallest, so that they differ in
            coverage alone.

    Raises:
        RunFailed: A restriction leaves nothing.
    """
    pairs = demonstrate(experts, config, run.seeds)
    indices = {name: left(pairs, name, config.scale) for name in names}
    counts = {name: np.array([len(each) for each in found]) for name, found in indices.items()}
    limits = np.full(len(experts["w0"]), config.limit or pairs.labels[0].size)
    if equal:
        limits = np.minimum(limits, np.min(list(counts.values()), axis=0))
    clones = Clones.of(len(experts["w0"]), config.orders)
    orders = [
        PairOrder(
            indices[name][expert],
            # The same stream for every restriction: unshuffled, all see the same episodes first.
            run.seeds.generator(f"pair order of {expert}", int(order)),
            shuffle=config.shuffle,
            limit=int(limits[expert]),
            episodes=(config.episodes, config.horizon),
        )
        for name in names
        for expert, order in zip(clones.experts, clones.orders, strict=True)
    ]
    first = new_clones(run.seeds, clones)
    params = {name: np.concatenate([value] * len(names)) for name, value in first.items()}
    fit(
        params,
        *pairs.flat(),
        np.tile(clones.experts, len(names)),
        orders,
        config,
        progress=lambda done: run.progress(done, config.updates, "update"),
    )
    starts = survival.held_out_starts(run.seeds, config.starts)
    lived = survival.lifetimes(params, starts).reshape(len(names), -1, config.orders, config.starts)
    return Outcome(
        params,
        pairs,
        counts,
        {name: np.minimum(each, limits) for name, each in counts.items()},
        dict(zip(names, lived, strict=True)),
    )
