"""How source agents learn: episodes counted while they are played."""

from __future__ import annotations

from typing import Any

import numpy as np

from darkroom.a2c.a2c import Rollout
from darkroom.a2c.histories import Histories

NAMES = ("return", "success", "length")


class Curves:
    """Means over the episodes that end between two points, by task.

    Args:
        tasks: How many there are, T.
        envs: Environments of each, E.
        updates: Of the whole training.
        points: Of a curve; the last is at the end.

    Attributes:
        means: Values by name, float [points, T]; NaN where no episode ended.
        at: Update of each point, int [points].
        points: How many are there already.
    """

    def __init__(self, tasks: int, envs: int, updates: int, points: int) -> None:
        self.at = np.unique(np.linspace(0, updates, min(points, updates) + 1, dtype=int)[1:])
        self.means = {name: np.full((len(self.at), tasks), np.nan) for name in NAMES}
        self.points = 0
        self._sums = np.zeros((len(NAMES), tasks))
        self._episodes = np.zeros(tasks)
        self._returns = np.zeros((tasks, envs))  # of the episodes that go on

    def add(self, update: int, played: Rollout) -> dict[str, float] | None:
        """Counts a rollout; at a point, returns the means over tasks in which an episode ended."""
        running = self._returns
        for rewards, times, ended in zip(played.rewards, played.times, played.ended, strict=True):
            running = running + rewards
            if ended.any():
                told = running, running > 0, times + 1
                self._sums += [np.where(ended, each, 0).sum(axis=1) for each in told]
                self._episodes += ended.sum(axis=1)
                running = np.where(ended, 0.0, running)
        self._returns = running
        if update != self.at[self.points]:
            return None
        with np.errstate(invalid="ignore"):
            means = self._sums / self._episodes
        for name, mean in zip(NAMES, means, strict=True):
            self.means[name][self.points] = mean
        self.points += 1
        self._sums[:], self._episodes[:] = 0, 0
        over = {n: m[np.isfinite(m)] for n, m in zip(NAMES, means, strict=True)}
        return {name: float(values.mean()) for name, values in over.items() if len(values)} or None

    def mean_return(self) -> float:
        """The mean return over the whole training, points and tasks alike: high if learned early and well."""
        told = self.means["return"][: self.points]
        return float(np.nanmean(told)) if np.isfinite(told).any() else 0.0

    def state(self) -> dict[str, Any]:
        """What is needed to go on."""
        return {
            "means": self.means,
            "points": self.points,
            "sums": self._sums,
            "episodes": self._episodes,
            "returns": self._returns,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.means = {name: np.array(each) for name, each in state["means"].items()}
        self.points = int(state["points"])
        self._sums, self._episodes = np.array(state["sums"]), np.array(state["episodes"])
        self._returns = np.array(state["returns"])


BLOCKS = 100  # points of `by_episode`, as many as a record keeps


def by_episode(histories: Histories) -> dict[str, Any]:
    """How the agents of finished histories learned: means over their environments and blocks of episodes.

    Returns:
        `goals`; `returns`, float32 [T, blocks]; `steps` of a task until the end of each block, float64 [blocks].
    """
    envs, steps = histories.shape[2:]
    blocks = min(BLOCKS, steps)
    edges = np.linspace(0, steps, blocks + 1).astype(int)
    rewards = np.asarray(histories.rewards).sum(axis=1, dtype=np.float64)
    begins = (np.asarray(histories.times) == 0).sum(axis=1, dtype=np.float64)
    paid = np.add.reduceat(rewards, edges[:-1], axis=1)
    episodes = np.add.reduceat(begins, edges[:-1], axis=1)
    returns = paid / np.maximum(episodes, 1)
    return {
        "goals": list(histories.about.goals),
        "returns": returns.astype(np.float32),
        "steps": edges[1:] * float(envs),
    }
