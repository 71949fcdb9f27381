"""Scripted agents that visit unknown cells until they meet the goal, and return to it in every later episode.

Where a task has a key, they look for it first, and then for the goal.
"""

from __future__ import annotations

import numpy as np

from darkroom.rooms.batch import RoomBatch, Step
from darkroom.rooms.grid import DOWN, LEFT, NO_KEY, RIGHT, STAY, UP
from darkroom.rooms.play import Tasks, returns_and_lengths

UNKNOWN = -1


class Explorers:
    """R agents, each with a memory of its room that outlasts episodes; an :class:`darkroom.rooms.play.Agents`.

    An agent goes to the nearest cell that it has not visited, and where there is none, to the one in which episodes
    begin: what lies there is met by a step alone. Once it has met the goal it goes there by a shortest way and stays.
    Where the task has a key, it looks for the key first, and then for the goal in all cells that it has not visited
    with the key. Which of equally near cells, and which way there, is drawn.

    Args:
        rooms: The rooms.
        rng: Source of the draws.
    """

    def __init__(self, rooms: RoomBatch, rng: np.random.Generator) -> None:
        self._sizes = rooms.sizes.astype(np.int64)
        self._has_key_from_start = rooms.keys == NO_KEY
        cells = np.arange(self._sizes.max() ** 2)
        self._rows, self._columns = np.divmod(cells, self._sizes[:, None])
        # Two planes: without and with the key. A cell outside of a smaller room is never visited.
        inside = cells < self._sizes[:, None] ** 2
        self._unvisited = np.stack([inside, inside])
        self._found = np.full((2, len(rooms)), UNKNOWN)  # cells of the key and of the goal
        self._has_key = self._has_key_from_start.astype(int)
        self._all, self._first = np.arange(len(rooms)), rooms.cells.astype(np.int64)
        self._rng = rng
        self._enter(rooms.cells)

    def act(self) -> np.ndarray:
        """Return their actions, int64 [R]."""
        rows, columns = np.divmod(self._cells, self._sizes)
        targets = self._found[self._has_key, self._all]
        seeking = np.flatnonzero(targets == UNKNOWN)
        away = abs(self._rows[seeking] - rows[seeking, None])
        away += abs(self._columns[seeking] - columns[seeking, None])
        drawn = away + self._rng.random(away.shape)
        unvisited = self._unvisited[self._has_key[seeking], seeking]
        nearest = np.where(unvisited, drawn, np.inf).argmin(axis=1)
        targets[seeking] = np.where(unvisited.any(axis=1), nearest, self._first[seeking])
        down, right = targets // self._sizes - rows, targets % self._sizes - columns
        # Every shortest way has the same probability to begin with either axis as its moves along it.
        vertical = self._rng.random(len(rows)) * (abs(down) + abs(right)) < abs(down)
        moves = np.where(vertical, np.where(down > 0, DOWN, UP), np.where(right > 0, RIGHT, LEFT))
        return np.where(targets == self._cells, STAY, moves)

    def observe(self, actions: np.ndarray, step: Step, times: np.ndarray) -> None:
        """Remember the visited cells, and key and goal where there was a reward."""
        del actions, times
        met = np.flatnonzero(step.rewards > 0)
        self._found[self._has_key[met], met] = step.final[met]
        self._has_key[met] = 1
        self._enter(step.final)
        ended = step.terminated | step.truncated
        self._has_key[ended] = self._has_key_from_start[ended]
        self._enter(step.cells)

    def _enter(self, cells: np.ndarray) -> None:
        self._cells = cells.astype(np.int64)
        self._unvisited[self._has_key, self._all, self._cells] = False


def explore(
    tasks: Tasks, episodes: int, copies: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Let explorers act in every task.

    Args:
        tasks: The tasks, T.
        episodes: Episodes of an agent.
        copies: Independent agents of a task.
        rng: Source of their draws.

    Returns:
        Return and length of every episode, both float32 [T, copies, episodes].
    """
    rooms = tasks.repeated(copies).rooms()
    both = returns_and_lengths(rooms, Explorers(rooms, rng), episodes)
    returns, lengths = both.reshape(2, len(tasks), copies, episodes)
    return returns, lengths
