"""Advantage actor-critic on many dark rooms at once: one source agent a task, all stepped together.

A2C is the synchronous form of Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning"
(arXiv 1602.01783, section 4). The network is an embedding of the cell and one linear layer each for policy
and value, so that a task has as many outputs as cells: an update computes that table once, plays by
looking up, and puts the gradients of all samples back into a table of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.rooms.batch import RoomBatch
from darkroom.rooms.grid import ACTIONS
from rl.kernels import kernel
from runcatalog.record import Seeds

OUTPUTS = ACTIONS + 1  # logits, and the value
AHEAD = 100  # updates whose uniform numbers are drawn together: a call a task and update would cost more than the rest
NAMES = ("embedding", "weight", "bias")


@dataclass(frozen=True)
class Settings:
    """Of the learner. Defaults are those of the source.

    Attributes:
        size: Cells of a side.
        limit: Steps of an episode.
        terminating: The goal ends an episode.
        hidden: Width of the embedding.
        envs: Environments of a task.
        rollout: Steps in each of them between two updates.
        lr, beta1, beta2, epsilon: Of Adam.
        gamma: Discount; the source does not say its own.
        entropy_coef: Weight of the entropy bonus.
        value_coef: Weight of the squared error of the value.
        max_grad_norm: Limit of the norm of a task's gradient.
        bootstrap: At the limit of an episode: count the value of its last cell, or nothing.
    """

    size: int = 9
    limit: int = 20
    terminating: bool = True
    hidden: int = 128
    envs: int = 10
    rollout: int = 10
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    gamma: float = 0.99
    entropy_coef: float = 0.01
    value_coef: float = 0.99
    max_grad_norm: float = 0.5
    bootstrap: bool = False

    def rooms(self, goals: np.ndarray) -> RoomBatch:
        """Returns rooms of this kind, one for each goal, int [n]."""
        return RoomBatch(goals, self.size, limit=self.limit, terminating=self.terminating)


@dataclass(frozen=True)
class Rollout:
    """What the agents did between two updates; T tasks, E environments of each, S steps.

    Attributes:
        cells: Before the action, int32 [S, T, E].
        actions: int32 [S, T, E].
        rewards: float32 [S, T, E].
        times: Steps of the episode before this one, int32 [S, T, E].
        ended: bool [S, T, E], whether the step ended an episode.
    """

    cells: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    times: np.ndarray
    ended: np.ndarray


class Policies:
    """The policies of all tasks, to play in rooms that stand task by task.

    Args:
        probabilities: Of each action, float32 [5, T, cells].
        rooms: Of each task.
    """

    def __init__(self, probabilities: np.ndarray, rooms: int) -> None:
        # What is above the last but one sum is the last action.
        self._bounds = probabilities.cumsum(axis=0)[:-1]
        self._tasks = np.repeat(np.arange(probabilities.shape[1]), rooms)

    def actions(self, cells: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Returns actions, int32 [T x rooms].

        Args:
            cells: Where the agents are, int [T x rooms].
            uniform: Numbers in [0, 1), float32 [T x rooms].
        """
        return (self._bounds[:, self._tasks, cells] < uniform).sum(axis=0, dtype=np.int32)


