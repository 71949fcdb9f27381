"""Sokoban: every box has to be pushed on a target. Levels, rules and rewards are those of gym-sokoban.

A level is generated backwards (Schrader, gym-sokoban, 2018, after Racanière et al., "Imagination-augmented agents",
2017, appendix): a random walk digs a room, targets and the player are placed, and a depth-first search pulls the boxes
away from their targets. The visited state with the highest (pulls x distance of boxes from their targets) is the level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.draws import begin, draw
from rl.kernels import kernel, part
from runcatalog import record
from textgames.games.interface import INVALID_PENALTY, NONE, SOKOBAN, Outcome, check_actions, grids

WALL, TARGET, BOX, PLAYER = 1, 2, 4, 8
"""Bits of a cell; floor is 0."""
SYMBOLS = "_#O?X?√?P?S?????"
STEP, ON_TARGET, OFF_TARGET, SOLVED = -0.1, 1.0, -1.0, 10.0
TURN = 0.35  # probability that the walk changes its direction before a step
WALK = 1.7  # steps of the walk per row and column
TRIES = 10_000  # rooms that are dug at most for a level; two on average
MOST_STATES = 300_000  # of the backward search, as in gym-sokoban
# Shapes that the walk digs, cells of 3 x 3 row by row: a horizontal and a vertical line, and three corners.
_DUG = np.array([0b000111000, 0b010010010, 0b000110010, 0b000110110, 0b000011010], np.int64)
_WORD = 1 << 32
_MIX = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


class Sokoban:
    """See `interface.Game`.

    Args:
        size: Side of the grid, walls included.
        boxes: Number of boxes and of targets.
        search_depth: Depth of the backward search [moves].
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

    def reset(self, seeds: NDArray[np.int64], replays: NDArray[np.int64] | None = None) -> None:
        """See `interface.Game`. All replays of a level are equal."""
        self.load(generate(seeds, self.size, self.boxes, self.search_depth))

    def load(self, cells: NDArray[np.uint8]) -> None:
        """Start games with these grids, uint8 [B, size, size].

        A grid has an outer wall, a player, and as many boxes as targets.
        """
        self.cells = cells.copy()
        self.success, self.done = np.zeros(len(cells), bool), np.zeros(len(cells), bool)
        self.steps = np.zeros(len(cells), np.int64)

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """See `interface.Game`. An invalid action is a step without a move."""
        check_actions(self, actions, which)
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
    """Return the levels of seeds, uint8 [n, size, size].

    Boxes and player do not stand on targets.

    Raises:
        UserError: `TRIES` rooms have no level with so many boxes at this depth.
    """
    cells = np.zeros((len(seeds), size, size), np.uint8)
    if not _generate(np.asarray(seeds, np.int64), boxes, search_depth, cells):
        raise record.UserError(
            f"--search-depth: none of {TRIES:,} rooms of {size} x {size} cells has a level with {boxes} boxes at depth "
            f"{search_depth}; give more, or fewer boxes"
        )
    return cells


