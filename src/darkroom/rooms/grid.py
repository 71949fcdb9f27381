"""The dark room in numbers: cells, moves, tasks, and the returns of optimal and random agents.

A cell is an integer, row x size + column; rows count from the top. The rooms are toy-meta-gym's `DarkRoom` and
`DarkKeyToDoor` (Laskin et al. 2022, "In-context Reinforcement Learning with Algorithm Distillation", arXiv 2210.14215,
section 4). A task is an integer, too: the cell of its goal, or, where a key has to be met before the goal counts,

    (1 + cell of the key) x size^2 + cell of the goal          (Key-To-Door; the goal is the door)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

ACTIONS = 5
NO_KEY = -1  # of a task
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


def task_with_key(
    keys: int | np.ndarray, goals: int | np.ndarray, sizes: int | np.ndarray
) -> int | np.ndarray:
    """Return the tasks with these cells of keys and goals, in rooms of these sides."""
    return (1 + keys) * sizes**2 + goals


def key_and_goal(
    tasks: int | np.ndarray, sizes: int | np.ndarray
) -> tuple[int | np.ndarray, int | np.ndarray]:
    """Return the cells of key and goal of tasks, in rooms of these sides; the key is NO_KEY where a task has none."""
    return tasks // sizes**2 - 1, tasks % sizes**2


def needs_key(tasks: np.ndarray, size: int) -> np.ndarray:
    """Return which tasks have a key, bool [n]."""
    return np.asarray(tasks) >= size**2


def read_task(words: Sequence[str], size: int) -> int:
    """Return the task that is written as the goal's row and column, after those of the key if it has one.

    Raises:
        ValueError: The words are not two or four whole numbers, a cell lies outside of the room, or key and goal are in
            the same one.
    """
    if len(words) not in (2, 4) or not all(word.isdecimal() for word in words):
        raise ValueError(f"{' '.join(words)!r} is no row and column")
    *key, goal = (
        cell_of(int(row), int(column), size)
        for row, column in zip(words[::2], words[1::2], strict=True)
    )
    if key == [goal]:
        raise ValueError(f"{' '.join(words)!r} has the key in the cell of the goal")
    return int(task_with_key(key[0], goal, size)) if key else goal


def task_text(task: int, size: int) -> str:
    """Return a task as :func:`read_task` reads it, with spaces between the words."""
    key, goal = key_and_goal(task, size)
    cells = (goal,) if key == NO_KEY else (key, goal)
    return " ".join(f"{cell // size} {cell % size}" for cell in cells)


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
    """Return all tasks without a key, int32 [size^2 - 1]: every cell but the centre is a goal."""
    return np.delete(np.arange(size * size, dtype=np.int32), centre(size))


def tasks_with_key(size: int) -> np.ndarray:
    """Return all tasks with a key, int32 [n]: key and goal are any two cells but the centre."""
    goals = tasks(size)
    pairs = task_with_key(goals[:, None], goals, size)
    return pairs[~np.eye(len(goals), dtype=bool)].astype(np.int32)


def task_in_room(task: int, size: int, other: int) -> int:
    """Return the task of another room with the same offsets from the centre; -1 if one lies outside."""
    key, goal = key_and_goal(task, size)
    cells = []
    for cell in (goal,) if key == NO_KEY else (key, goal):
        row, column = (place - size // 2 + other // 2 for place in divmod(cell, size))
        if not (0 <= row < other and 0 <= column < other):
            return -1
        cells.append(row * other + column)
    return cells[0] if key == NO_KEY else int(task_with_key(*cells, other))


def distances(size: int) -> np.ndarray:
    """Return the number of moves from the centre to every cell, int [size^2]."""
    return distance(np.arange(size * size), np.int64(centre(size)), size)


def distance(cells: np.ndarray, others: np.ndarray, size: int) -> np.ndarray:
    """Return the number of moves from cells to others of the same room."""
    (rows, columns), (other_rows, other_columns) = np.divmod(cells, size), np.divmod(others, size)
    return np.abs(rows - other_rows) + np.abs(columns - other_columns)


def steps_to_rewards(size: int, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fewest steps from the centre to the key, and to the goal by way of the key, both int [n].

    They are equal where a task has no key. What lies in the centre is met after a step, too.
    """
    keys, goals = key_and_goal(np.asarray(tasks), size)
    first = np.where(keys == NO_KEY, goals, keys)
    to_first = np.maximum(distances(size)[first], 1)
    return to_first, to_first + distance(first, goals, size)


