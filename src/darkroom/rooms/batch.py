"""Many dark rooms at once, as arrays; step for step the same as `darkroom.rooms.env`.

An episode that ends is followed by the next one in the same step: the observation is the first of the new episode, and
`Step.final` has the last cell of the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darkroom.rooms.grid import NO_KEY, centre, key_and_goal, transitions


@dataclass(frozen=True)
class Step:
    """Result of a step in all rooms.

    Attributes:
        cells: Observations, int32 [n]; after the end of an episode the first one of the next.
        rewards: float32 [n].
        terminated: bool [n].
        truncated: bool [n].
        final: Cells before new episodes began, int32 [n].
        final_states: States before new episodes began, see :attr:`RoomBatch.states`, int32 [n].
    """

    cells: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray
    final_states: np.ndarray


class RoomBatch:
    """Rooms, possibly of different sides, with a task per room.

    The reward is 1 in every step that ends on the goal, and where the task has a key, 1 for meeting it and nothing on
    the goal before that. With `terminating` these are the rules of :class:`darkroom.rooms.env.DarkKeyToDoor`.

    Args:
        tasks: Tasks as in :mod:`darkroom.rooms.grid`, int [n].
        size: Side of all rooms, int, or of every room, int [n].
        limit: Steps of an episode.
        terminating: The goal ends an episode.

    Attributes:
        cells: int32 [n].
        times: Steps of the present episodes so far, int32 [n].
        goal_pays: Whether the key was met in this episode, or there is none, bool [n].

    Raises:
        ValueError: A goal or key lies outside its room, or both are in one cell.
    """

    def __init__(
        self,
        tasks: np.ndarray,
        size: int | np.ndarray = 9,
        *,
        limit: int = 20,
        terminating: bool = False,
    ) -> None:
        tasks = np.asarray(tasks, np.int32)
        self.sizes = np.broadcast_to(np.asarray(size, np.int32), tasks.shape).copy()
        self.limit, self.terminating = limit, terminating
        self.keys, self.goals = key_and_goal(tasks, self.sizes)
        if ((tasks < 0) | (self.keys >= self.sizes**2) | (self.keys == self.goals)).any():
            raise ValueError("a goal or key is outside of its room, or both are in one cell")
        # The transition tables of all occurring sides are concatenated.
        sides = [int(side) for side in np.unique(self.sizes)]
        self._transitions = np.concatenate([transitions(side) for side in sides])
        begins = dict(zip(sides, np.cumsum([0, *(side**2 for side in sides)]), strict=False))
        self._begins = np.array([begins[int(side)] for side in self.sizes], np.int32)
        self._centres = np.array([centre(int(side)) for side in self.sizes], np.int32)
        self.cells = self._centres.copy()
        self.times = np.zeros(len(tasks), np.int32)
        self.goal_pays = np.ones(len(tasks), bool)
        self._any_key = bool((self.keys != NO_KEY).any())
        self.reset()

    def __len__(self) -> int:
        return len(self.goals)

    @property
    def states(self) -> np.ndarray:
        """The cell, plus size^2 while the agent has a key, int32 [n]."""
        if not self._any_key:
            return self.cells
        return self.cells + self.sizes**2 * (self.goal_pays & (self.keys != NO_KEY))

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
        rewards = on_goal.astype(np.float32)
        if self._any_key:
            taken = (self.cells == self.keys) & ~self.goal_pays
            self.goal_pays = self.goal_pays | taken
            on_goal &= self.goal_pays
            rewards = (taken | on_goal).astype(np.float32)
        terminated = on_goal if self.terminating else np.zeros_like(on_goal)
        truncated = self.times >= self.limit
        final, final_states, ended = self.cells, self.states, terminated | truncated
        if ended.any():
            self.cells = final.copy()
            self._begin(ended)
        return Step(self.cells.copy(), rewards, terminated, truncated, final, final_states)

    def _begin(self, which: np.ndarray) -> None:
        """Begin new episodes in some rooms, bool [n]."""
        self.times[which] = 0
        if self._any_key:
            self.goal_pays[which] = self.keys[which] == NO_KEY
        self.cells[which] = self._centres[which]
