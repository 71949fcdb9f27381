"""Many independent runs of policy gradients in lockstep: all play, then all take one step.

A run's result depends on its own setting and seed, not on the runs beside it, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.policy_gradient import algorithms, networks
from cartpole.policy_gradient.env import MAX_STEPS, STATE, CartPoleBatch, random_starts
from cartpole.policy_gradient.networks import BLOCK, Adam, Params, Shape
from runcatalog.record import Seeds

RESETS = ("fixed", "random")
# Finished runs are dropped from a round when they are this share of those still played: copying the
# parameters of the rest costs about what ten steps cost.
DROP = 0.2


@dataclass(frozen=True)
class Setting:
    """One run: what is learned with which flags; see `cartpole.train.Config`."""

    algo: str
    seed: int
    lr: float = 1e-3
    gamma: float = 0.99
    entropy: float = 0.0
    normalise: bool = False
    reset: str = "fixed"


@dataclass(frozen=True)
class Rollout:
    """One round of all runs, time padded to a multiple of BLOCK.

    Attributes:
        observations: float32 [R, E, T, 4].
        actions: bool [R, E, T].
        lengths: Steps of each episode, int [R, E].
    """

    observations: np.ndarray
    actions: np.ndarray
    lengths: np.ndarray


def play(policy: Params, starts: np.ndarray, draws: np.ndarray) -> Rollout:
    """Plays one episode from each start with sampled actions.

    Action 1 is taken where a draw is below its probability; the comparison is made on the logits'
    side, u < sigmoid(d) if and only if log(u / (1 - u)) < d.

    Args:
        policy: Stacked parameters of R policies.
        starts: Start states, float64 [R, E, 4].
        draws: Uniform numbers, float64 [R, E, 500].
    """
    runs, episodes = starts.shape[:2]
    with np.errstate(divide="ignore"):
        noise = np.log(draws) - np.log1p(-draws)
    noise = np.ascontiguousarray(noise.transpose(2, 0, 1))  # one contiguous block a step
    observations = np.zeros((MAX_STEPS, runs, episodes, STATE), np.float32)
    actions = np.zeros((MAX_STEPS, runs, episodes), bool)
    lengths = np.zeros((runs, episodes), np.int64)
    env = CartPoleBatch(runs * episodes)
    seen = env.reset(starts.reshape(-1, STATE)).reshape(runs, episodes, STATE)
    live: np.ndarray | slice = slice(None)
    count = step = 0
    count = runs
    while count:
        logits = networks.forward(policy, seen)
        pushed = (logits[..., 1] - logits[..., 0]) > noise[step]
        observations[step, live], actions[step, live] = seen, pushed
        seen, *ended = env.step(pushed.ravel())
        seen = seen.reshape(count, episodes, STATE)
        step += 1
        if not (ended[0] | ended[1]).any():
            continue
        going = env.alive.reshape(count, episodes).any(1)
        if (left := int(going.sum())) and left > (1 - DROP) * count:
            continue
        lengths[live] = env.steps.reshape(count, episodes)
        rows = np.flatnonzero(going)
        live = np.arange(runs)[live][rows]
        policy, noise = networks.take(policy, rows), noise[:, rows]
        seen, count = seen[rows], left
        env.keep(np.repeat(going, episodes))
    padded = step + -step % BLOCK
    return Rollout(
        np.ascontiguousarray(observations[:padded].transpose(1, 2, 0, 3)),
        np.ascontiguousarray(actions[:padded].transpose(1, 2, 0)),
        lengths,
    )


class Learner:
    """Policy gradients for a list of settings.

    Args:
        settings: One per run.
        hidden: Widths of the hidden layers of policy and value network.
        episodes: Episodes of one update, the same for all runs.

    Attributes:
        policy, value: Stacked parameters; `value` is that of the runs in `value_rows` alone.
        updates: Updates made so far.
    """

    def __init__(
        self, settings: Sequence[Setting], hidden: tuple[int, ...] = (8, 4), episodes: int = 1
    ) -> None:
        self.settings, self.episodes, self.updates = list(settings), episodes, 0
        seeds = [Seeds(each.seed) for each in settings]
        named = np.array([each.algo for each in settings])
        self._rows = {name: np.flatnonzero(named == name) for name in dict.fromkeys(named)}
        self.value_rows = self._rows.get("value", np.array([], int))
        self._normalised = np.flatnonzero([each.normalise for each in settings])
        self._entropy = np.array([each.entropy for each in settings])
        lr = np.array([each.lr for each in settings])
        gammas = np.array([each.gamma for each in settings])
        self._table = algorithms.return_table(gammas, MAX_STEPS)
        self.policy = networks.initial(Shape(hidden), [s.generator("policy") for s in seeds])
        self._policy_adam = Adam(self.policy, lr)
        self.value = (
            networks.initial(
                Shape(hidden, outputs=1), [seeds[r].generator("value") for r in self.value_rows]
            )
            if len(self.value_rows)
            else {}
        )
        self._value_adam = Adam(self.value, lr[self.value_rows]) if self.value else None
        self._starts = [s.generator("starts") for s in seeds]
        self._actions = [s.generator("actions") for s in seeds]
        # The one start state of a run with reset=fixed, in every episode.
        self._fixed = np.stack([random_starts(rng, 1) for rng in self._starts])

    def update(self) -> np.ndarray:
        """Plays one round, takes one step with each run; returns the episodes' lengths [R, E]."""
        rollout = play(self.policy, self._start_states(), self._draws())
        runs, episodes, steps = rollout.actions.shape
        lengths, flat = rollout.lengths, (runs, episodes * steps)
        happened = algorithms.mask(lengths, steps)
        weights = (happened / (episodes * lengths[..., None])).reshape(flat)
        inputs = rollout.observations.reshape(*flat, STATE)
        returns = algorithms.returns_to_go(self._table, lengths, steps)
        values = self._update_value(inputs, returns, weights)
        advantage = np.empty_like(returns)
        for name, rows in self._rows.items():
            advantage[rows] = algorithms.advantages(name, returns[rows], lengths[rows], values)
        if len(rows := self._normalised):
            advantage[rows] = algorithms.normalised(advantage[rows], lengths[rows])
        activated = networks.activations(self.policy, inputs)
        slope = algorithms.policy_slope(
            activated[-1],
            rollout.actions.reshape(flat),
            advantage.reshape(flat),
            weights,
            self._entropy,
        )
        self._policy_adam.step(networks.gradients(self.policy, activated, slope))
        self.updates += 1
        return lengths

    def _update_value(
        self, inputs: np.ndarray, returns: np.ndarray, weights: np.ndarray
    ) -> np.ndarray | None:
        """One step of the value networks towards the returns; the values [R', E, T] before it."""
        if self._value_adam is None:
            return None
        rows = self.value_rows
        activated = networks.activations(self.value, inputs[rows])
        error = activated[-1][..., 0] - returns[rows].reshape(len(rows), -1)
        slope = (2 * weights[rows] * error).astype(np.float32)
        self._value_adam.step(networks.gradients(self.value, activated, slope[..., None]))
        return activated[-1].reshape(returns[rows].shape).astype(np.float64)

    def _start_states(self) -> np.ndarray:
        """float64 [R, E, 4]."""
        starts = np.repeat(self._fixed, self.episodes, axis=1)
        for run, (setting, rng) in enumerate(zip(self.settings, self._starts, strict=True)):
            if setting.reset == "random":
                starts[run] = random_starts(rng, self.episodes)
        return starts

    def _draws(self) -> np.ndarray:
        """float64 [R, E, 500]: as many for short episodes, so that a stream's position is known."""
        drawn = np.empty((len(self.settings), self.episodes, MAX_STEPS))
        for run, rng in enumerate(self._actions):
            rng.random(out=drawn[run])
        return drawn

    def tensors(self) -> dict[str, np.ndarray]:
        """All weights by name, [R, …]."""
        policy = {f"policy.{name}": value for name, value in self.policy.items()}
        return policy | {f"value.{name}": value for name, value in self.value.items()}

    def state(self) -> dict[str, Any]:
        """What, with :meth:`tensors`, :meth:`restore` needs."""
        found: dict[str, Any] = {"updates": self.updates, "policy": self._policy_adam.state()}
        return found | ({"value": self._value_adam.state()} if self._value_adam else {})

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Goes on where a learner of the same settings was; the random streams too."""
        for name, value in tensors.items():
            network, _, key = name.partition(".")
            {"policy": self.policy, "value": self.value}[network][key][...] = np.asarray(value)
        self._policy_adam.restore(state["policy"])
        if self._value_adam:
            self._value_adam.restore(state["value"])
        self.updates = int(state["updates"])
        played = self.updates * self.episodes
        for setting, starts, actions in zip(
            self.settings, self._starts, self._actions, strict=True
        ):
            actions.bit_generator.advance(played * MAX_STEPS)  # type: ignore[attr-defined]
            if setting.reset == "random":
                starts.bit_generator.advance(played * STATE)  # type: ignore[attr-defined]
