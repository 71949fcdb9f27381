"""Evaluation of source agents by whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from darkroom.a2c.a2c import Policies, SourceAgents
from darkroom.rooms.batch import Step

EPISODES = 100  # of each task


@dataclass(frozen=True)
class Evaluation:
    """Episodes of the final agents, float [T, EPISODES].

    Attributes:
        returns: Sum of rewards.
        lengths: Steps.
    """

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def success(self) -> np.ndarray:
        """Share of episodes that reached the goal, by task."""
        return (self.returns > 0).mean(axis=1)


def evaluate(
    agents: SourceAgents, rng: np.random.Generator, episodes: int = EPISODES
) -> Evaluation:
    """Play whole episodes in every task with actions drawn from the final policies."""
    tasks = len(agents.goals)
    returns, lengths = np.zeros((2, tasks * episodes))
    for step, going in whole_episodes(agents, rng, episodes):
        returns += np.where(going, step.rewards, 0)
        lengths += going
    return Evaluation(returns.reshape(tasks, -1), lengths.reshape(tasks, -1))


def whole_episodes(
    agents: SourceAgents, rng: np.random.Generator, count: int
) -> Iterator[tuple[Step, np.ndarray]]:
    """Play `count` episodes side by side in every task, until the last of them ends.

    Yields:
        The step of all rooms, task by task, and in which of them the first episode still goes on, bool.
    """
    rooms = agents.settings.rooms(np.repeat(agents.goals, count))
    policies = Policies(np.exp(agents.table()[0]), count)
    going = np.ones(len(rooms), bool)
    while going.any():
        step = rooms.step(policies.actions(rooms.cells, rng.random(len(rooms), np.float32)))
        yield step, going
        going = going & ~(step.terminated | step.truncated)
