"""Mends clones of restricted data by asking the expert for more labels, and counts how many it takes.

DAgger (Ross, Gordon & Bagnell 2011, algorithm 3.1, with beta_i = 0): the clone plays, the expert labels the
states that it comes to. DART (Laskey, Lee, Fox, Dragan & Goldberg 2017, algorithm 1): the expert plays, with
noise injected into its actions, and labels what it meant to do; the noise is what makes the clone's errors
most likely. For comparison the expert plays on as before, and as a control nobody is asked: clones that failed
are a selection, some of which would do better if they only learned again. After each round a new clone learns
from everything.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.cloning import expert_policies as expert
from cartpole.cloning import survival
from cartpole.cloning.behaviour_cloning import (
    CloneConfig,
    Clones,
    PairOrder,
    demonstrate,
    fit,
    new_clones,
)
from cartpole.cloning.demonstrations import RESTRICTIONS, Actor, Pairs, as_labelled, left, play
from cartpole.cloning.expert_policies import greedy
from cartpole.policy_gradient import networks
from cartpole.policy_gradient import seed_statistics as intervals
from cartpole.policy_gradient.env import MAX_STEPS, STATE, random_starts
from cartpole.policy_gradient.networks import Params
from runcatalog import record
from runcatalog.record import option

METHODS = ("dagger", "dart", "expert", "again")
LASTING = 3  # rounds in a row, as one may be luck: every clone learns anew
RESTRICTED = tuple(name for name, cut in RESTRICTIONS.items() if cut)


@dataclass(frozen=True)
class Config(CloneConfig):
    """Flags of `bc:dagger`, `bc:dart` and `bc:more`."""

    method: str = option("dagger", "who plays for the new labels; see above", choices=METHODS)
    rounds: int = option(20, "rounds of asking and learning", low=1, high=1000)
    labels: int = option(
        5, "labels of a round, for states of one episode drawn at random", low=1, high=MAX_STEPS
    )
    noise: float = option(
        0.0, "dart: probability of the other action; 0: the clone's own error", low=0, high=0.5
    )
    target: float = option(
        0.99, "share of starts at which a clone is whole", low=0, high=1, low_open=True
    )
    # The restricted data that a remedy starts from: as much as the source's clones saw.
    episodes: int = option(2000, "episodes that an expert plays; source: 2000", low=1, high=100_000)
    horizon: int = option(
        100, "pairs are an episode's first so many actions; source: 100", low=1, high=MAX_STEPS
    )
    limit: int = option(10_000, "restricted pairs to start with; source: 10000", low=1, high=10**7)
    updates: int = option(3000, "updates of each clone in each round", low=1, high=10**7)


def main(config: Config) -> dict[str, Any]:
    """Asks, learns, counts, and returns what the record says."""
    experts = expert.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        remedy = Remedy(experts.policies, config, run)
        starts = survival.held_out_starts(run.seeds, config.starts)
        for done in range(config.rounds + 1):
            clones = remedy.learn(done)
            remedy.look(done, survival.whole(survival.lifetimes(clones, starts)))
            if done < config.rounds:
                remedy.ask(done, clones)
            run.progress(done + 1, config.rounds + 1, "round")
        run.checkpoint(config.rounds, {f"clone.{n}": v for n, v in clones.items()}, {})
        return run.finish(remedy.result())


class Remedy:
    """The clones' growing data, and how they came along.

    Clones are stacked over (restriction, expert, order).

    Attributes:
        labels: Labels asked for so far, int [R].
        lasted: Shares of starts survived before and after each round, float64 [R] each.
        spent: `labels` at those times.
    """

    def __init__(self, experts: Params, config: Config, run: record.Run) -> None:
        self.config, self.run = config, run
        one = Clones.of(len(experts["w0"]), config.orders)
        many = len(RESTRICTED)
        self.clones = Clones(np.tile(one.experts, many), np.tile(one.orders, many))
        self.experts = networks.take(experts, self.clones.experts)
        total = config.limit + config.rounds * config.labels
        self._observations = np.zeros((len(self.clones), total, STATE), np.float32)
        self._labels = np.zeros((len(self.clones), total), bool)
        self._count = np.zeros(len(self.clones), np.int64)
        self._begin(demonstrate(experts, config, run.seeds), one)
        self.labels = np.zeros(len(self.clones), np.int64)
        self.flips = np.full(len(self.clones), config.noise)
        self.lasted: list[np.ndarray] = []
        self.spent: list[np.ndarray] = []
        self.env_steps = config.episodes * config.horizon * len(experts["w0"])

    def _begin(self, pairs: Pairs, one: Clones) -> None:
        """Gives every clone the restricted pairs that it starts from."""
        observations, labels = pairs.flat()
        clone = 0
        for name in RESTRICTED:
            indices = left(pairs, name, self.config.scale)
            for index, order in zip(one.experts, one.orders, strict=True):
                rng = self.run.seeds.generator(f"pair order of {index}", int(order))
                used = PairOrder(
                    indices[index],
                    rng,
                    shuffle=self.config.shuffle,
                    limit=self.config.limit,
                    episodes=(self.config.episodes, self.config.horizon),
                ).used
                self._add(clone, observations[index, used], labels[index, used])
                clone += 1

    def _add(self, clone: int, observations: np.ndarray, labels: np.ndarray) -> None:
        first, last = self._count[clone], self._count[clone] + len(labels)
        self._observations[clone, first:last] = observations
        self._labels[clone, first:last] = labels
        self._count[clone] = last

    def learn(self, done: int) -> Params:
        """New clones, trained on all that there is after `done` rounds."""
        params = new_clones(self.run.seeds, self.clones)
        orders = [
            PairOrder(np.arange(self._count[i]), self._rng("minibatches", i, done), shuffle=True)
            for i in range(len(self.clones))
        ]
        rows = np.arange(len(self.clones))
        fit(params, self._observations, self._labels, rows, orders, self.config)
        if done == 0 and self.config.method == "dart" and not self.config.noise:
            self.flips = self._errors_so_far(params)
        return params

    def ask(self, done: int, clones: Params) -> None:
        """One round: somebody plays an episode, the expert labels some of its states."""
        config = self.config
        if config.method == "again":
            return
        each = range(len(self.clones))
        starts = np.stack([random_starts(self._rng("asked", i, done), 1) for i in each])
        pairs = play(self.experts, starts, MAX_STEPS, self._actor(done, clones))
        observations, labels = pairs.flat()
        wrong = greedy(clones, observations) != labels
        new = np.zeros(len(self.clones), np.int64)
        for i in each:
            there = np.flatnonzero(pairs.happened[i])
            if len(there) > config.labels:
                there = self._rng("labelled", i, done).choice(there, config.labels, replace=False)
            self._add(i, observations[i, there], labels[i, there])
            new[i] = len(there)
            if config.method == "dart" and not config.noise:
                # The clone has not learned from these states: its errors on them are honest.
                self.flips[i] = wrong[i, there].mean()
        self.labels = self.labels + new
        self.env_steps += int(pairs.happened.sum())

    def _actor(self, done: int, clones: Params) -> Actor:
        config = self.config
        if config.method == "expert":
            return as_labelled
        if config.method == "dagger":
            return lambda observations, labels, step: greedy(clones, observations)
        each = range(len(self.clones))
        draws = [self._rng("noise", i, done).random((1, MAX_STEPS)) for i in each]
        flipped = np.stack(draws) < self.flips[:, None, None]
        return lambda observations, labels, step: labels ^ flipped[..., step]

    def _errors_so_far(self, clones: Params) -> np.ndarray:
        """Share of its own restricted pairs on which each clone differs from the expert, [R]."""
        there = np.arange(self._labels.shape[1]) < self._count[:, None]
        wrong = (greedy(clones, self._observations) != self._labels) & there
        return wrong.sum(1) / self._count

    def _rng(self, purpose: str, clone: int, done: int) -> np.random.Generator:
        """A clone's stream for a round; restrictions share it, so that they are compared in pairs."""
        index, order = self.clones.experts[clone], self.clones.orders[clone]
        return self.run.seeds.generator(f"{purpose} of {index}, order {order}", done)

    def look(self, done: int, shares: np.ndarray) -> None:
        """Notes how the clones do after `done` rounds."""
        self.lasted.append(shares)
        self.spent.append(self.labels)
        by_name = zip(RESTRICTED, *map(self._by_name, (shares, self.labels)), strict=True)
        for name, lasted, labels in by_name:
            told = {f"survival/{name}": lasted.mean(), f"labels/{name}": labels.mean()}
            if self.config.method == "dart":
                told["noise"] = self.flips.mean()
            self.run.log(told, done)
        self.run.event(
            f"round {done}: {self.labels.mean():.0f} labels, {100 * shares.mean():.1f} % survive"
        )

    def _by_name(self, values: np.ndarray) -> np.ndarray:
        """[R] as [restrictions, K, J]."""
        return values.reshape(len(RESTRICTED), -1, self.config.orders)

    def mended_in(self) -> np.ndarray:
        """Round in which each clone became whole, float64 [restrictions, clones]; 0 if it was, infinite if never."""
        found = first_whole(np.stack(self.lasted), self.config.target)
        return found.reshape(len(RESTRICTED), -1)

    def result(self) -> dict[str, Any]:
        """What the record says."""
        config, rounds = self.config, self.mended_in()
        broken = rounds[rounds > 0]
        mended = int(np.isfinite(broken).sum())
        final = self._by_name(self.lasted[-1])
        metrics = {"broken": broken.size, "mended": mended}
        for name, of, last in zip(RESTRICTED, self._cost(rounds), final, strict=True):
            metrics[f"survival/{name}"] = float(last.mean())
            for index, cost in enumerate(of):
                if np.isfinite(cost):
                    self.run.log({f"{self._unit}_needed/{name}": cost}, index)
        asked = f"{self.labels.mean():,.0f} labels" if self.labels.any() else "no label"
        return {
            "objective": {
                "name": "mended",
                "value": mended / broken.size if broken.size else 1.0,
                "kind": "rate",
                "count": broken.size or None,
                "goal": "max",
                "at": config.rounds,
                "axis": "round",
            },
            "summary": (
                f"{mended} of {broken.size} clones that failed from more than "
                f"{100 * (1 - config.target):g} % of {config.starts} starts are whole, and stay so for "
                f"{LASTING} rounds, after {_median(self._cost(broken))} {self._unit} (median); of all "
                f"{rounds.size}, {100 * self.lasted[0].mean():.1f} % of starts are survived before, "
                f"{100 * final.mean():.1f} % after {config.rounds} rounds and {asked}"
            ),
            "metrics": metrics,
            "table": self._table(rounds, final),
            "env_steps": self.env_steps,
        }

    @property
    def _unit(self) -> str:
        return "rounds" if self.config.method == "again" else "labels"

    def _cost(self, rounds: np.ndarray) -> np.ndarray:
        """What clones that became whole in these rounds were told by then: labels, or rounds without any."""
        if self.config.method == "again":
            return rounds
        spent = np.append(np.stack(self.spent).max(1), np.inf)
        return spent[np.where(np.isfinite(rounds), rounds, len(spent) - 1).astype(int)]

    def _table(self, rounds: np.ndarray, final: np.ndarray) -> dict[str, Any]:
        """A line for each restriction, for the catalog."""
        columns = ["restriction", "survive before", "broken", "mended"]
        columns += [f"{self._unit}, median of the broken", "survive after"]
        rows = []
        first = self._by_name(self.lasted[0])
        for name, of, before, after in zip(RESTRICTED, rounds, first, final, strict=True):
            broken = of[of > 0]
            cells = [name.replace("_", " "), f"{100 * before.mean():.1f} %"]
            cells += [f"{broken.size} of {of.size}", str(int(np.isfinite(broken).sum()))]
            rows.append([*cells, _median(self._cost(broken)), f"{100 * after.mean():.1f} %"])
        return {"columns": columns, "rows": rows}


def first_whole(lasted: np.ndarray, target: float) -> np.ndarray:
    """The round in which each clone became whole, float64 [R]: 0 if it was before, infinite if never.

    Args:
        lasted: Shares of starts survived, before and after each round, [rounds + 1, R].
        target: Share at which a clone is whole: at once, or after a round and the LASTING - 1 after it.
    """
    whole = lasted >= target
    found = np.full(lasted.shape[1], np.inf)
    for done in range(len(lasted) - LASTING, 0, -1):
        found[whole[done : done + LASTING].all(0)] = done
    found[whole[0]] = 0
    return found


def _median(needed: np.ndarray) -> str:
    """Median and its interval over clones: "987 [494, 1,487]"."""
    if not needed.size:
        return "no"
    values = (intervals.median(needed), *intervals.interval(needed.tolist()))
    middle, low, high = (f"{v:,.0f}" if np.isfinite(v) else "never" for v in values)
    return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
