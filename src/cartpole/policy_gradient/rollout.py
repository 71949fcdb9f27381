"""Rollouts: whole episodes of many policies with sampled actions, played in lockstep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, STATE, CartPoleBatch
from cartpole.policy_gradient.networks import BLOCK, Params

# Finished runs are removed from the batch once they are this share of it: copying the parameters of the
# others costs about as much as ten steps.
REMOVED_SHARE = 0.2


@dataclass(frozen=True)
class Rollout:
    """E episodes of each of R runs; time is padded to a multiple of BLOCK.

    Attributes:
        observations: s_t, float32 [R, E, T, 4]; zeros after an episode's end.
        actions: a_t, bool [R, E, T].
        lengths: T_i, steps of each episode, int [R, E]. The reward is 1 per step, so this is also the
            undiscounted return.
    """

    observations: np.ndarray
    actions: np.ndarray
    lengths: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """1 / (E T_i) for the steps of episode i and 0 after its end, float64 [R, E, T]."""
        _, episodes, steps = self.actions.shape
        return step_mask(self.lengths, steps) / (episodes * self.lengths[..., None])


def step_mask(lengths: np.ndarray, steps: int) -> np.ndarray:
    """Return which steps belong to an episode, bool [R, E, steps], from lengths [R, E]."""
    return np.arange(steps) < lengths[..., None]


def play(policy: Params, starts: np.ndarray, draws: np.ndarray) -> Rollout:
    """Play one episode from each start state with sampled actions.

    For one run and one episode this equals (a test compares both)::

        env.state = start
        for u in draws:
            action = u < softmax(policy(observation))[1]
            observation, ended = env.step(action)
            if ended:
                break

    u < sigmoid(d) is evaluated as log(u / (1 - u)) < d with d the difference of the logits, so that one
    logarithm per draw replaces one exponential per step.

    Args:
        policy: Stacked parameters of R policies.
        starts: Start states, float64 [R, E, 4].
        draws: Uniform numbers in [0, 1), float64 [R, E, 500].
    """
    runs, episodes = starts.shape[:2]
    with np.errstate(divide="ignore"):
        noise = np.log(draws) - np.log1p(-draws)
    noise = np.ascontiguousarray(noise.transpose(2, 0, 1))  # one contiguous block per step
    observations = np.zeros((MAX_STEPS, runs, episodes, STATE), np.float32)
    actions = np.zeros((MAX_STEPS, runs, episodes), bool)
    lengths = np.zeros((runs, episodes), np.int64)
    env = CartPoleBatch(runs * episodes)
    observed = env.reset(starts.reshape(-1, STATE)).reshape(runs, episodes, STATE)
    active: np.ndarray | slice = slice(None)  # runs that are still in the batch
    count, step = runs, 0
    while count:
        logits = networks.forward(policy, observed)
        push_right = (logits[..., 1] - logits[..., 0]) > noise[step]
        observations[step, active], actions[step, active] = observed, push_right
        observed, terminated, truncated = env.step(push_right.ravel())
        observed = observed.reshape(count, episodes, STATE)
        step += 1
        if not (terminated | truncated).any():
            continue
        unfinished = env.alive.reshape(count, episodes).any(1)
        remaining = int(unfinished.sum())
        if remaining > (1 - REMOVED_SHARE) * count:
            continue
        lengths[active] = env.steps.reshape(count, episodes)
        rows = np.flatnonzero(unfinished)
        active = np.arange(runs)[active][rows]
        policy, noise = networks.take(policy, rows), noise[:, rows]
        observed, count = observed[rows], remaining
        env.keep(np.repeat(unfinished, episodes))
    padded = step + -step % BLOCK
    return Rollout(
        np.ascontiguousarray(observations[:padded].transpose(1, 2, 0, 3)),
        np.ascontiguousarray(actions[:padded].transpose(1, 2, 0)),
        lengths,
    )
