"""Many dark rooms at once: arrays in place of a loop, step for step what `darkroom.rooms.env` gives.

An episode that has ended begins anew in the same step: the observation is then the first of the next
episode, and `Step.final` holds the cell in which the old one ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darkroom.rooms.grid import centre, transitions


@dataclass(frozen=True)
class Step:
    """What a step of all rooms gives.

    Attributes:
        cells: Observations, int32 [n]; of a new episode where one has ended.
        rewards: float32 [n].
        terminated: bool [n].
        truncated: bool [n].
        final: The cells before new episodes began, int32 [n].
    """

    cells: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray


class RoomBatch:
    """Rooms of possibly different sides, each with a goal of its own.

    Args:
        goals: Cells, int [n].
        size: Cells of a side, of all rooms or of each, int or int [n].
        limit: Steps of an episode.
        random_start: Begin anywhere instead of in the centre; the cells come from `rng`.
        terminating: The goal ends an episode.
        rng: Needed with `random_start`.

    Attributes:
        cells: int32 [n].
        times: Steps of the present episodes so far, int32 [n].

    Raises:
        ValueError: A goal lies outside of its room, or there is no `rng` where one is needed.
    """

    def __init__(
        self,
        goals: np.ndarray,
        size: int | np.ndarray = 9,
        *,
        limit: int = 20,
        random_start: bool = False,
        terminating: bool = False,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.goals = np.asarray(goals, np.int32)
        self.sizes = np.broadcast_to(np.asarray(size, np.int32), self.goals.shape).copy()
        self.limit, self.terminating = limit, terminating
        if ((self.goals < 0) | (self.goals >= self.sizes**2)).any():
            raise ValueError("a goal is outside of its room")
        if random_start and rng is None:
            raise ValueError("random_start needs rng")
        self._rng = rng if random_start else None
        # The tables of all sides that occur, one below the other.
        self._tables = np.concatenate([transitions(int(s)) for s in np.unique(self.sizes)])
        offsets, below = {}, 0
        for each in np.unique(self.sizes):
            offsets[int(each)], below = below, below + int(each) ** 2
        self._offsets = np.array([offsets[int(each)] for each in self.sizes], np.int32)
        self._centres = np.array([centre(int(each)) for each in self.sizes], np.int32)
        self.cells = self._centres.copy()
        self.times = np.zeros(len(self.goals), np.int32)
        self.reset()

    def __len__(self) -> int:
        return len(self.goals)

    def reset(self) -> np.ndarray:
        """Begins all episodes; returns their cells, int32 [n]."""
        self._begin(np.ones(len(self), bool))
        return self.cells.copy()

    def step(self, actions: np.ndarray) -> Step:
        """Moves in every room.

        Args:
            actions: int [n], 0 to 4.
        """
        self.cells = self._tables[self._offsets + self.cells, actions]
        self.times += 1
        rewards, terminated = self._pay()
        truncated = self.times >= self.limit
        final, ended = self.cells, terminated | truncated
        if ended.any():
            self.cells = final.copy()
            self._begin(ended)
        return Step(self.cells.copy(), rewards, terminated, truncated, final)

    def _pay(self) -> tuple[np.ndarray, np.ndarray]:
        found = self.cells == self.goals
        return found.astype(np.float32), found if self.terminating else np.zeros_like(found)

    def _begin(self, which: np.ndarray) -> None:
        """Begins the episodes of some rooms, bool [n]."""
        self.times[which] = 0
        if self._rng is None:
            self.cells[which] = self._centres[which]
        else:
            self.cells[which] = self._rng.integers(self.sizes[which].astype(np.int64) ** 2)
