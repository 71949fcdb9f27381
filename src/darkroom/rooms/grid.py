"""The dark room in numbers: cells, moves, tasks, and the returns of optimal and random agents.

A cell is an integer, row x size + column; rows count from the top. The room is toy-meta-gym's `DarkRoom` (the task:
Laskin et al. 2022, "In-context Reinforcement Learning with Algorithm Distillation", arXiv 2210.14215, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

ACTIONS = 5
STAY, UP, RIGHT, DOWN, LEFT = range(ACTIONS)
MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))  # (row, column) by action


def centre(size: int) -> int:
    """Return the cell in which an episode begins; with an even side, the lower right of the four in the middle."""
    return (size // 2) * size + size // 2


def cell_of(row: int, column: int, size: int) -> int:
    """Return the cell of a row and column.

    Raises:
        ValueError: It lies outside of the room.
    """
    if not (0 <= row < size and 0 <= column < size):
        raise ValueError(f"({row}, {column}) is outside of a room of {size} x {size}")
    return row * size + column


def read_cell(words: Sequence[str], size: int) -> int:
    """Return the cell that is written as row and column.

    Raises:
        ValueError: The words are not two whole numbers, or the cell lies outside of the room.
    """
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise ValueError(f"{' '.join(words)!r} is no row and column")
    return cell_of(int(words[0]), int(words[1]), size)


@lru_cache(maxsize=32)
def transitions(size: int) -> np.ndarray:
    """Return the cell after every move, int32 [size^2, 5], read-only; walls stop a move."""
    rows, columns = np.divmod(np.arange(size * size), size)
    after = [
        np.clip(rows + down, 0, size - 1) * size + np.clip(columns + right, 0, size - 1)
        for down, right in MOVES
    ]
    table = np.stack(after, axis=1).astype(np.int32)
    table.flags.writeable = False
    return table


def tasks(size: int) -> np.ndarray:
    """Return the goals of all tasks, int32 [size^2 - 1]: every cell but the centre."""
    return np.delete(np.arange(size * size, dtype=np.int32), centre(size))


def cell_in_room(goal: int, size: int, other: int) -> int:
    """Return the cell of another room at the same offset from the centre as `goal`; -1 if the offset lies outside."""
    row, column = (place - size // 2 + other // 2 for place in divmod(goal, size))
    return row * other + column if 0 <= row < other and 0 <= column < other else -1


def distances(size: int) -> np.ndarray:
    """Return the number of moves from the centre to every cell, int [size^2]."""
    row, column = divmod(centre(size), size)
    rows, columns = np.divmod(np.arange(size * size), size)
    return np.abs(rows - row) + np.abs(columns - column)


def reach_problem(size: int, limit: int, goals: Sequence[int] | None = None) -> str:
    """Return which room has a goal that no episode reaches; "" where all can be reached.

    Args:
        size: Side of the room [cells].
        limit: Steps of an episode.
        goals: Cells; None: all tasks'.
    """
    chosen = tasks(size) if goals is None else goals
    if distances(size)[chosen].max() <= limit:
        return ""
    return f"the farthest goal of a {size} x {size} room cannot be reached in {limit} steps"


def optimal_return(size: int, goals: np.ndarray, limit: int, *, terminating: bool) -> np.ndarray:
    """Return the highest return of an episode from the centre by goal, float [n].

    Args:
        size: Side of the room [cells].
        goals: Cells, int [n].
        limit: Steps of an episode.
        terminating: Whether the goal ends the episode, so that it pays once.
    """
    first = np.maximum(distances(size)[goals], 1)  # a goal in the centre pays after a step, too
    paid = np.clip(limit + 1 - first, 0, None)
    return np.minimum(paid, 1).astype(float) if terminating else paid.astype(float)


def random_return(size: int, goals: np.ndarray, limit: int, *, terminating: bool) -> np.ndarray:
    """Return the exact expected return of uniformly random actions by goal, float [n].

    Args: see :func:`optimal_return`.
    """
    goals = np.asarray(goals)
    cells = size * size
    transition = np.zeros((cells, cells))
    origins = np.repeat(np.arange(cells), ACTIONS)
    np.add.at(transition, (origins, transitions(size).ravel()), 1 / ACTIONS)
    probability = np.zeros((len(goals), cells))
    probability[:, centre(size)] = 1.0
    returns = np.zeros(len(goals))
    rows = np.arange(len(goals))
    for _ in range(limit):
        probability = probability @ transition
        returns += probability[rows, goals]
        if terminating:
            probability[rows, goals] = 0.0
    return returns


def normalised_return(
    returns: np.ndarray, size: int, goals: np.ndarray, limit: int, *, terminating: bool
) -> np.ndarray:
    """Return (return - random) / (optimal - random) by goal: 0 for random actions, 1 for optimal ones.

    Args:
        returns: Returns of episodes, float [..., n].
        size, goals, limit, terminating: See :func:`optimal_return`.
    """
    optimal = optimal_return(size, goals, limit, terminating=terminating)
    random = random_return(size, goals, limit, terminating=terminating)
    return (np.asarray(returns) - random) / (optimal - random)
