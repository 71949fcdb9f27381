"""Tasks in rooms, and agents that act in all of them in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from darkroom.rooms import grid
from darkroom.rooms.batch import RoomBatch, Step


@dataclass(frozen=True)
class Tasks:
    """Tasks in rooms of given sides.

    Attributes:
        goals: Tasks as in :mod:`darkroom.rooms.grid`, int [T].
        sizes: Sides, int [T].
        limit: Steps of an episode.
        terminating: Whether the goal ends an episode.
    """

    goals: np.ndarray
    sizes: np.ndarray
    limit: int
    terminating: bool

    @classmethod
    def of_rooms(
        cls, rooms: Sequence[tuple[int, Sequence[int]]], limit: int, terminating: bool
    ) -> Tasks:
        """Return the tasks of several pairs of a side and its tasks' numbers."""
        goals = np.concatenate([np.asarray(goals, np.int64) for _, goals in rooms])
        sizes = np.concatenate([np.full(len(goals), size) for size, goals in rooms])
        return cls(goals, sizes, limit, terminating)

    def __len__(self) -> int:
        return len(self.goals)

    def repeated(self, copies: int) -> Tasks:
        """Return every task `copies` times, the copies side by side."""
        goals, sizes = np.repeat(self.goals, copies), np.repeat(self.sizes, copies)
        return Tasks(goals, sizes, self.limit, self.terminating)

    def cut(self, begin: int, end: int) -> Tasks:
        """Return tasks `begin` to `end`."""
        return Tasks(self.goals[begin:end], self.sizes[begin:end], self.limit, self.terminating)

    def rooms(self) -> RoomBatch:
        """Return the rooms, at the beginning of an episode."""
        return RoomBatch(self.goals, self.sizes, limit=self.limit, terminating=self.terminating)

    def normalised(self, returns: np.ndarray) -> np.ndarray:
        """Return normalised returns, 0 for random actions and 1 for optimal ones.

        Args:
            returns: Returns of episodes, float [T, ...].
        """
        normalised = np.empty(np.shape(returns))
        for size in np.unique(self.sizes):
            rows = self.sizes == size
            values = grid.normalised_return(
                np.moveaxis(returns[rows], 0, -1), int(size), self.goals[rows], self.limit,
                terminating=self.terminating,
            )  # fmt: skip
            normalised[rows] = np.moveaxis(values, -1, 0)
        return normalised


class Agents(Protocol):
    """R agents, one per room."""

    def act(self) -> np.ndarray:
        """Return their actions, int [R]."""
        ...

    def observe(self, actions: np.ndarray, step: Step, times: np.ndarray) -> None:
        """Take in the result of the actions; `times`: steps of the present episodes so far, int [R]."""
        ...


def steps_of(
    rooms: RoomBatch, agents: Agents, episodes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, Step]]:
    """Let agents act until all have ended their episodes.

    Yields:
        Every agent's number of ended episodes, `episodes` for those that wait for others, int [R]; steps of its episode
        including this one, int [R]; and the step.
    """
    episode = np.zeros(len(rooms), np.int64)
    while episode.min() < episodes:
        times = rooms.times + 1
        actions = agents.act()
        step = rooms.step(actions)
        yield episode, times, step
        episode = np.minimum(episode + (step.terminated | step.truncated), episodes)
        agents.observe(actions, step, rooms.times)


def returns_and_lengths(rooms: RoomBatch, agents: Agents, episodes: int) -> np.ndarray:
    """Let agents act, and return every episode's return and length, float32 [2, R, episodes]."""
    rows = np.arange(len(rooms))
    returns, lengths = np.zeros((2, len(rooms), episodes + 1), np.float32)
    for episode, _, step in steps_of(rooms, agents, episodes):
        returns[rows, episode] += step.rewards
        lengths[rows, episode] += 1
    return np.stack([returns, lengths])[:, :, :-1]
