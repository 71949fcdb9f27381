"""States of environments as arrays, which the engine loads and returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from skills.levels.codes import BORDER, VIEW

PAD = VIEW - 1  # width of the wall around a grid, so that no view leaves the array


@dataclass(frozen=True)
class Levels:
    """States of L environments.

    Attributes:
        cells: uint16 [L, height, width], see `skills.levels.codes`.
        inside: Content of the box in a cell, uint16 [L, height, width]; 0: empty, or no box.
        agent: Column, row and direction (0 right, 1 down, 2 left, 3 up), int32 [L, 3].
        carried: The carried object and its content, uint16 [L, 2]; 0: none.
        mission: uint8 [L, 4], see `skills.levels.codes`.
        strict: Whether a wrong pick-up or toggle ends the episode, as in this project's levels only, bool [L].
        steps: Steps of the episode so far, int32 [L].
        max_steps: Step limit of the episode, int32 [L].
        seed: Seed of the level, which determines the environment's next level, int64 [L].
    """

    cells: np.ndarray
    inside: np.ndarray
    agent: np.ndarray
    carried: np.ndarray
    mission: np.ndarray
    strict: np.ndarray
    steps: np.ndarray
    max_steps: np.ndarray
    seed: np.ndarray

    def __len__(self) -> int:
        return len(self.seed)

    def __getitem__(self, which: np.ndarray | slice | list[int]) -> Levels:
        """Return some of the levels, in the given order."""
        return Levels(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: list[Levels]) -> Levels:
        """Concatenate levels whose grids have the same size."""
        names = [field.name for field in fields(Levels)]
        return Levels(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def contents(self) -> np.ndarray:
        """Return bytes [L] that are equal where levels are equal apart from seeds and steps."""
        parts = (self.cells, self.inside, self.agent, self.carried, self.mission, self.strict)
        rows = np.hstack(
            [np.ascontiguousarray(part).reshape(len(self), -1).view(np.uint8) for part in parts]
        )
        return rows.view(np.dtype((np.void, rows.shape[1])))[:, 0]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the grids."""
        return self.cells.shape[2], self.cells.shape[1]


# Columns of `State.info`.
AT, DIRECTION, HAND, IN_HAND, VERB, COLOUR, KIND, PLACE, STRICT, STEPS, LIMIT, SEED = range(12)


class State(NamedTuple):
    """The same for kernels, in few arrays, since every argument costs numba time.

    Attributes:
        cells, inside: Flattened grids with walls of `PAD` cells around them,
            uint16 [N, (height + 2 PAD) (width + 2 PAD)].
        info: The remaining values, by the columns above; AT is an index into a row of `cells`. int64 [N, 12].
    """

    cells: np.ndarray
    inside: np.ndarray
    info: np.ndarray


def empty_state(count: int, width: int, height: int) -> State:
    """Return the arrays of N environments with empty grids."""
    area = (width + 2 * PAD) * (height + 2 * PAD)
    return State(
        np.full((count, area), BORDER, np.uint16),
        np.zeros((count, area), np.uint16),
        np.zeros((count, SEED + 1), np.int64),
    )


def packed(levels: Levels) -> State:
    """Convert levels to new arrays for kernels."""
    width, height = levels.size
    state = empty_state(len(levels), width, height)
    _inner(state.cells, width, height)[:] = levels.cells
    _inner(state.inside, width, height)[:] = levels.inside
    x, y, direction = levels.agent.T
    info = state.info
    info[:, AT] = (y + PAD) * (width + 2 * PAD) + x + PAD
    info[:, DIRECTION] = direction
    for name, columns in _COLUMNS.items():
        info[:, columns] = getattr(levels, name)
    return state


def unpacked(state: State, width: int, height: int) -> Levels:
    """Convert arrays of kernels to levels, as copies."""
    info = state.info
    y, x = np.divmod(info[:, AT], width + 2 * PAD)
    return Levels(
        cells=_inner(state.cells, width, height).copy(),
        inside=_inner(state.inside, width, height).copy(),
        agent=np.stack([x - PAD, y - PAD, info[:, DIRECTION]], axis=1).astype(np.int32),
        **{name: info[:, columns].astype(_TYPES[name]) for name, columns in _COLUMNS.items()},
    )


_COLUMNS: dict[str, int | slice] = {
    "carried": slice(HAND, IN_HAND + 1), "mission": slice(VERB, PLACE + 1), "strict": STRICT,
    "steps": STEPS, "max_steps": LIMIT, "seed": SEED,
}  # fmt: skip
_TYPES = {
    "carried": np.uint16, "mission": np.uint8, "strict": bool,
    "steps": np.int32, "max_steps": np.int32, "seed": np.int64,
}  # fmt: skip


def _inner(cells: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return a view of the grids without their padding, [N, height, width]."""
    whole = cells.reshape(len(cells), height + 2 * PAD, width + 2 * PAD)
    return whole[:, PAD : PAD + height, PAD : PAD + width]
