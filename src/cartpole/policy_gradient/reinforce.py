"""REINFORCE with four baselines: the update rule, for many runs in lockstep.

One update of one run, with policy pi(a | s; theta) and, for the algorithm "value", value network V(s; phi):

    play E episodes with a_t ~ pi(. | s_t; theta)                             Learner.collect
    G_t = r_t + gamma G_{t+1}                                                 returns_to_go
    A_t = G_t - b_t                                                           advantages
    L(theta) = -1/E sum_i 1/T_i sum_t (A_t log pi(a_t | s_t) + c H(pi(. | s_t)))     loss_gradient
    theta <- Adam(theta, dL/dtheta)
    phi   <- Adam(phi, d/dphi 1/E sum_i 1/T_i sum_t (V(s_t; phi) - G_t)^2)    "value" only

The baseline b_t is the only difference between the algorithms:

    vpg        0                                               Williams 1992
    mean       mean of G over the episode
    value      V(s_t), as it was before this update            Sutton & Barto, 2nd ed., section 13.4
    rloo       mean undiscounted return of the other episodes  Kool, van Hoof & Welling 2019; the source's code
    rloo_step  mean of G over the other steps of the episode   the source's formula

Arrays are [R, E, T]: runs, episodes of one update, steps. A run's result depends on its settings alone and
not on the other runs of the batch, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, STATE, random_starts
from cartpole.policy_gradient.networks import Adam, Shape
from cartpole.policy_gradient.rollout import Rollout, play, step_mask
from runcatalog.record import Seeds

ALGORITHMS = ("vpg", "mean", "value", "rloo", "rloo_step")
# The source takes a gradient step after every episode, and after ten with RLOO.
EPISODES_PER_UPDATE = {"vpg": 1, "mean": 1, "value": 1, "rloo": 10, "rloo_step": 10}
RESETS = ("fixed", "random")
TINY = 1e-8  # keeps a standard deviation above zero


@dataclass(frozen=True)
class RunSettings:
    """Settings of one run; `cartpole.policy_gradient.options` describes them.

    Attributes:
        algo: One of ALGORITHMS.
        seed: Seed of weights, start states and actions.
        lr: Step size of Adam, both networks.
        gamma: Discount factor.
        entropy: Entropy coefficient c.
        normalise: Whether advantages are standardised in each update.
        reset: "fixed": one start state for all episodes; "random": a new one for each episode.
    """

    algo: str
    seed: int
    lr: float
    gamma: float
    entropy: float
    normalise: bool
    reset: str


class Learner:
    """Runs of REINFORCE that are trained in lockstep.

    Args:
        settings: One per run.
        hidden: Widths of the hidden layers of policy and value network.
        episodes: E, episodes of one update, the same for all runs.

    Attributes:
        policy, value: Stacked parameters; `value` only of the runs in `value_rows`.
        updates: Number of updates so far.
    """

    def __init__(
        self, settings: Sequence[RunSettings], hidden: tuple[int, ...], episodes: int
    ) -> None:
        self.settings, self.episodes, self.updates = list(settings), episodes, 0
        seeds = [Seeds(run.seed) for run in settings]
        algorithms = np.array([run.algo for run in settings])
        self._rows = {
            name: np.flatnonzero(algorithms == name) for name in dict.fromkeys(algorithms)
        }
        self.value_rows = self._rows.get("value", np.array([], int))
        self._normalised = np.flatnonzero([run.normalise for run in settings])
        self._entropy = np.array([run.entropy for run in settings])
        lr = np.array([run.lr for run in settings])
        self._table = return_table(np.array([run.gamma for run in settings]), MAX_STEPS)
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
        # The start state of all episodes of a run with reset=fixed.
        self._fixed = np.stack([random_starts(rng, 1) for rng in self._starts])

    def collect(self) -> Rollout:
        """Play E episodes with each run's policy."""
        return play(self.policy, self._start_states(), self._draws())

    def update(self, rollout: Rollout) -> None:
        """Take one gradient step with each run; the rollout is that of the current policies."""
        runs, episodes, steps = rollout.actions.shape
        flat = (runs, episodes * steps)
        states = rollout.observations.reshape(*flat, STATE)
        weights = rollout.weights.reshape(flat)
        returns = returns_to_go(self._table, rollout.lengths, steps)
        values = self._update_value(states, returns, weights)
        advantage = self._advantages(returns, rollout.lengths, values)
        activated = networks.activations(self.policy, states)
        gradient = loss_gradient(
            activated[-1],
            rollout.actions.reshape(flat),
            advantage.reshape(flat),
            weights,
            self._entropy,
        )
        self._policy_adam.step(networks.gradients(self.policy, activated, gradient))
        self.updates += 1

    def _advantages(
        self, returns: np.ndarray, lengths: np.ndarray, values: np.ndarray | None
    ) -> np.ndarray:
        """Return A_t [R, E, T], each run by its own algorithm."""
        advantage = np.empty_like(returns)
        for algorithm, rows in self._rows.items():
            advantage[rows] = advantages(algorithm, returns[rows], lengths[rows], values)
        if len(rows := self._normalised):
            advantage[rows] = normalised(advantage[rows], lengths[rows])
        return advantage

    def _update_value(
        self, states: np.ndarray, returns: np.ndarray, weights: np.ndarray
    ) -> np.ndarray | None:
        """Take one step of the value networks towards the returns.

        Returns:
            V(s_t) before the step, float64 [R', E, T] of the runs in `value_rows`; None without any.
        """
        if self._value_adam is None:
            return None
        rows = self.value_rows
        activated = networks.activations(self.value, states[rows])
        error = activated[-1][..., 0] - returns[rows].reshape(len(rows), -1)
        gradient = (2 * weights[rows] * error).astype(np.float32)
        self._value_adam.step(networks.gradients(self.value, activated, gradient[..., None]))
        return activated[-1].reshape(returns[rows].shape).astype(np.float64)

    def _start_states(self) -> np.ndarray:
        """Return start states, float64 [R, E, 4]."""
        starts = np.repeat(self._fixed, self.episodes, axis=1)
        for run, (setting, rng) in enumerate(zip(self.settings, self._starts, strict=True)):
            if setting.reset == "random":
                starts[run] = random_starts(rng, self.episodes)
        return starts

    def _draws(self) -> np.ndarray:
        """Return uniform numbers for the actions, float64 [R, E, 500].

        Short episodes take as many as long ones: `restore` computes the stream's position from that.
        """
        draws = np.empty((len(self.settings), self.episodes, MAX_STEPS))
        for run, rng in enumerate(self._actions):
            rng.random(out=draws[run])
        return draws

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all weights by name, [R, …]."""
        policy = {f"policy.{name}": value for name, value in self.policy.items()}
        return policy | {f"value.{name}": value for name, value in self.value.items()}

    def state(self) -> dict[str, Any]:
        """Return what :meth:`restore` needs in addition to :meth:`tensors`."""
        state: dict[str, Any] = {"updates": self.updates, "policy": self._policy_adam.state()}
        return state | ({"value": self._value_adam.state()} if self._value_adam else {})

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Restore weights, optimizers and random streams of a learner with the same settings."""
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
            actions.bit_generator.advance(played * MAX_STEPS)
            if setting.reset == "random":
                starts.bit_generator.advance(played * STATE)


