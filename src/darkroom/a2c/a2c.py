"""Synchronous advantage actor-critic, A2C, for many dark rooms at once: one agent per task.

Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning" (arXiv 1602.01783, algorithm S3, with
one learner). For the agent of a task, with policy pi and value V of weights theta:

    repeat:
        play `rollout` steps with pi in each of `envs` environments
        R_t = r_t + gamma R_{t+1} to the rollout's end, then V of the cell that follows; 0 after the end of an episode
        A_t = R_t - V(s_t)
        L(theta) = mean of -log pi(a_t | s_t) A_t - entropy_coef H(pi(. | s_t)) + value_coef A_t^2
                   (no gradient flows through R_t, nor through A_t in the first term)
        g = clip(gradient of L, max_grad_norm)
        theta = Adam(theta, g, lr)

The network is an embedding of the cell and linear layers for logits and value. In rooms with a key it is an embedding
of the cell and of whether the agent has the key: no policy of the cell alone goes to the key and on to the door by the
shortest ways. There are few such states. So an update computes the table of all outputs once, plays by looking up, sums
the gradients of all samples in a table of the same shape, and propagates that to the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.rooms.batch import RoomBatch
from darkroom.rooms.grid import ACTIONS, needs_key
from rl.kernels import kernel
from runcatalog.record import Seeds

OUTPUTS = ACTIONS + 1  # logits, and the value
UPDATES_AHEAD = 100  # whose random numbers are drawn in one call per task
PARAMETERS = ("embedding", "weight", "bias")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-6  # of Adam, the source's


@dataclass(frozen=True)
class Settings:
    """Settings of the learner.

    Attributes:
        size: Side of the rooms [cells].
        limit: Steps of an episode.
        terminating: Whether the goal ends an episode.
        hidden: Width of the embedding.
        envs: Environments of a task.
        rollout: Steps in every environment between two updates.
        lr: Learning rate.
        gamma: Discount per step.
        entropy_coef: Weight of the entropy bonus.
        value_coef: Weight of the squared error of the value.
        max_grad_norm: Largest norm of a task's gradient.
        bootstrap: Whether an episode cut by its limit counts the value of its last cell.
    """

    size: int
    limit: int
    terminating: bool
    hidden: int
    envs: int
    rollout: int
    lr: float
    gamma: float
    entropy_coef: float
    value_coef: float
    max_grad_norm: float
    bootstrap: bool

    def rooms(self, tasks: np.ndarray) -> RoomBatch:
        """Return rooms of this kind, one per task, int [n]."""
        return RoomBatch(tasks, self.size, limit=self.limit, terminating=self.terminating)


@dataclass(frozen=True)
class Rollout:
    """Transitions between two updates: S steps, T tasks, E environments of each task.

    Attributes:
        cells: Cells before the action, int32 [S, T, E].
        actions: int32 [S, T, E].
        rewards: float32 [S, T, E].
        times: Steps of the episode before the action, int32 [S, T, E].
        ended: Whether the step ended an episode, bool [S, T, E].
        terminated: Whether the goal ended it, bool [S, T, E].
        states: States before the action, see :attr:`darkroom.rooms.batch.RoomBatch.states`, int32 [S, T, E].
        next_states: States after the action, before a new episode begins, int32 [S, T, E].
    """

    cells: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    times: np.ndarray
    ended: np.ndarray
    terminated: np.ndarray
    states: np.ndarray
    next_states: np.ndarray

    @classmethod
    def empty(cls, steps: int, rooms: int) -> Rollout:
        """Return space for transitions in rooms of all tasks, uninitialised arrays [S, rooms]."""
        shape = steps, rooms
        return cls(
            cells=np.empty(shape, np.int32),
            actions=np.empty(shape, np.int32),
            rewards=np.empty(shape, np.float32),
            times=np.empty(shape, np.int32),
            ended=np.empty(shape, bool),
            terminated=np.empty(shape, bool),
            states=np.empty(shape, np.int32),
            next_states=np.empty(shape, np.int32),
        )

    def by_task(self, tasks: int) -> Rollout:
        """Return the arrays [S, rooms] as views [S, T, E]."""
        shape = len(self.cells), tasks, -1
        return Rollout(**{name: values.reshape(shape) for name, values in vars(self).items()})


@dataclass(frozen=True)
class Outputs:
    """The network's outputs for every state of every task.

    Attributes:
        log_policy: log pi(a | s), float32 [5, T, states].
        policy: pi(a | s), float32 [5, T, states].
        values: V(s), float32 [T, states].
    """

    log_policy: np.ndarray
    policy: np.ndarray
    values: np.ndarray


class ActionSampler:
    """Sampler of actions in the rooms of all tasks, task by task.

    Args:
        policy: pi(a | s), float32 [5, T, states].
        rooms: Rooms of a task.
    """

    def __init__(self, policy: np.ndarray, rooms: int) -> None:
        self._cumulative = policy.cumsum(axis=0)[:-1]
        self._tasks = np.repeat(np.arange(policy.shape[1]), rooms)

    def sample(self, states: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Sample actions, int32 [T x rooms].

        Args:
            states: States of the agents, int [T x rooms].
            uniform: Random numbers in [0, 1), float32 [T x rooms].
        """
        return (self._cumulative[:, self._tasks, states] < uniform).sum(axis=0, dtype=np.int32)