def reached_goal(size: int, tasks: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Return whether episodes met the goal while it counted, by their returns, bool [..., n].

    Args:
        size: Side of the rooms [cells].
        tasks: Tasks, int [n].
        returns: Returns, float [..., n]; that of the key is 1.
    """
    return returns > needs_key(tasks, size)


def mean_by_goal(size: int, tasks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the mean of the values of all tasks with the same goal by cell, float [size^2]; NaN without a task."""
    _, goals = key_and_goal(np.asarray(tasks), size)
    with np.errstate(invalid="ignore"):
        return np.bincount(goals, values, size**2) / np.bincount(goals, minlength=size**2)


def reach_problem(size: int, limit: int, tasks_of_room: Sequence[int] | None = None) -> str:
    """Return which room has a goal that no episode reaches; "" where all can be reached.

    Args:
        size: Side of the room [cells].
        limit: Steps of an episode.
        tasks_of_room: Tasks; None: all without a key.
    """
    chosen = tasks(size) if tasks_of_room is None else np.asarray(tasks_of_room)
    if steps_to_rewards(size, chosen)[1].max() <= limit:
        return ""
    return f"the farthest goal of a {size} x {size} room cannot be reached in {limit} steps"


def optimal_return(size: int, tasks: np.ndarray, limit: int, *, terminating: bool) -> np.ndarray:
    """Return the highest return of an episode from the centre by task, float [n].

    Args:
        size: Side of the room [cells].
        tasks: Tasks, int [n].
        limit: Steps of an episode.
        terminating: Whether the goal ends the episode, so that it pays once.
    """
    to_key, to_goal = steps_to_rewards(size, tasks)
    paid = np.clip(limit + 1 - to_goal, 0, None)
    key_reward = needs_key(tasks, size) & (to_key <= limit)
    return np.minimum(paid, 1 if terminating else limit) + key_reward.astype(float)


def random_return(size: int, tasks: np.ndarray, limit: int, *, terminating: bool) -> np.ndarray:
    """Return the exact expected return of uniformly random actions by task, float [n].

    Args: see :func:`optimal_return`.
    """
    return np.add(*_random_rewards(size, np.asarray(tasks), limit, terminating=terminating))


def random_success(size: int, tasks: np.ndarray, limit: int) -> np.ndarray:
    """Return the exact probability that uniformly random actions meet the goal in an episode, float [n].

    Args: see :func:`optimal_return`.
    """
    return _random_rewards(size, np.asarray(tasks), limit, terminating=True)[1]


def _random_rewards(
    size: int, tasks: np.ndarray, limit: int, *, terminating: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected rewards for keys and for goals of uniformly random actions, both float [n]."""
    keys, goals = key_and_goal(tasks, size)
    cells, rows = size * size, np.arange(len(tasks))
    transition = np.zeros((cells, cells))
    origins = np.repeat(np.arange(cells), ACTIONS)
    np.add.at(transition, (origins, transitions(size).ravel()), 1 / ACTIONS)
    # Probability of every cell with the key, or where none is needed, and without it.
    with_key, without_key = np.zeros((2, len(tasks), cells))
    keyed = needs_key(tasks, size)
    with_key[:, centre(size)], without_key[:, centre(size)] = ~keyed, keyed
    key_rewards, goal_rewards = np.zeros((2, len(tasks)))
    for _ in range(limit):
        with_key = with_key @ transition
        goal_rewards += with_key[rows, goals]
        if terminating:
            with_key[rows, goals] = 0.0
        if keyed.any():
            without_key = without_key @ transition
            taken = without_key[rows, keys]  # 0 where there is no key
            key_rewards += taken
            with_key[rows, keys] += taken
            without_key[rows, keys] = 0.0
    return key_rewards, goal_rewards


def normalised_return(
    returns: np.ndarray, size: int, tasks: np.ndarray, limit: int, *, terminating: bool
) -> np.ndarray:
    """Return (return - random) / (optimal - random) by task: 0 for random actions, 1 for optimal ones.

    Args:
        returns: Returns of episodes, float [..., n].
        size, tasks, limit, terminating: See :func:`optimal_return`.
    """
    optimal = optimal_return(size, tasks, limit, terminating=terminating)
    random = random_return(size, tasks, limit, terminating=terminating)
    return (np.asarray(returns) - random) / (optimal - random)
