"""Sokoban: every box has to be pushed on a target. Levels as gym-sokoban makes them, rules and rewards too.

A level is made backwards (Schrader, gym-sokoban, 2018, after Racanière et al., "Imagination-augmented agents", 2017,
appendix): a random walk digs a room, targets and the player are put down, and a depth-first search pulls boxes away
from their targets. Of all moments that it meets, the one with the highest (pulls x distance of boxes from their
targets) is the level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.draws import begin, draw
from rl.kernels import kernel, part
from textgames.games.interface import INVALID_PENALTY, NONE, SOKOBAN, Outcome, checked, grids

WALL, TARGET, BOX, PLAYER = 1, 2, 4, 8
"""Bits of a cell; floor is 0."""
SYMBOLS = "_#O?X?√?P?S?????"
STEP, ON_TARGET, OFF_TARGET, SOLVED = -0.1, 1.0, -1.0, 10.0
TURN = 0.35  # chance of the walk to change its direction before a step
WALK = 1.7  # steps of the walk for each row and column
TRIES = 10_000  # rooms that are dug before a level is given up; two are the rule
MOST_STATES = 300_000  # of the reverse play, as in gym-sokoban
# What the walk digs around itself, cells of 3 x 3 row by row: a line, across and down, and three corners.
_DUG = np.array([0b000111000, 0b010010010, 0b000110010, 0b000110110, 0b000011010], np.int64)
_WORD = 1 << 32
_MIX = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


class Sokoban:
    """See `interface.Game`.

    Args:
        size: Side of the grid, walls included.
        boxes: How many there are, and targets.
        search_depth: Moves of the reverse play.
        max_steps: Actions after which a game is over.

    Attributes:
        cells: The grids, bits as above, uint8 [B, size, size].
    """

    name, actions = SOKOBAN, ("Up", "Down", "Left", "Right")

    def __init__(
        self, size: int = 6, boxes: int = 1, search_depth: int = 30, max_steps: int = 100
    ) -> None:
        self.size, self.boxes, self.search_depth = size, boxes, search_depth
        self.max_steps = max_steps
        self.load(np.zeros((0, size, size), np.uint8))

    def reset(self, seeds: NDArray[np.int64], luck: NDArray[np.int64] | None = None) -> None:
        """See `interface.Game`. Nothing is left to luck."""
        self.load(generate(seeds, self.size, self.boxes, self.search_depth))

    def load(self, cells: NDArray[np.uint8]) -> None:
        """Begins games with these grids, uint8 [B, size, size], each with a player, as many boxes as targets and a wall
        all round."""
        self.cells = cells.copy()
        self.success, self.done = np.zeros(len(cells), bool), np.zeros(len(cells), bool)
        self.steps = np.zeros(len(cells), np.int64)

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """See `interface.Game`. An action that is not understood is a step in which nothing moves."""
        checked(self, actions, which)
        reward, effective = np.empty(len(which), np.float32), np.empty(len(which), bool)
        solved = np.empty(len(which), bool)
        _step(
            self.cells,
            np.asarray(actions, np.int64),
            np.asarray(which, np.int64),
            reward,
            solved,
            effective,
        )
        self.steps[which] += 1
        self.success[which] = solved
        self.done[which] = solved | (self.steps[which] >= self.max_steps)
        penalty = np.where(actions == NONE, np.float32(INVALID_PENALTY), np.float32(0))
        return Outcome(reward, penalty, self.done[which], solved, effective)

    def render(self, which: NDArray[np.int64]) -> list[str]:
        """See `interface.Game`; `#` wall, `_` floor, `O` target, `X` box, `√` box on it, `P` player, `S` on target."""
        return grids(self.cells[which], SYMBOLS)


def generate(
    seeds: NDArray[np.int64], size: int = 6, boxes: int = 1, search_depth: int = 30
) -> NDArray[np.uint8]:
    """Returns the levels of seeds, uint8 [n, size, size].

    No box and no player stands on a target. Other walls than the outer one may be anywhere.

    Raises:
        ValueError: A level finds no place; there are too many boxes.
    """
    cells = np.zeros((len(seeds), size, size), np.uint8)
    if not _generate(np.asarray(seeds, np.int64), boxes, search_depth, cells):
        raise ValueError(f"{boxes} boxes find no place on a grid of {size}")
    return cells


@part
def direction(action):  # type: ignore[no-untyped-def]
    """Row and column that an action, 1 to 4, adds."""
    return (action == 2) - (action == 1), (action == 4) - (action == 3)


@kernel
def _step(cells, actions, which, reward, solved, effective):  # type: ignore[no-untyped-def]
    size = cells.shape[1]
    for n in range(len(which)):
        grid = cells[which[n]]
        before, moved = 0, False
        y, x = 0, 0
        for i in range(size):
            for j in range(size):
                before += grid[i, j] & (TARGET | BOX) == TARGET
                if grid[i, j] & PLAYER:
                    y, x = i, j
        after = before
        if actions[n] != NONE:
            down, right = direction(actions[n])
            i, j = y + down, x + right
            if grid[i, j] & BOX and grid[i + down, j + right] & (WALL | BOX) == 0:
                grid[i, j] ^= BOX
                grid[i + down, j + right] ^= BOX
                after += (grid[i, j] & TARGET > 0) - (grid[i + down, j + right] & TARGET > 0)
            if grid[i, j] & (WALL | BOX) == 0:
                grid[y, x] ^= PLAYER
                grid[i, j] ^= PLAYER
                moved = True
        effective[n], solved[n] = moved, after == 0
        reward[n] = (
            STEP
            + (after < before) * ON_TARGET
            + (after > before) * OFF_TARGET
            + (after == 0) * SOLVED
        )


@kernel
def _generate(seeds, boxes, depth, cells):  # type: ignore[no-untyped-def]
    """Fills `cells`; whether all levels found a place."""
    size = cells.shape[1]
    rng = np.empty(1, np.uint64)
    table, used = tables(size, boxes, MOST_STATES)
    # Of each moment on the way that is searched: player, pulls, next action, which boxes were moved, then the boxes.
    path = np.empty((depth - 1, 4 + boxes), np.int64)
    best = np.empty(1 + boxes, np.int64)
    for n in range(len(seeds)):
        begin(rng, seeds[n])
        grid = cells[n].reshape(-1)
        found = False
        for _ in range(TRIES):
            _dig(rng, cells[n])
            if not _place(rng, grid, path[0]):
                continue
            if _pull(grid, size, path, best, table, used):
                found = True
                break
        if not found:
            return False
        grid[best[0]] |= PLAYER
        for box in best[1:]:
            grid[box] |= BOX
    return True


@part
def _dig(rng, grid):  # type: ignore[no-untyped-def]
    """Walls everywhere but where a random walk came by."""
    size = len(grid)
    grid[:] = WALL
    way = 1 + draw(rng, 4)
    y, x = 1 + draw(rng, size - 1), 1 + draw(rng, size - 1)
    for _ in range(int(WALK * 2 * size)):
        if draw(rng, _WORD) < TURN * _WORD:
            way = 1 + draw(rng, 4)
        down, right = direction(way)
        y, x = min(max(y + down, 1), size - 2), min(max(x + right, 1), size - 2)
        dug = _DUG[draw(rng, len(_DUG))]
        for bit in range(9):
            i, j = y - 1 + bit // 3, x - 1 + bit % 3
            if dug >> (8 - bit) & 1 and 0 < i < size - 1 and 0 < j < size - 1:
                grid[i, j] = 0


@part
def _place(rng, grid, moment):  # type: ignore[no-untyped-def]
    """Puts player and targets on free cells, boxes on the targets; whether there are enough and a cell more."""
    free = 0
    for cell in grid:
        free += cell == 0
    things = len(moment) - 3
    if free <= things:
        return False
    moment[1:4] = 0
    for k in range(things):
        skip = draw(rng, free - k)
        for cell in range(len(grid)):
            taken = grid[cell] != 0 or (k > 0 and cell == moment[0])
            if not taken and skip == 0:
                moment[0 if k == 0 else 3 + k] = cell
                if k > 0:
                    grid[cell] = TARGET
                break
            skip -= not taken
    return True


@part
def _pull(grid, size, path, best, table, used):  # type: ignore[no-untyped-def]
    """Searches the moment with the highest score into `best` (player, boxes); whether there is one above 0.

    As in gym-sokoban a moment is looked at once, however long the way to it was; each step away from a box pulls it;
    and a box that was pulled back on its target is another one than a box that never moved.
    """
    boxes, top, score = path.shape[1] - 4, 0, 0
    targets = path[0, 4:].copy()
    _enter(path[0], table, used, 0)
    seen = 1
    while top >= 0:
        now = path[top]
        now[2] += 1
        if now[2] > 4:
            top -= 1
            continue
        if top + 1 == len(path) or seen == MOST_STATES:
            continue
        down, right = direction(now[2])
        by, pulled = down * size + right, -1
        blocked = grid[now[0] + by] & WALL > 0
        for k in range(boxes):
            blocked |= now[4 + k] == now[0] + by
            if now[4 + k] == now[0] - by:
                pulled = k
        if blocked:
            continue
        after = path[top + 1]
        after[:] = now
        after[0], after[2] = now[0] + by, 0
        if pulled >= 0:
            after[1] += 1
            after[3] |= 1 << pulled
            after[4 + pulled] = now[0]
        if _enter(after, table, used, seen):
            seen, top = seen + 1, top + 1
            reached = after[1] * _distance(grid, size, after, targets)
            if reached > score:
                score, best[0], best[1:] = reached, after[0], after[4:]
    leave(table, used, seen)
    return score > 0


@part
def _distance(grid, size, moment, targets):  # type: ignore[no-untyped-def]
    """Manhattan distance of all boxes from where they come from; 0 if a box or the player is on a target."""
    found = 0
    for k in range(len(targets)):
        box, target = moment[4 + k], targets[k]
        if grid[box] & TARGET or moment[0] == target:
            return 0
        found += abs(box // size - target // size) + abs(box % size - target % size)
    return found


@part
def _enter(moment, table, used, seen):  # type: ignore[no-untyped-def]
    """Notes a moment, in slot `used[seen]` of a hash table; whether it was not there."""
    key, last = np.uint64(1 + moment[0]), -1
    for _ in range(4, len(moment)):
        least = 1 << 9
        for k in range(4, len(moment)):
            code = 2 * moment[k] + (moment[3] >> (k - 4) & 1)
            if last < code < least:
                least = code
        key, last = key << np.uint64(9) | np.uint64(least), least
    return enter(key, table, used, seen)


@part
def tables(size, boxes, most):  # type: ignore[no-untyped-def]
    """A hash table for at most `most` keys of moments of a level, and room for the slots in use."""
    likely = 4.0 * float((size - 2) ** 2) ** (boxes + 1)
    slots = 1024
    while slots < 3 * most and slots < likely:
        slots *= 2
    return np.zeros(slots, np.uint64), np.empty(most, np.int64)


@part
def leave(table, used, seen):  # type: ignore[no-untyped-def]
    """Empties a table."""
    for slot in used[:seen]:
        table[slot] = 0


@part
def enter(key, table, used, seen):  # type: ignore[no-untyped-def]
    """Notes a key, not 0, in slot `used[seen]`; whether it was not there."""
    slot = slot_of(key, table)
    if table[slot] == key:
        return False
    table[slot], used[seen] = key, slot
    return True


@part
def slot_of(key, table):  # type: ignore[no-untyped-def]
    """Where a key is in a table with open addressing, or the free slot that it would get."""
    mask = len(table) - 1
    slot = np.int64(key * _MIX >> _32) & mask
    while table[slot] != 0 and table[slot] != key:
        slot = (slot + 1) & mask
    return slot