class SourceAgents:
    """One agent for each task; what an agent does depends on its task and the seed alone.

    Args:
        goals: Cells, int [T].
        settings: See there.
        seeds: Of the run; each goal has streams of its own.

    Attributes:
        parameters: float32: embedding [T, cells, hidden], weight [T, hidden, 6] (five logits and the
            value), bias [T, 1, 6].
        updates: How many there were.
    """

    def __init__(self, goals: np.ndarray, settings: Settings, seeds: Seeds) -> None:
        self.settings, self.goals = settings, np.asarray(goals)
        self._rngs = [seeds.generator("source agent", int(goal)) for goal in self.goals]
        self.parameters = [
            np.stack(each) for each in zip(*map(self._first, self._rngs), strict=True)
        ]
        self._moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self.parameters]
        self.updates = 0
        self._rooms = settings.rooms(np.repeat(self.goals, settings.envs))
        self._uniform = np.empty((0, *self.shape), np.float32)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps, tasks, environments: of a rollout."""
        return self.settings.rollout, len(self.goals), self.settings.envs

    def update(self) -> Rollout:
        """Plays a rollout in every environment and steps all agents once."""
        log, values = self.table()
        probabilities = np.exp(log)
        played, after = self._play(Policies(probabilities, self.settings.envs))
        targets = self._returns(played, after, values)
        self._step(_gradients(played, targets, log, probabilities, values, self.settings))
        self.updates += 1
        return played

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log probabilities [5, T, cells] and the values [T, cells], float32."""
        embedding, weight, bias = self.parameters
        outputs = np.moveaxis(embedding @ weight + bias, -1, 0)
        logits = np.ascontiguousarray(outputs[:ACTIONS])  # actions first: sums of long rows
        logits -= logits.max(axis=0)
        logits -= np.log(np.exp(logits).sum(axis=0))
        return logits, outputs[ACTIONS]

    def state(self) -> dict[str, Any]:
        """What the agents need to go on to the bit, besides `parameters`."""
        return {
            "updates": self.updates,
            "moments": [list(each) for each in self._moments],
            "cells": self._rooms.cells,
            "times": self._rooms.times,
            "uniform": self._uniform,
            "rngs": [rng.bit_generator.state for rng in self._rngs],
        }

    def restore(self, parameters: list[np.ndarray], state: dict[str, Any]) -> None:
        """Goes on from `parameters` and `state()`."""
        self.parameters = [np.array(each) for each in parameters]
        self.updates = int(state["updates"])
        self._moments = [(np.array(m), np.array(v)) for m, v in state["moments"]]
        self._rooms.cells, self._rooms.times = np.array(state["cells"]), np.array(state["times"])
        self._uniform = np.array(state["uniform"])
        for rng, told in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = told

    def _first(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Parameters as torch's Embedding, N(0, 1), and Linear, U(+-1 / sqrt(hidden)), begin."""
        cells, hidden = self.settings.size**2, self.settings.hidden
        bound = hidden**-0.5
        return (
            rng.standard_normal((cells, hidden), np.float32),
            rng.uniform(-bound, bound, (hidden, OUTPUTS)).astype(np.float32),
            rng.uniform(-bound, bound, (1, OUTPUTS)).astype(np.float32),
        )

    def _play(self, policies: Policies) -> tuple[Rollout, np.ndarray]:
        """A rollout and the cells [S, T, E] after each of its steps, before new episodes began."""
        rooms, uniform = self._rooms, self._numbers()
        steps, tasks, envs = self.shape
        kinds = (np.int32, np.int32, np.float32, np.int32, bool, np.int32)
        kept = [np.empty((steps, tasks * envs), kind) for kind in kinds]
        for step in range(steps):
            cells, times = rooms.cells, rooms.times.copy()
            actions = policies.actions(cells, uniform[step].reshape(-1))
            gave = rooms.step(actions)
            ended = gave.terminated | gave.truncated
            for into, each in zip(
                kept, (cells, actions, gave.rewards, times, ended, gave.final), strict=True
            ):
                into[step] = each
        *played, final = (each.reshape(self.shape) for each in kept)
        return Rollout(*played), final

    def _numbers(self) -> np.ndarray:
        """Uniform numbers in [0, 1), float32 [S, T, E], of each task from its own stream."""
        place = self.updates % AHEAD
        if place == 0:
            steps, _, envs = self.shape
            drawn = [rng.random((AHEAD, steps, envs), np.float32) for rng in self._rngs]
            self._uniform = np.stack(drawn, axis=2)
        return self._uniform[place]

    def _returns(self, played: Rollout, final: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The discounted rewards to the rollout's end and the value of what follows, float32 [S, T, E]."""
        tasks = np.arange(len(self.goals))[:, None]
        found = played.rewards > 0 if self.settings.terminating else np.zeros_like(played.ended)
        target = values[tasks, final[-1]]
        targets = np.empty_like(played.rewards)
        for step in reversed(range(len(targets))):
            ended = played.ended[step]
            cut = values[tasks, final[step]] if self.settings.bootstrap else np.float32(0)
            cut = np.where(found[step], np.float32(0), cut)
            target = played.rewards[step] + self.settings.gamma * np.where(ended, cut, target)
            targets[step] = target
        return targets

    def _step(self, table: np.ndarray) -> None:
        """Adam's step for the gradient of the table [T, cells, 6], each task's norm limited."""
        settings = self.settings
        embedding, weight, _ = self.parameters
        gradients = [
            table @ weight.transpose(0, 2, 1),
            embedding.transpose(0, 2, 1) @ table,
            table.sum(axis=1, keepdims=True),
        ]
        square = sum(_square(each.reshape(len(each), -1)) for each in gradients)
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm.
        scale = np.minimum(1.0, settings.max_grad_norm / (np.sqrt(square) + 1e-6)).astype(
            np.float32
        )
        count = self.updates + 1
        step = settings.lr / (1 - settings.beta1**count)
        root = (1 - settings.beta2**count) ** 0.5
        for each, gradient, (first, second) in zip(
            self.parameters, gradients, self._moments, strict=True
        ):
            shape = len(each), -1
            _adam(
                each.reshape(shape), gradient.reshape(shape), first.reshape(shape),
                second.reshape(shape), scale, np.float32(step), np.float32(root),
                np.float32(settings.beta1), np.float32(settings.beta2), np.float32(settings.epsilon),
            )  # fmt: skip


def _gradients(
    played: Rollout,
    targets: np.ndarray,
    log: np.ndarray,
    probabilities: np.ndarray,
    values: np.ndarray,
    settings: Settings,
) -> np.ndarray:
    """The gradient of the loss with respect to the table, float32 [T, cells, 6].

    The loss of a task is the mean over its samples of
    -log pi(a | s) (R - V(s)) - entropy_coef H(pi(. | s)) + value_coef (R - V(s))^2, where no gradient goes
    through R - V(s) in the first term.
    """
    tasks, cells = values.shape
    count = tasks * cells
    place = (np.arange(tasks)[:, None] * cells + played.cells).reshape(-1)
    log, probabilities = log.reshape(ACTIONS, -1), probabilities.reshape(ACTIONS, -1)
    advantages = targets.reshape(-1) - values.reshape(-1)[place]
    total = np.bincount(place, advantages, count).astype(np.float32)
    visits = np.bincount(place, minlength=count).astype(np.float32)
    chosen = np.bincount(played.actions.reshape(-1) * count + place, advantages, ACTIONS * count)
    gradient = np.empty((OUTPUTS, count), np.float32)
    below_entropy = log - (probabilities * log).sum(axis=0)  # log pi + H
    gradient[:ACTIONS] = (total + settings.entropy_coef * visits * below_entropy) * probabilities
    gradient[:ACTIONS] -= chosen.reshape(ACTIONS, -1)
    gradient[ACTIONS] = -2 * settings.value_coef * total
    gradient /= settings.rollout * settings.envs
    return np.ascontiguousarray(gradient.T).reshape(tasks, cells, OUTPUTS)


@kernel
def _square(gradient):  # type: ignore[no-untyped-def]
    """The square of each row's norm, float64 [T], of float32 [T, n]."""
    square = np.zeros(len(gradient))
    for task in range(gradient.shape[0]):
        parts = np.zeros(8)  # eight sums, which a processor adds to at once
        whole = gradient.shape[1] // 8 * 8
        for i in range(0, whole, 8):
            for k in range(8):
                parts[k] += np.float64(gradient[task, i + k]) ** 2
        for i in range(whole, gradient.shape[1]):
            parts[0] += np.float64(gradient[task, i]) ** 2
        square[task] = parts.sum()
    return square


@kernel
def _adam(values, gradient, first, second, scale, step, root, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
    """Adam (Kingma & Ba 2015, arXiv 1412.6980) in one pass over float32 [T, n], in place."""
    one = np.float32(1)
    for task in range(values.shape[0]):
        for i in range(values.shape[1]):
            g = gradient[task, i] * scale[task]
            m = beta1 * first[task, i] + (one - beta1) * g
            v = beta2 * second[task, i] + (one - beta2) * g * g
            first[task, i] = m
            second[task, i] = v
            values[task, i] -= step * m / (np.sqrt(v) / root + epsilon)