class SourceAgents:
    """One agent per task, independent of the other tasks.

    Args:
        goals: Tasks as in :mod:`darkroom.rooms.grid`, int [T].
        settings: Settings of the learner.
        seeds: Source of the run's random numbers; every task has its own stream.

    Attributes:
        parameters: float32: embedding [T, states, hidden], weight [T, hidden, 6] (five logits and the value), bias
            [T, 1, 6].
        updates: Number of updates so far.
    """

    def __init__(self, goals: np.ndarray, settings: Settings, seeds: Seeds) -> None:
        self.settings, self.goals = settings, np.asarray(goals)
        self._states = settings.size**2 * (1 + needs_key(self.goals, settings.size).any())
        self._rngs = [seeds.generator("source agent", int(goal)) for goal in self.goals]
        initial = zip(*map(self._initial_parameters, self._rngs), strict=True)
        self.parameters = [np.stack(of_tasks) for of_tasks in initial]
        self._moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self.parameters]
        self.updates = 0
        self._rooms = settings.rooms(np.repeat(self.goals, settings.envs))
        self._uniform = np.empty((0, settings.rollout, len(self.goals), settings.envs), np.float32)

    def update(self) -> Rollout:
        """Play a rollout in every environment, make one update of every agent, and return the rollout."""
        outputs = self.outputs()
        rollout = self._play(outputs.policy)
        returns = discounted_returns(rollout, outputs.values, self.settings)
        gradient = output_gradient(rollout, returns, outputs, self.settings)
        self._step(self._propagate(gradient))
        self.updates += 1
        return rollout

    def outputs(self) -> Outputs:
        """Return policy and value of every state."""
        embedding, weight, bias = self.parameters
        outputs = np.moveaxis(embedding @ weight + bias, -1, 0)
        # Actions first, so that sums over them add long rows.
        log_policy = np.ascontiguousarray(outputs[:ACTIONS])
        log_policy -= log_policy.max(axis=0)
        log_policy -= np.log(np.exp(log_policy).sum(axis=0))
        return Outputs(log_policy, np.exp(log_policy), outputs[ACTIONS])

    def state(self) -> dict[str, Any]:
        """Return what continues the training bit for bit, besides `parameters`."""
        return {
            "updates": self.updates,
            "moments": [list(pair) for pair in self._moments],
            "cells": self._rooms.cells,
            "times": self._rooms.times,
            "goal_pays": self._rooms.goal_pays,
            "uniform": self._uniform,
            "rngs": [rng.bit_generator.state for rng in self._rngs],
        }

    def restore(self, parameters: list[np.ndarray], state: dict[str, Any]) -> None:
        """Continue from `parameters` and `state()`."""
        self.parameters = [np.array(parameter) for parameter in parameters]
        self.updates = int(state["updates"])
        self._moments = [(np.array(m), np.array(v)) for m, v in state["moments"]]
        self._rooms.cells, self._rooms.times = np.array(state["cells"]), np.array(state["times"])
        if "goal_pays" in state:  # older checkpoints lack it
            self._rooms.goal_pays = np.array(state["goal_pays"])
        self._uniform = np.array(state["uniform"])
        for rng, saved in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved

    def _initial_parameters(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return parameters as torch initialises them: Embedding N(0, 1), Linear U(+-1 / sqrt(hidden))."""
        hidden = self.settings.hidden
        bound = hidden**-0.5
        return (
            rng.standard_normal((self._states, hidden), np.float32),
            rng.uniform(-bound, bound, (hidden, OUTPUTS)).astype(np.float32),
            rng.uniform(-bound, bound, (1, OUTPUTS)).astype(np.float32),
        )

    def _play(self, policy: np.ndarray) -> Rollout:
        """Play a rollout in every environment."""
        settings, rooms, uniform = self.settings, self._rooms, self._uniform_numbers()
        sampler = ActionSampler(policy, settings.envs)
        rollout = Rollout.empty(settings.rollout, len(rooms))
        for t in range(settings.rollout):
            rollout.cells[t], rollout.times[t] = rooms.cells, rooms.times
            rollout.states[t] = rooms.states
            rollout.actions[t] = sampler.sample(rollout.states[t], uniform[t].reshape(-1))
            step = rooms.step(rollout.actions[t])
            rollout.rewards[t], rollout.next_states[t] = step.rewards, step.final_states
            rollout.terminated[t] = step.terminated
            rollout.ended[t] = step.terminated | step.truncated
        return rollout.by_task(len(self.goals))

    def _uniform_numbers(self) -> np.ndarray:
        """Return the next numbers in [0, 1), float32 [S, T, E], of every task from its own stream."""
        place = self.updates % UPDATES_AHEAD
        if place == 0:
            shape = UPDATES_AHEAD, self.settings.rollout, self.settings.envs
            self._uniform = np.stack([rng.random(shape, np.float32) for rng in self._rngs], axis=2)
        return self._uniform[place]

    def _propagate(self, gradient: np.ndarray) -> list[np.ndarray]:
        """Return the gradients of the parameters from that of the outputs, float32 [T, states, 6]."""
        embedding, weight, _ = self.parameters
        return [
            gradient @ weight.transpose(0, 2, 1),
            embedding.transpose(0, 2, 1) @ gradient,
            gradient.sum(axis=1, keepdims=True),
        ]

    def _step(self, gradients: list[np.ndarray]) -> None:
        """Limit the norm of every task's gradient, and make a step of Adam."""
        settings = self.settings
        squares = sum(squared_norms(gradient.reshape(len(gradient), -1)) for gradient in gradients)
        # 1e-6 as in torch.nn.utils.clip_grad_norm_.
        clip = np.minimum(1.0, settings.max_grad_norm / (np.sqrt(squares) + 1e-6))
        clip = clip.astype(np.float32)
        count = self.updates + 1
        step_size = np.float32(settings.lr / (1 - BETA1**count))
        correction = np.float32((1 - BETA2**count) ** 0.5)
        for parameter, gradient, (m, v) in zip(
            self.parameters, gradients, self._moments, strict=True
        ):
            rows = len(parameter), -1
            adam(
                parameter.reshape(rows), gradient.reshape(rows), m.reshape(rows), v.reshape(rows), clip,
                step_size, correction, np.float32(BETA1), np.float32(BETA2), np.float32(EPSILON),
            )  # fmt: skip


def discounted_returns(rollout: Rollout, values: np.ndarray, settings: Settings) -> np.ndarray:
    """Return R_t: discounted rewards to the rollout's end and the value of what follows, float32 [S, T, E]."""
    tasks = np.arange(len(values))[:, None]
    following = values[tasks, rollout.next_states[-1]]
    returns = np.empty_like(rollout.rewards)
    for t in reversed(range(len(returns))):
        last_value = np.float32(0)
        if settings.bootstrap:
            last_value = values[tasks, rollout.next_states[t]]
        after_end = np.where(rollout.terminated[t], np.float32(0), last_value)
        following = np.where(rollout.ended[t], after_end, following)
        following = rollout.rewards[t] + settings.gamma * following
        returns[t] = following
    return returns


def output_gradient(
    rollout: Rollout, returns: np.ndarray, outputs: Outputs, settings: Settings
) -> np.ndarray:
    """Return the gradient of the loss L with respect to logits and value of every state, float32 [T, states, 6].

    For a sample, with log pi = logits - logsumexp(logits),

        dL/dlogit_b = A (pi(b) - [b = a]) + entropy_coef pi(b) (log pi(b) + H)
        dL/dV = -2 value_coef A
    """
    tasks, states = outputs.values.shape
    count = tasks * states
    place = (np.arange(tasks)[:, None] * states + rollout.states).reshape(-1)
    log_policy = outputs.log_policy.reshape(ACTIONS, -1)
    policy = outputs.policy.reshape(ACTIONS, -1)
    advantages = returns.reshape(-1) - outputs.values.reshape(-1)[place]
    # Sums over the samples of every state: of A, of 1, and of A by action.
    total = np.bincount(place, advantages, count).astype(np.float32)
    visits = np.bincount(place, minlength=count).astype(np.float32)
    chosen = np.bincount(rollout.actions.reshape(-1) * count + place, advantages, ACTIONS * count)
    log_policy_plus_entropy = log_policy - (policy * log_policy).sum(axis=0)
    gradient = np.empty((OUTPUTS, count), np.float32)
    gradient[:ACTIONS] = (total + settings.entropy_coef * visits * log_policy_plus_entropy) * policy
    gradient[:ACTIONS] -= chosen.reshape(ACTIONS, -1)
    gradient[ACTIONS] = -2 * settings.value_coef * total
    gradient /= settings.rollout * settings.envs
    return np.ascontiguousarray(gradient.T).reshape(tasks, states, OUTPUTS)


@kernel
def squared_norms(gradient):
    """Return the square of each row's norm, float64 [T], of float32 [T, n].

    Equals `(gradient.astype(float) ** 2).sum(axis=1)` up to the order of the sum.
    """
    squares = np.zeros(len(gradient))
    for task in range(gradient.shape[0]):
        sums = np.zeros(8)  # independent sums, for the processor's vector units
        whole = gradient.shape[1] // 8 * 8
        for i in range(0, whole, 8):
            for k in range(8):
                sums[k] += np.float64(gradient[task, i + k]) ** 2
        for i in range(whole, gradient.shape[1]):
            sums[0] += np.float64(gradient[task, i]) ** 2
        squares[task] = sums.sum()
    return squares


@kernel
def adam(parameter, gradient, m, v, clip, step_size, correction, beta1, beta2, epsilon):
    """Make a step of Adam (Kingma & Ba 2015, arXiv 1412.6980) for float32 [T, n] in one pass, in place.

    Equals

        g = gradient * clip[:, None]
        m[:] = beta1 * m + (1 - beta1) * g
        v[:] = beta2 * v + (1 - beta2) * g * g
        parameter -= step_size * m / (sqrt(v) / correction + epsilon)

    where step_size = lr / (1 - beta1^t) and correction = sqrt(1 - beta2^t) at step t.
    """
    unit = np.float32(1)
    for task in range(parameter.shape[0]):
        for i in range(parameter.shape[1]):
            g = gradient[task, i] * clip[task]
            mean = beta1 * m[task, i] + (unit - beta1) * g
            square = beta2 * v[task, i] + (unit - beta2) * g * g
            m[task, i] = mean
            v[task, i] = square
            parameter[task, i] -= step_size * mean / (np.sqrt(square) / correction + epsilon)
