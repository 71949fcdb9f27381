"""Shortest solutions: of Sokoban by a search over player and boxes, of FrozenLake over cell and time."""

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

LONGEST = 100  # actions of a solution that is searched, as in the source
MOST_STATES = 1_000_000  # of a level; more are looked at in none

Actions = NDArray[np.int64]


def solve(cells: NDArray[np.uint8]) -> list[Actions | None]:
    """Returns a shortest solution of each Sokoban level, actions 1 to 4; None where there is none.

    "None" means: none of at most `LONGEST` actions, or none among the first `MOST_STATES` moments of the search.

    Args:
        cells: Levels or any later moments, uint8 [n, size, size], see `sokoban.Sokoban.cells`.
    """
    return _listed(*_solved(cells))


def lengths(cells: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns how many actions `solve` finds for each level, -1 where it finds nothing; int64 [n]."""
    return _solved(cells)[0]


def walk(
    cells: NDArray[np.uint8], player: NDArray[np.int64], rng: NDArray[np.uint64] | None = None
) -> list[Actions | None]:
    """Returns a shortest way to the goal of each FrozenLake map, actions 1 to 4; None: none of at most `LONGEST`.

    Args:
        cells: Maps, uint8 [n, size, size].
        player: Where the ways begin, int64 [n].
        rng: States of the random numbers that decide on slips, uint64 [n, 1], as `frozenlake.generate` returns them:
            the shortest actions that happen to succeed with these slips. None: as if nothing slipped.
    """
    count = len(cells)
    found, actions = np.empty(count, np.int64), np.empty((count, LONGEST), np.int64)
    state = np.zeros((count, 1), np.uint64) if rng is None else rng.copy()
    _walk(cells, player, state, rng is not None, found, actions)
    return _listed(found, actions)


def solutions(
    config: GameConfig, seeds: NDArray[np.int64], *, safe: bool = False
) -> list[Actions | None]:
    """Returns a shortest solution of the level of each seed, of which the source makes examples; None: there is none.

    Args:
        config: Flags.
        seeds: int64 [n].
        safe: On slippery ice: the shortest way as if nothing slipped. Else the shortest actions that happen to succeed
            with the slips of the seed, as in the source: as many, but they mislead where slips are others.
    """
    if config.env == BANDIT:
        return [np.array([HIGH])] * len(seeds)
    if config.env == SOKOBAN:
        return solve(sokoban.generate(seeds, config.side, config.boxes, config.search_depth))
    cells, player, rng = frozenlake.generate(seeds, config.side, config.frozen)
    return walk(cells, player, rng if config.slippery and not safe else None)


def _listed(found: NDArray[np.int64], actions: NDArray[np.int64]) -> list[Actions | None]:
    return [None if n < 0 else each[:n] for n, each in zip(found.tolist(), actions, strict=True)]


def _solved(cells: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found, actions = np.full(len(cells), -1), np.empty((len(cells), LONGEST), np.int64)
    if len(cells):
        boxes = int((cells[0] & BOX > 0).sum())
        _solve(cells, boxes, most_states(cells.shape[1], boxes), found, actions)
    return found, actions


def most_states(size: int, boxes: int) -> int:
    """How many moments a level of Sokoban can have, `MOST_STATES` at most."""
    return min(MOST_STATES, (size - 2) ** (2 * (boxes + 1)))


@kernel
def _solve(cells, boxes, most, found, actions):  # type: ignore[no-untyped-def]
    size = cells.shape[1]
    table, used = tables(size, boxes, most)
    states = np.empty((most, 1 + boxes), np.int16)
    before, by, depth = np.empty(most, np.int32), np.empty(most, np.int8), np.empty(most, np.int8)
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        note(grid, states[0])
        enter(key_of(states[0]), table, used, 0)
        depth[0], at, seen = 0, 0, 1
        end = 0 if solved(grid, states[0]) else -1
        while end < 0 and at < seen and seen < most and depth[at] < LONGEST:
            for action in range(1, 5):
                if seen == most or not advance(grid, size, states[at], action, states[seen]):
                    continue
                if enter(key_of(states[seen]), table, used, seen):
                    before[seen], by[seen], depth[seen] = at, action, depth[at] + 1
                    if solved(grid, states[seen]):
                        end = seen
                    seen += 1
                    if end >= 0:
                        break
            at += 1
        leave(table, used, seen)
        if end >= 0:
            found[n] = depth[end]
            for k in range(depth[end] - 1, -1, -1):
                actions[n, k] = by[end]
                end = before[end]


@part
def note(grid, state):  # type: ignore[no-untyped-def]
    """Writes player and boxes of a grid, cells counted by rows, boxes in rising order."""
    box = 1
    for cell in range(len(grid)):
        if grid[cell] & PLAYER:
            state[0] = cell
        if grid[cell] & BOX:
            state[box] = cell
            box += 1


@part
def key_of(state):  # type: ignore[no-untyped-def]
    """A number above 0 that tells moments of a level apart."""
    key = np.uint64(1 + state[0])
    for k in range(1, len(state)):
        key = key << np.uint64(9) | np.uint64(state[k])
    return key


@part
def solved(grid, state):  # type: ignore[no-untyped-def]
    """Whether all boxes are on targets."""
    on = 0
    for k in range(1, len(state)):
        on += grid[state[k]] & TARGET > 0
    return on == len(state) - 1


@part
def advance(grid, size, state, action, after):  # type: ignore[no-untyped-def]
    """Writes what follows an action on a moment; whether anything moved."""
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
def _walk(cells, player, rng, slippery, found, actions):  # type: ignore[no-untyped-def]
    """Of each moment in time all cells where the player can be: slips depend on time alone."""
    size, area = cells.shape[1], cells.shape[1] ** 2
    came, by = np.empty((LONGEST + 1, area), np.int64), np.empty((LONGEST + 1, area), np.int64)
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        came[0], found[n], end = -1, -1, player[n]
        came[0, end], now = end, 0
        while grid[end] != GOAL and now < LONGEST:
            now += 1
            came[now] = -1
            slip = draw(rng[n], SLIPS) if slippery else 1
            for cell in range(area):
                if came[now - 1, cell] < 0 or grid[cell] == HOLE:
                    continue
                for action in range(1, 5):
                    to = moved(cell, slipped(action, slip), size)
                    if came[now, to] < 0:
                        came[now, to], by[now, to] = cell, action
                    if grid[to] == GOAL:
                        end = to
        if grid[end] == GOAL:
            found[n] = now
            for k in range(now, 0, -1):
                actions[n, k - 1] = by[k, end]
                end = came[k, end]
