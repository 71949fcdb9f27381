"""In-context learning, played: a transformer's agents in many rooms at once, episode after episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from darkroom.distillation.cached_policy import Player
from darkroom.distillation.transformer import Transformer
from darkroom.rooms import grid
from darkroom.rooms.batch import RoomBatch, Step

TOGETHER = 480  # agents that play at once: more would not be faster, and their memories would not fit a cache


@dataclass(frozen=True)
class Tasks:
    """Goals in rooms of some sides.

    Attributes:
        goals: Cells, int [T].
        sizes: Sides, int [T].
        limit: Steps of an episode.
        terminating: The goal ends an episode.
    """

    goals: np.ndarray
    sizes: np.ndarray
    limit: int
    terminating: bool

    @classmethod
    def of(cls, rooms: Sequence[tuple[int, Sequence[int]]], limit: int, terminating: bool) -> Tasks:
        """Those of several (side, goals)."""
        goals = [np.asarray(each, np.int64) for _, each in rooms]
        sizes = [np.full(len(each), size) for size, each in rooms]
        return cls(np.concatenate(goals), np.concatenate(sizes), limit, terminating)

    def __len__(self) -> int:
        return len(self.goals)

    def repeated(self, copies: int) -> Tasks:
        """Each of them `copies` times, one after the other."""
        goals, sizes = np.repeat(self.goals, copies), np.repeat(self.sizes, copies)
        return Tasks(goals, sizes, self.limit, self.terminating)

    def cut(self, begin: int, end: int) -> Tasks:
        """Some of them."""
        return Tasks(self.goals[begin:end], self.sizes[begin:end], self.limit, self.terminating)

    def normalised(self, returns: np.ndarray) -> np.ndarray:
        """Returns of episodes, float [T, ...], as 0 for random actions and 1 for the best."""
        found = np.empty(np.shape(returns))
        for size in np.unique(self.sizes):
            rows = self.sizes == size
            goals = self.goals[rows]
            there = grid.normalised_return(
                np.moveaxis(returns[rows], 0, -1), int(size), goals, self.limit,
                terminating=self.terminating,
            )  # fmt: skip
            found[rows] = np.moveaxis(there, -1, 0)
        return found


def learn_in_context(
    model: Transformer,
    tasks: Tasks,
    episodes: int,
    copies: int,
    rng: np.random.Generator,
    when_full: str = "halve",
    *,
    greedy: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Plays every task from an empty context on.

    Args:
        model: See there.
        tasks: Where.
        episodes: How many in a row.
        copies: Agents of each task, which know nothing of each other.
        rng: Draws the actions.
        when_full: See :data:`darkroom.distillation.shape.WHEN_FULL`.
        greedy: Take the likeliest actions in place of drawn ones.

    Returns:
        Return and length of each episode, both float32 [T, copies, episodes].
    """
    every = tasks.repeated(copies)
    parts = [
        _play(model, every.cut(begin, begin + TOGETHER), episodes, rng, when_full, greedy)
        for begin in range(0, len(every), TOGETHER)
    ]
    returns, lengths = np.concatenate(parts, axis=1).reshape(2, len(tasks), copies, episodes)
    return returns, lengths


def paths(
    model: Transformer,
    tasks: Tasks,
    episodes: int,
    rng: np.random.Generator,
    when_full: str,
    greedy: bool,
) -> np.ndarray:
    """Plays every task with one agent, as :func:`learn_in_context`, and returns where it went.

    Returns:
        Cells, the first of an episode and that after each step, int64 [T, episodes, limit + 1]; -1 behind its end.
    """
    agents = np.arange(len(tasks))
    found = np.full((len(tasks), episodes + 1, tasks.limit + 1), -1)
    found[:, :, 0] = np.array([grid.centre(int(size)) for size in tasks.sizes])[:, None]
    for count, times, step in _moves(model, tasks, episodes, rng, when_full, greedy):
        found[agents, count, times] = step.final
    return found[:, :-1]


def _play(
    model: Transformer,
    tasks: Tasks,
    episodes: int,
    rng: np.random.Generator,
    when_full: str,
    greedy: bool,
) -> np.ndarray:
    agents = np.arange(len(tasks))
    returns, lengths = np.zeros((2, len(tasks), episodes + 1), np.float32)
    for count, _, step in _moves(model, tasks, episodes, rng, when_full, greedy):
        returns[agents, count] += step.rewards
        lengths[agents, count] += 1
    return np.stack([returns, lengths])[:, :, :-1]


def _moves(
    model: Transformer,
    tasks: Tasks,
    episodes: int,
    rng: np.random.Generator,
    when_full: str,
    greedy: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray, Step]]:
    """Plays until all have done so many episodes.

    Yields:
        Of each agent, the number of the episode, which is `episodes` for those who go on while others have not done
        all, and its steps with this one, both int [T]; and the step.
    """
    rooms = RoomBatch(tasks.goals, tasks.sizes, limit=tasks.limit, terminating=tasks.terminating)
    player = Player(model, rooms.cells, rooms.sizes, when_full)
    count = np.zeros(len(tasks), np.int64)
    while count.min() < episodes:
        times = rooms.times + 1
        actions = player.best() if greedy else player.act(rng.random(len(tasks)))
        step = rooms.step(actions)
        yield count, times, step
        count = np.minimum(count + (step.terminated | step.truncated), episodes)
        player.saw(actions, step.rewards, step.cells, rooms.times)
