"""Learning curves of source agents."""

from __future__ import annotations

from typing import Any

import numpy as np

from darkroom.a2c.a2c import Rollout
from darkroom.a2c.histories import Histories
from darkroom.rooms import grid

NAMES = ("return", "success", "length")
BLOCKS = 100  # points of `by_episode`, as many as a record has


class Curves:
    """Means by task over the episodes that end between two points, computed during the training.

    Args:
        tasks: Tasks as in :mod:`darkroom.rooms.grid`, int [T].
        size: Side of the rooms [cells].
        envs: Environments of a task, E.
        updates: Updates of the training.
        points: Points of a curve; the last is at the end.

    Attributes:
        means: Values by name, float [points, T]; NaN where no episode ended.
        at: Update of every point, int [points].
        points: Number of points so far.
    """

    def __init__(self, tasks: np.ndarray, size: int, envs: int, updates: int, points: int) -> None:
        self._tasks, self._size = tasks, size
        self.at = np.unique(np.linspace(0, updates, min(points, updates) + 1, dtype=int)[1:])
        self.means = {name: np.full((len(self.at), len(tasks)), np.nan) for name in NAMES}
        self.points = 0
        self._sums = np.zeros((len(NAMES), len(tasks)))
        self._episodes = np.zeros(len(tasks))
        self._returns = np.zeros((len(tasks), envs))  # of the episodes that have not ended

    def add(self, update: int, rollout: Rollout) -> dict[str, float] | None:
        """Add a rollout; at a point, return the means over tasks in which an episode ended."""
        returns = self._returns
        for rewards, times, ended in zip(
            rollout.rewards, rollout.times, rollout.ended, strict=True
        ):
            returns = returns + rewards
            if ended.any():
                reached = grid.reached_goal(self._size, self._tasks, returns.T).T
                values = returns, reached, times + 1
                self._sums += [np.where(ended, value, 0).sum(axis=1) for value in values]
                self._episodes += ended.sum(axis=1)
                returns = np.where(ended, 0.0, returns)
        self._returns = returns
        if update != self.at[self.points]:
            return None
        with np.errstate(invalid="ignore"):
            means = self._sums / self._episodes
        for name, mean in zip(NAMES, means, strict=True):
            self.means[name][self.points] = mean
        self.points += 1
        self._sums[:], self._episodes[:] = 0, 0
        finite = {n: m[np.isfinite(m)] for n, m in zip(NAMES, means, strict=True)}
        return {
            name: float(values.mean()) for name, values in finite.items() if len(values)
        } or None

    def mean_return(self) -> float:
        """Return the mean return over all points and tasks: high if learned early and well."""
        returns = self.means["return"][: self.points]
        return float(np.nanmean(returns)) if np.isfinite(returns).any() else 0.0

    def state(self) -> dict[str, Any]:
        """Return what continues the curves."""
        return {
            "means": self.means,
            "points": self.points,
            "sums": self._sums,
            "episodes": self._episodes,
            "returns": self._returns,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self.means = {name: np.array(values) for name, values in state["means"].items()}
        self.points = int(state["points"])
        self._sums, self._episodes = np.array(state["sums"]), np.array(state["episodes"])
        self._returns = np.array(state["returns"])


def by_episode(histories: Histories) -> dict[str, Any]:
    """Return the learning curves of complete histories: means over their environments and blocks of episodes.

    Returns:
        `goals`; `returns`, float32 [T, blocks]; `steps` of a task until the end of a block, float64 [blocks].
    """
    envs, steps = histories.shape[2:]
    # A block has a beginning of an episode in every environment.
    blocks = max(1, min(BLOCKS, steps // histories.about.limit))
    edges = np.linspace(0, steps, blocks + 1).astype(int)
    rewards = np.asarray(histories.rewards).sum(axis=1, dtype=np.float64)
    begins = (np.asarray(histories.times) == 0).sum(axis=1, dtype=np.float64)
    block_rewards = np.add.reduceat(rewards, edges[:-1], axis=1)
    block_episodes = np.add.reduceat(begins, edges[:-1], axis=1)
    returns = block_rewards / block_episodes
    return {
        "goals": list(histories.about.goals),
        "returns": returns.astype(np.float32),
        "steps": edges[1:] * float(envs),
    }