def turned(cells: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return levels, uint8 [n, size, size], each in one of its eight positions at random: turned and mirrored."""
    position, moved = rng.integers(8, size=len(cells)), np.empty_like(cells)
    for k in range(8):
        which = position == k
        rotated = np.rot90(cells[which], k % 4, (1, 2))
        moved[which] = rotated[:, :, ::-1] if k >= 4 else rotated
    return moved


@part
def direction(action):
    """Return the change of row and column of an action, 1 to 4."""
    return (action == 2) - (action == 1), (action == 4) - (action == 3)


@kernel
def _step(cells, actions, which, reward, solved, effective):
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
def _generate(seeds, boxes, depth, cells):
    """Fill `cells`; return whether all levels were generated."""
    size = cells.shape[1]
    rng = np.empty(1, np.uint64)
    table, used = tables(size, boxes, MOST_STATES)
    # States on the search path: player, pulls, next action, bits of the moved boxes, then the boxes.
    path = np.empty((depth - 1, 4 + boxes), np.int64)
    best = np.empty(1 + boxes, np.int64)
    for n in range(len(seeds)):
        begin(rng, seeds[n])
        grid = cells[n].reshape(-1)
        placed = False
        for _ in range(TRIES):
            _dig(rng, cells[n])
            if not _place(rng, grid, path[0]):
                continue
            if _pull(grid, size, path, best, table, used):
                placed = True
                break
        if not placed:
            return False
        grid[best[0]] |= PLAYER
        for box in best[1:]:
            grid[box] |= BOX
    return True


@part
def _dig(rng, grid):
    """Fill the grid with walls except along a random walk."""
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
def _place(rng, grid, state):
    """Place player and targets on free cells, boxes on the targets; return whether a free cell remains."""
    free = 0
    for cell in grid:
        free += cell == 0
    things = len(state) - 3
    if free <= things:
        return False
    state[1:4] = 0
    for k in range(things):
        skip = draw(rng, free - k)
        for cell in range(len(grid)):
            taken = grid[cell] != 0 or (k > 0 and cell == state[0])
            if not taken and skip == 0:
                state[0 if k == 0 else 3 + k] = cell
                if k > 0:
                    grid[cell] = TARGET
                break
            skip -= not taken
    return True


@part
def _pull(grid, size, path, best, table, used):
    """Write the state with the highest score into `best` (player, boxes); return whether its score is above 0.

    As in gym-sokoban a state is visited once, whatever the length of the path to it; every step away from a box pulls
    it; and a box that was pulled back on its target differs from a box that never moved.
    """
    boxes, top, score = path.shape[1] - 4, 0, 0
    targets = path[0, 4:].copy()
    _enter(path[0], table, used, 0)
    visited = 1
    while top >= 0:
        now = path[top]
        now[2] += 1
        if now[2] > 4:
            top -= 1
            continue
        if top + 1 == len(path) or visited == MOST_STATES:
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
        if _enter(after, table, used, visited):
            visited, top = visited + 1, top + 1
            reached = after[1] * _distance(grid, size, after, targets)
            if reached > score:
                score, best[0], best[1:] = reached, after[0], after[4:]
    leave(table, used, visited)
    return score > 0


@part
def _distance(grid, size, state, targets):
    """Return the sum of the boxes' Manhattan distances from their targets; 0 if a box or the player is on a target."""
    distance = 0
    for k in range(len(targets)):
        box, target = state[4 + k], targets[k]
        if grid[box] & TARGET or state[0] == target:
            return 0
        distance += abs(box // size - target // size) + abs(box % size - target % size)
    return distance


@part
def _enter(state, table, used, count):
    """Add a state to a hash table, at slot `used[count]`; return whether it is new."""
    key, last = np.uint64(1 + state[0]), -1
    for _ in range(4, len(state)):
        least = 1 << 9
        for k in range(4, len(state)):
            code = 2 * state[k] + (state[3] >> (k - 4) & 1)
            if last < code < least:
                least = code
        key, last = key << np.uint64(9) | np.uint64(least), least
    return enter(key, table, used, count)


@part
def tables(size, boxes, most):
    """Return a hash table for at most `most` states of a level, and an array for the slots in use."""
    likely = 4.0 * float((size - 2) ** 2) ** (boxes + 1)
    slots = 1024
    while slots < 3 * most and slots < likely:
        slots *= 2
    return np.zeros(slots, np.uint64), np.empty(most, np.int64)


@part
def leave(table, used, count):
    """Empty a table."""
    for slot in used[:count]:
        table[slot] = 0


@part
def enter(key, table, used, count):
    """Add a key, not 0, at slot `used[count]`; return whether it is new."""
    slot = slot_of(key, table)
    if table[slot] == key:
        return False
    table[slot], used[count] = key, slot
    return True


@part
def slot_of(key, table):
    """Return the slot of a key in a table with open addressing, or the free slot for it."""
    mask = len(table) - 1
    slot = np.int64(key * _MIX >> _32) & mask
    while table[slot] != 0 and table[slot] != key:
        slot = (slot + 1) & mask
    return slot
