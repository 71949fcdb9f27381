"""Many dark rooms at once, as arrays; step for step the same as `darkroom.rooms.env`.

An episode that ends is followed by the next one in the same step: the observation is the first of the new episode, and
`Step.final` has the last cell of the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darkroom.rooms.grid import centre, transitions


@dataclass(frozen=True)
class Step:
    """Result of a step in all rooms.

    Attributes:
        cells: Observations, int32 [n]; after the end of an episode the first one of the next.
        rewards: float32 [n].
        terminated: bool [n].
        truncated: bool [n].
        final: Cells before new episodes began, int32 [n].
    """

    cells: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray


class RoomBatch:
    """Rooms, possibly of different sides, with a goal per room.

    Args:
        goals: Cells, int [n].
        size: Side of all rooms, int, or of every room, int [n].
        limit: Steps of an episode.
        random_start: Begin in a random cell instead of the centre.
        terminating: The goal ends an episode.
        rng: Source of the random cells; needed with `random_start`.

    Attributes:
        cells: int32 [n].
        times: Steps of the present episodes so far, int32 [n].

    Raises:
        ValueError: A goal lies outside its room, or `rng` is missing.
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
        # The transition tables of all occurring sides are concatenated.
        sides = [int(side) for side in np.unique(self.sizes)]
        self._transitions = np.concatenate([transitions(side) for side in sides])
        begins = dict(zip(sides, np.cumsum([0, *(side**2 for side in sides)]), strict=False))
        self._begins = np.array([begins[int(side)] for side in self.sizes], np.int32)
        self._centres = np.array([centre(int(side)) for side in self.sizes], np.int32)
        self.cells = self._centres.copy()
        self.times = np.zeros(len(self.goals), np.int32)
        self.reset()

    def __len__(self) -> int:
        return len(self.goals)

    def reset(self) -> np.ndarray:
        """Begin new episodes in all rooms and return their cells, int32 [n]."""
        self._begin(np.ones(len(self), bool))
        return self.cells.copy()

    def step(self, actions: np.ndarray) -> Step:
        """Move in every room.

        Args:
            actions: int [n], 0 to 4.
        """
        self.cells = self._transitions[self._begins + self.cells, actions]
        self.times += 1
        on_goal = self.cells == self.goals
        terminated = on_goal if self.terminating else np.zeros_like(on_goal)
        truncated = self.times >= self.limit
        final, ended = self.cells, terminated | truncated
        if ended.any():
            self.cells = final.copy()
            self._begin(ended)
        return Step(self.cells.copy(), on_goal.astype(np.float32), terminated, truncated, final)

    def _begin(self, which: np.ndarray) -> None:
        """Begin new episodes in some rooms, bool [n]."""
        self.times[which] = 0
        if self._rng is None:
            self.cells[which] = self._centres[which]
        else:
            self.cells[which] = self._rng.integers(self.sizes[which].astype(np.int64) ** 2)
