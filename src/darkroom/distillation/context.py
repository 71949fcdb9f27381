"""The transformer's input: windows of steps in dark rooms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darkroom.rooms.grid import ACTIONS

NO_CELL = -1  # previous cell of the very first step
NO_ACTION, NO_REWARD = ACTIONS, 2  # its previous action and reward
FIELDS = ("previous_cells", "previous_times", "actions", "rewards", "cells", "times")


@dataclass(frozen=True)
class Context:
    """R windows of n steps: at every step the previous transition and the present cell.

    Attributes:
        previous_cells: Cell before the previous action, int64 [R, n]; NO_CELL without one.
        previous_times: Steps of the episode before the previous action, int64 [R, n]; 0 without one.
        actions: The previous action, int64 [R, n]; NO_ACTION without one.
        rewards: Its reward, int64 [R, n]: 0, 1 or NO_REWARD.
        cells: Present cell, int64 [R, n]; after the end of an episode the first one of the next.
        times: Steps of the present episode so far, int64 [R, n].
        sizes: Side of every window's room, int64 [R].
    """

    previous_cells: np.ndarray
    previous_times: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    cells: np.ndarray
    times: np.ndarray
    sizes: np.ndarray

    @classmethod
    def empty(cls, sizes: np.ndarray, steps: int) -> Context:
        """Return zeros.

        Args:
            sizes: Sides of the rooms, int [R].
            steps: Length, n.
        """
        shape = len(sizes), steps
        return cls(*(np.zeros(shape, np.int64) for _ in FIELDS), np.asarray(sizes, np.int64))

    @classmethod
    def first(cls, cells: np.ndarray, sizes: np.ndarray) -> Context:
        """Return the first step of agents, without a previous transition.

        Args:
            cells: Their cells, int [R].
            sizes: Sides of the rooms, int [R].
        """
        first = cls.empty(sizes, 1)
        first.previous_cells[:], first.actions[:], first.rewards[:] = NO_CELL, NO_ACTION, NO_REWARD
        first.cells[:, 0] = cells
        return first

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return self.cells.shape[1]

    def cut(self, begin: int, end: int) -> Context:
        """Return steps `begin` to `end` as a view."""
        return Context(*(getattr(self, name)[:, begin:end] for name in FIELDS), self.sizes)

    def rows(self, which: slice) -> Context:
        """Return some of the windows as a view."""
        return Context(*(getattr(self, name)[which] for name in (*FIELDS, "sizes")))

    def copy(self) -> Context:
        """Return a copy of all arrays."""
        return Context(*(getattr(self, name).copy() for name in (*FIELDS, "sizes")))

    def put(self, at: int, other: Context) -> None:
        """Overwrite the steps from `at` on."""
        for name in FIELDS:
            getattr(self, name)[:, at : at + len(other)] = getattr(other, name)
