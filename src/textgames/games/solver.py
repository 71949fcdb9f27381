"""Shortest solutions: of Sokoban by breadth-first search, of FrozenLake by a search over cells and time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.draws import draw
from rl.kernels import kernel, part
from textgames.games import frozenlake, sokoban
from textgames.games.bandit import HIGH
from textgames.games.config import GameConfig
from textgames.games.frozenlake import GOAL, HOLE, SLIPS, moved, slipped
from textgames.games.interface import BANDIT, SOKOBAN
from textgames.games.sokoban import BOX, PLAYER, TARGET, WALL, direction, enter, leave, tables

LONGEST = 100  # actions of a solution, as in RAGEN
MOST_STATES = 1_000_000  # of a level that are searched

Actions = NDArray[np.int64]


def solve(cells: NDArray[np.uint8]) -> list[Actions | None]:
    """Return a shortest solution of every Sokoban level, actions 1 to 4.

    Args:
        cells: Levels or later states, uint8 [n, size, size], see `sokoban.Sokoban.cells`.

    Returns:
        None for a level without a solution of at most `LONGEST` actions within the first `MOST_STATES` states of the
        search.
    """
    return _as_list(*_solved(cells))


def lengths(cells: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the length of every solution of `solve`, -1 for None; int64 [n]."""
    return _solved(cells)[0]


def walk(
    cells: NDArray[np.uint8], player: NDArray[np.int64], rng: NDArray[np.uint64] | None = None
) -> list[Actions | None]:
    """Return a shortest way to the goal of every FrozenLake map, actions 1 to 4; None: none within `LONGEST` actions.

    Args:
        cells: Maps, uint8 [n, size, size].
        player: First cells, int64 [n].
        rng: Random states of the slips, uint64 [n, 1], as `frozenlake.generate` returns them: the way succeeds with
            these slips. None: without slips.
    """
    count = len(cells)
    length, actions = np.empty(count, np.int64), np.empty((count, LONGEST), np.int64)
    state = np.zeros((count, 1), np.uint64) if rng is None else rng.copy()
    _walk(cells, player, state, rng is not None, length, actions)
    return _as_list(length, actions)


def solutions(
    config: GameConfig, seeds: NDArray[np.int64], *, safe: bool = False
) -> list[Actions | None]:
    """Return a shortest solution of the level of every seed; None: there is none.

    Args:
        config: The flags.
        seeds: int64 [n].
        safe: On slippery ice, the shortest way without slips. Otherwise the shortest actions that succeed with the
            slips of the seed, as in RAGEN: equally many, but wrong with other slips.
    """
    if config.env == BANDIT:
        return [np.array([HIGH])] * len(seeds)
    if config.env == SOKOBAN:
        return solve(sokoban.generate(seeds, config.side, config.boxes, config.search_depth))
    cells, player, rng = frozenlake.generate(seeds, config.side, config.frozen)
    return walk(cells, player, rng if config.slippery and not safe else None)


def _as_list(length: NDArray[np.int64], actions: NDArray[np.int64]) -> list[Actions | None]:
    return [None if n < 0 else row[:n] for n, row in zip(length.tolist(), actions, strict=True)]


def _solved(cells: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    length, actions = np.full(len(cells), -1), np.empty((len(cells), LONGEST), np.int64)
    if len(cells):
        boxes = int((cells[0] & BOX > 0).sum())
        _solve(cells, boxes, most_states(cells.shape[1], boxes), length, actions)
    return length, actions


def most_states(size: int, boxes: int) -> int:
    """Return the number of states to search in a level of Sokoban, at most `MOST_STATES`."""
    return min(MOST_STATES, (size - 2) ** (2 * (boxes + 1)))


@kernel
def _solve(cells, boxes, most, length, actions):
    size = cells.shape[1]
    table, used = tables(size, boxes, most)
    states = np.empty((most, 1 + boxes), np.int16)
    before, by, depth = np.empty(most, np.int32), np.empty(most, np.int8), np.empty(most, np.int8)
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        read_state(grid, states[0])
        enter(key_of(states[0]), table, used, 0)
        depth[0], at, count = 0, 0, 1
        end = 0 if solved(grid, states[0]) else -1
        while end < 0 and at < count and count < most and depth[at] < LONGEST:
            for action in range(1, 5):
                if count == most or not advance(grid, size, states[at], action, states[count]):
                    continue
                if enter(key_of(states[count]), table, used, count):
                    before[count], by[count], depth[count] = at, action, depth[at] + 1
                    if solved(grid, states[count]):
                        end = count
                    count += 1
                    if end >= 0:
                        break
            at += 1
        leave(table, used, count)
        if end >= 0:
            length[n] = depth[end]
            for k in range(depth[end] - 1, -1, -1):
                actions[n, k] = by[end]
                end = before[end]


@part
def read_state(grid, state):
    """Write player and boxes of a grid into a state, cells counted by rows, boxes in rising order."""
    box = 1
    for cell in range(len(grid)):
        if grid[cell] & PLAYER:
            state[0] = cell
        if grid[cell] & BOX:
            state[box] = cell
            box += 1


@part
def key_of(state):
    """Return a number above 0 that identifies a state of a level."""
    key = np.uint64(1 + state[0])
    for k in range(1, len(state)):
        key = key << np.uint64(9) | np.uint64(state[k])
    return key


@part
def solved(grid, state):
    """Return whether all boxes are on targets."""
    on = 0
    for k in range(1, len(state)):
        on += grid[state[k]] & TARGET > 0
    return on == len(state) - 1


@part
def advance(grid, size, state, action, after):
    """Write the next state after an action; return whether anything moved."""
    down, right = direction(action)
    by = down * size + right
    to = state[0] + by
    if grid[to] & WALL:
        return False
    after[0], pushed, blocked = to, -1, grid[to + by] & WALL > 0
    for k in range(1, len(state)):
        after[k] = state[k]
        blocked |= state[k] == to + by
        if state[k] == to:
            pushed = k
    if pushed < 0:
        return True
    if blocked:
        return False
    after[pushed] = to + by
    for k in range(pushed, 1, -1):
        if after[k] < after[k - 1]:
            after[k], after[k - 1] = after[k - 1], after[k]
    for k in range(pushed, len(after) - 1):
        if after[k] > after[k + 1]:
            after[k], after[k + 1] = after[k + 1], after[k]
    return True


@kernel
def _walk(cells, player, rng, slippery, length, actions):
    """Compute the cells that are reachable at every time: slips depend on time alone."""
    size, area = cells.shape[1], cells.shape[1] ** 2
    previous, by = np.empty((LONGEST + 1, area), np.int64), np.empty((LONGEST + 1, area), np.int64)
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        previous[0], length[n], end = -1, -1, player[n]
        previous[0, end], now = end, 0
        while grid[end] != GOAL and now < LONGEST:
            now += 1
            previous[now] = -1
            slip = draw(rng[n], SLIPS) if slippery else 1
            for cell in range(area):
                if previous[now - 1, cell] < 0 or grid[cell] == HOLE:
                    continue
                for action in range(1, 5):
                    to = moved(cell, slipped(action, slip), size)
                    if previous[now, to] < 0:
                        previous[now, to], by[now, to] = cell, action
                    if grid[to] == GOAL:
                        end = to
        if grid[end] == GOAL:
            length[n] = now
            for k in range(now, 0, -1):
                actions[n, k - 1] = by[k, end]
                end = previous[k, end]
