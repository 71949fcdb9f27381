"""DAgger, DART and two comparisons: rounds of new labels for clones of restricted data.

    D <- restricted pairs of the expert
    for round in 0, 1, …:
        theta <- new clone, trained on D                                   DataAggregation.train
        play one episode:                                                  DataAggregation.query
            dagger  with the clone's actions        Ross, Gordon & Bagnell 2011, algorithm 3.1 with beta_i = 0
            dart    with the expert's actions, each replaced by the other one with probability epsilon
                                                    Laskey, Lee, Fox, Dragan & Goldberg 2017, algorithm 1
            expert  with the expert's actions
            again   no episode, no labels: a control for training again
        D <- D + states of the episode, drawn at random, with the expert's labels

With two actions DART's noise has one parameter: its maximum-likelihood value is the clone's error rate on the
newest labels, on which it was not trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cartpole.cloning.behaviour_cloning import Clones, PairOrder, fit, new_clones
from cartpole.cloning.demonstrations import (
    RESTRICTIONS,
    Actor,
    demonstrate,
    expert_actor,
    play,
    selected,
)
from cartpole.cloning.options import CloneConfig
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, STATE, random_starts
from cartpole.policy_gradient.networks import Params
from runcatalog.record import Seeds, UserError, option

METHODS = ("dagger", "dart", "expert", "again")
RESTRICTED = tuple(name for name, restriction in RESTRICTIONS.items() if restriction)


@dataclass(frozen=True)
class DaggerConfig(CloneConfig):
    """Flags of rounds of new labels."""

    method: str = option(
        "dagger", "who plays for the new labels; see cartpole.cloning.dagger", choices=METHODS
    )
    rounds: int = option(
        20, "rounds of new labels and training; a success has to last for three", low=3, high=1000
    )
    labels: int = option(
        5, "labels of a round, for random states of one episode", low=1, high=MAX_STEPS,
        unless={"method": "again"},
    )  # fmt: skip
    noise: float = option(
        0.0, "dart: probability of the other action; 0: the clone's error rate", low=0, high=0.5
    )
    target: float = option(
        0.99, "share of starts that a successful clone survives", low=0, high=1, low_open=True
    )
    # Initial data: as many pairs as the source's clones are trained on.
    episodes: int = option(2000, "episodes that an expert plays; source: 2000", low=1, high=100_000)
    horizon: int = option(
        100,
        "pairs are taken from an episode's first steps, this many; source: 100",
        low=1,
        high=MAX_STEPS,
    )
    limit: int = option(10_000, "restricted pairs to start with; source: 10000", low=1, high=10**7)
    updates: int = option(3000, "updates of each clone in each round", low=1, high=10**7)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and self.method != "dart":
            raise UserError(f"--noise: method={self.method} replaces no action; only dart does")


class DataAggregation:
    """The growing data sets of clones, stacked over (restriction, expert, order).

    Args:
        experts: Stacked policies [K, …].
        config: Flags.
        seeds: Of the run.

    Attributes:
        clones: Expert and order of each clone.
        labels: New labels so far, int [R].
        noise: DART's epsilon of each clone, float64 [R].
        env_steps: Environment steps so far.
    """

    def __init__(self, experts: Params, config: DaggerConfig, seeds: Seeds) -> None:
        self._config, self._seeds = config, seeds
        clones = Clones.product(len(experts["w0"]), config.orders)
        count = len(RESTRICTED)
        self.clones = Clones(np.tile(clones.experts, count), np.tile(clones.orders, count))
        self._experts = networks.take(experts, self.clones.experts)
        capacity = config.limit + config.rounds * config.labels
        self._observations = np.zeros((len(self.clones), capacity, STATE), np.float32)
        self._labels = np.zeros((len(self.clones), capacity), bool)
        self._count = np.zeros(len(self.clones), np.int64)
        self.env_steps = self._add_restricted_pairs(experts, clones)
        self.labels = np.zeros(len(self.clones), np.int64)
        self.noise = np.full(len(self.clones), config.noise)

    def _add_restricted_pairs(self, experts: Params, clones: Clones) -> int:
        """Fill the data sets with the restricted pairs of the experts; return the steps of their episodes."""
        pairs = demonstrate(experts, self._config, self._seeds)
        observations, labels = pairs.flat()
        clone = 0
        for name in RESTRICTED:
            indices = selected(pairs, name, self._config.scale)
            for expert, order in zip(clones.experts, clones.orders, strict=True):
                used = PairOrder(
                    indices[expert],
                    self._seeds.generator(f"pair order of {expert}", int(order)),
                    shuffle=self._config.shuffle,
                    limit=self._config.limit,
                    episodes=(self._config.episodes, self._config.horizon),
                ).used
                self._add(clone, observations[expert, used], labels[expert, used])
                clone += 1
        return int(pairs.valid.sum())

    def data_set(self, clone: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a clone's observations [n, 4] and labels [n], oldest first."""
        count = self._count[clone]
        return self._observations[clone, :count], self._labels[clone, :count]

    def _add(self, clone: int, observations: np.ndarray, labels: np.ndarray) -> None:
        first, last = self._count[clone], self._count[clone] + len(labels)
        self._observations[clone, first:last] = observations
        self._labels[clone, first:last] = labels
        self._count[clone] = last

    def train(self, round_: int) -> Params:
        """Return new clones, trained on all data after `round_` rounds."""
        params = new_clones(self._seeds, self.clones)
        orders = [
            PairOrder(
                np.arange(self._count[clone]), self.rng("minibatches", clone, round_), shuffle=True
            )
            for clone in range(len(self.clones))
        ]
        rows = np.arange(len(self.clones))
        fit(params, self._observations, self._labels, rows, orders, self._config)
        if round_ == 0 and self._config.method == "dart" and not self._config.noise:
            self.noise = self._training_errors(params)
        return params

    def query(self, round_: int, clones: Params) -> None:
        """Play one episode per clone and add some of its states with the expert's labels."""
        config = self._config
        if config.method == "again":
            return
        indices = range(len(self.clones))
        starts = np.stack([random_starts(self.rng("asked", i, round_), 1) for i in indices])
        pairs = play(self._experts, starts, MAX_STEPS, self._actor(round_, clones))
        observations, labels = pairs.flat()
        wrong = networks.greedy(clones, observations) != labels
        added = np.zeros(len(self.clones), np.int64)
        for i in indices:
            states = np.flatnonzero(pairs.valid[i])
            if len(states) > config.labels:
                states = self.rng("labelled", i, round_).choice(
                    states, config.labels, replace=False
                )
            self._add(i, observations[i, states], labels[i, states])
            added[i] = len(states)
            if config.method == "dart" and not config.noise:
                # The clone was not trained on these states, so this is an unbiased error rate.
                self.noise[i] = wrong[i, states].mean()
        self.labels = self.labels + added
        self.env_steps += int(pairs.valid.sum())

    def _actor(self, round_: int, clones: Params) -> Actor:
        """Return who plays the episodes of a round."""
        if self._config.method == "expert":
            return expert_actor
        if self._config.method == "dagger":
            return lambda observations, labels, step: networks.greedy(clones, observations)
        indices = range(len(self.clones))
        draws = [self.rng("noise", i, round_).random((1, MAX_STEPS)) for i in indices]
        replaced = np.stack(draws) < self.noise[:, None, None]
        return lambda observations, labels, step: labels ^ replaced[..., step]

    def _training_errors(self, clones: Params) -> np.ndarray:
        """Return the error rates of clones on their own data sets, [R]."""
        mask = np.arange(self._labels.shape[1]) < self._count[:, None]
        wrong = (networks.greedy(clones, self._observations) != self._labels) & mask
        return wrong.sum(1) / self._count

    def rng(self, purpose: str, clone: int, round_: int) -> np.random.Generator:
        """Return a clone's random stream for a round; restrictions share it, so that they can be compared in pairs."""
        expert, order = self.clones.experts[clone], self.clones.orders[clone]
        return self._seeds.generator(f"{purpose} of {expert}, order {order}", round_)
