"""What the transformer sees: steps of a room, one window of them in each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darkroom.rooms.grid import ACTIONS

NO_CELL = -1  # before the first step of all there was none
NO_ACTION, NO_REWARD = ACTIONS, 2  # and neither an action nor a reward
FIELDS = ("before", "acted", "actions", "rewards", "cells", "times")


@dataclass(frozen=True)
class Context:
    """R windows of n steps: at each step what the step before did, and where the agent is now.

    Attributes:
        before: Cell before the last action, int64 [R, n]; NO_CELL if there was none.
        acted: Steps of the episode before the last action, int64 [R, n]; 0 if there was none.
        actions: The last action, int64 [R, n]; NO_ACTION if there was none.
        rewards: What it gave, int64 [R, n]: 0, 1 or NO_REWARD.
        cells: Where the agent is, int64 [R, n]; the first cell of an episode where the last one has ended.
        times: Steps of the episode so far, int64 [R, n].
        sizes: Cells of a side of each row's room, int64 [R].
    """

    before: np.ndarray
    acted: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    cells: np.ndarray
    times: np.ndarray
    sizes: np.ndarray

    @classmethod
    def empty(cls, sizes: np.ndarray, steps: int) -> Context:
        """Room for `steps` steps in rooms of these sides, int [R]."""
        shape = len(sizes), steps
        return cls(*(np.zeros(shape, np.int64) for _ in FIELDS), np.asarray(sizes, np.int64))

    @classmethod
    def first(cls, cells: np.ndarray, sizes: np.ndarray) -> Context:
        """The beginning: agents in `cells`, int [R], with nothing behind them."""
        made = cls.empty(sizes, 1)
        made.before[:], made.actions[:], made.rewards[:] = NO_CELL, NO_ACTION, NO_REWARD
        made.cells[:, 0] = cells
        return made

    def __len__(self) -> int:
        """Steps, n."""
        return self.cells.shape[1]

    def cut(self, begin: int, end: int) -> Context:
        """Steps `begin` to `end`; shares memory."""
        return Context(*(getattr(self, name)[:, begin:end] for name in FIELDS), self.sizes)

    def rows(self, which: slice) -> Context:
        """Some of the windows; shares memory."""
        return Context(*(getattr(self, name)[which] for name in (*FIELDS, "sizes")))

    def put(self, at: int, other: Context) -> None:
        """Overwrites the steps from `at` on."""
        for name in FIELDS:
            getattr(self, name)[:, at : at + len(other)] = getattr(other, name)