def return_table(gammas: np.ndarray, steps: int) -> np.ndarray:
    """Return the return with k steps to go, float64 [R, steps + 1]: G(0) = 0, G(k) = 1 + gamma G(k - 1).

    The reward is 1 per step, so that a return depends on the number of steps to go alone.
    """
    table = np.zeros((len(gammas), steps + 1))
    for k in range(1, steps + 1):
        table[:, k] = 1 + gammas * table[:, k - 1]
    return table


def returns_to_go(table: np.ndarray, lengths: np.ndarray, steps: int) -> np.ndarray:
    """Return discounted returns G_t [R, E, steps] of episodes with these lengths [R, E]."""
    steps_to_go = np.maximum(lengths[..., None] - np.arange(steps), 0)
    flat = steps_to_go.reshape(len(table), -1)
    return np.take_along_axis(table, flat, 1).reshape(steps_to_go.shape)


def advantages(
    algorithm: str, returns: np.ndarray, lengths: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """Return A_t = G_t - b_t of runs with the same algorithm, float64 [R, E, T]; 0 after an episode's end.

    Args:
        algorithm: One of ALGORITHMS.
        returns: G_t [R, E, T].
        lengths: T_i [R, E], also the undiscounted returns.
        values: V(s_t) [R, E, T], for "value".

    Raises:
        ValueError: The algorithm is unknown.
    """
    if algorithm == "vpg":
        return returns
    if algorithm == "mean":
        baseline = (time_sum(returns) / lengths)[..., None]
    elif algorithm == "value":
        assert values is not None
        baseline = values
    elif algorithm == "rloo":
        others = lengths.shape[1] - 1
        baseline = ((lengths.sum(1, keepdims=True) - lengths) / others)[..., None]
    elif algorithm == "rloo_step":
        others = np.maximum(lengths - 1, 1)[..., None]
        baseline = (time_sum(returns)[..., None] - returns) / others
    else:
        raise ValueError(f"unknown algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")
    return (returns - baseline) * step_mask(lengths, returns.shape[-1])


def normalised(advantage: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return advantages [R, E, T] with mean 0 and standard deviation 1 over all steps of a run's update.

    With "vpg", whose advantage is the return, this is the usual return normalisation.
    """
    mask = step_mask(lengths, advantage.shape[-1])
    count = lengths.sum(1)[:, None, None]
    mean = time_sum(time_sum(advantage))[:, None, None] / count
    centred = (advantage - mean) * mask
    variance = time_sum(time_sum(np.square(centred)))[:, None, None] / count
    return centred / (np.sqrt(variance) + TINY)


def time_sum(values: np.ndarray) -> np.ndarray:
    """Return the sum over the last axis, added in order: appended zeros do not change its rounding."""
    return values.cumsum(-1)[..., -1]


def loss_gradient(
    logits: np.ndarray,
    actions: np.ndarray,
    advantage: np.ndarray,
    weights: np.ndarray,
    entropy_coef: np.ndarray,
) -> np.ndarray:
    """Return the gradient of the loss with respect to the logits, float32 [R, N, 2].

    In torch this is (a test compares both)::

        pi = Categorical(logits=logits)
        loss = -(weights * (advantage * pi.log_prob(actions) + entropy_coef * pi.entropy())).sum()
        loss.backward()

    With two actions pi depends on d = logit_1 - logit_0 alone: p = sigmoid(d), dlog pi(a)/dd = a - p,
    dH/dd = -d p (1 - p).

    Args:
        logits: float32 [R, N, 2].
        actions: a_t, 0 or 1, [R, N].
        advantage: A_t, a constant of the loss, [R, N].
        weights: 1 / (E T_i), and 0 after an episode's end, [R, N].
        entropy_coef: c, [R].
    """
    difference = (logits[..., 1] - logits[..., 0]).astype(np.float64)
    probability = 1 / (1 + np.exp(-difference))
    spread = probability * (1 - probability)
    gradient = (probability - actions) * advantage + entropy_coef[:, None] * difference * spread
    gradient *= weights
    return np.stack([-gradient, gradient], axis=-1).astype(np.float32)
