"""Level generator: from a stage and a seed to rooms, doorways, keys, target and distractors.

A level is drawn again, from the same random stream, if an object has no position or the target cannot be reached
without moving objects other than the keys of its locks (`skills.levels.solvable`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl.draws import begin, draw, following_seed
from rl.kernels import kernel, part
from skills.levels.codes import (
    BOX,
    CLOSED,
    COLOUR_SHIFT,
    DOOR,
    EMPTY,
    GOAL,
    GREEN,
    KEY,
    LOCKED,
    NLM,
    OPEN,
    STATE_SHIFT,
    TARGET,
    THREE_BITS,
    TOOL,
    TYPE_MASK,
    WALL,
)
from skills.levels.rooms import GAP, KEEP_FREE, STRIDE, TRIES, build, index_of, path_between, spread
from skills.levels.rules import ahead
from skills.levels.solvable import solvable
from skills.levels.stages import COLUMNS, MAX_ROOMS, MAX_STEPS, SIZE, stage_table
from skills.levels.state import (
    AT,
    COLOUR,
    DIRECTION,
    HAND,
    IN_HAND,
    KIND,
    LIMIT,
    PLACE,
    SEED,
    STEPS,
    STRICT,
    VERB,
    Levels,
    empty_state,
    unpacked,
)

_VERB, _ROOM, _ROOMS, _DISTRACTORS = map(COLUMNS.index, ("verb", "room", "rooms", "distractors"))
_CLOSED, _OPENED, _LOCKS, _APART = map(COLUMNS.index, ("closed", "opened", "locks", "apart"))
_KINDS, _KIND0 = map(COLUMNS.index, ("kinds", "kind0"))


class Work(NamedTuple):
    """Workspace of the generator.

    Attributes:
        rng: State of the random number generator, uint64 [1].
        rects: Column and row of the first and the last cell of the rooms, int64 [rooms, 4].
        ways: Doorways: cell, the rooms on its sides, state of its door or `GAP`; int64 [rooms, 4].
        path: Doorways from the agent to the target, int64 [rooms].
        tree: Depth of the rooms, doorway and room before them, whether reached; int64 [rooms, 4].
        label: Room of the cells, from 1, and the mark `KEEP_FREE`; uint8 [area].
        queue, visited: See `skills.levels.solvable`.
    """

    rng: np.ndarray
    rects: np.ndarray
    ways: np.ndarray
    path: np.ndarray
    tree: np.ndarray
    label: np.ndarray
    queue: np.ndarray
    visited: np.ndarray


def work() -> Work:
    """Return the workspace for levels of the project's size."""
    rooms, area = (MAX_ROOMS, 4), STRIDE**2
    return Work(
        np.zeros(1, np.uint64), np.zeros(rooms, np.int64), np.zeros(rooms, np.int64), np.zeros(MAX_ROOMS, np.int64),
        np.zeros(rooms, np.int64), np.zeros(area, np.uint8), np.zeros(area, np.int64), np.zeros(area, np.uint8),
    )  # fmt: skip


@part
def generate(table, seed, work, cells, inside, info):
    """Generate the level of a seed in one environment.

    Args:
        table: Stages from which one is drawn, see `stages.stage_table`.
        seed: int64.
        work: `Work`.
        cells, inside, info: Rows of `State`.
    """
    begin(work.rng, seed)
    stage = table[draw(work.rng, len(table))]
    for i in range(len(inside)):
        inside[i] = 0
    info[HAND], info[IN_HAND], info[STEPS], info[PLACE] = 0, 0, 0, 0
    info[LIMIT], info[STRICT], info[SEED], info[VERB] = MAX_STEPS, 1, seed, stage[_VERB]
    while not _attempt(stage, work, cells, info):
        pass


@part
def _attempt(stage, work, cells, info):
    """Draw a level; return whether it is valid."""
    rng, rects, ways, path = work.rng, work.rects, work.ways, work.path
    rooms = _between(rng, stage[_ROOMS], stage[_ROOMS + 1])
    if not build(rng, stage[_ROOM], rooms, cells, rects, ways, work.label):
        return False
    home = draw(rng, rooms)
    kind = stage[_KIND0 + draw(rng, stage[_KINDS])]
    door = -1  # the doorway whose door is the target
    goal_room = draw(rng, rooms)
    if kind == DOOR:
        if rooms == 1:
            return False
        door = draw(rng, rooms - 1)
    elif stage[_APART] and goal_room == home:
        return False
    length = path_between(home, goal_room, door, rooms, ways, path, work.tree)
    locks = _between(rng, stage[_LOCKS], stage[_LOCKS + 1])
    if door >= 0:
        if stage[_APART] and length == 0:
            return False
    else:
        if stage[_LOCKS] > length:
            return False
        locks = min(locks, length)
    _choose_ways(stage, rng, rooms, ways, path, length, locks, door)
    _hang_doors(rng, rooms, ways, cells, door)
    if not _lay_keys(home, rooms, length, cells, door, work):
        return False
    colour = _colour(cells[ways[door, 0]])
    if door < 0:
        colour = _lay_target(kind, goal_room, cells, work)
    if colour < 0 or not _lay_distractors(stage, rooms, cells, kind, colour, work):
        return False
    info[KIND], info[COLOUR] = kind, colour
    if stage[_VERB] == NLM:
        info[COLOUR] = _last_door(ways, path, length, cells)
    if not _set_agent(rng, rects[home], cells, info):
        return False
    doors_stay = door >= 0
    return solvable(cells, info[AT], STRIDE, doors_stay, work.queue, work.visited)


@part
def _between(rng, low, high):
    return low + draw(rng, high - low + 1)


@part
def _colour(cell):
    return (np.int64(cell) >> COLOUR_SHIFT) & THREE_BITS


@part
def _choose_ways(stage, rng, rooms, ways, path, length, locks, door):
    """Draw the kinds of the doorways: locked, closed, open, or a gap."""
    for k in range(rooms - 1):
        chance = draw(rng, 100)
        ways[k, 3] = GAP
        if chance < stage[_CLOSED]:
            ways[k, 3] = CLOSED
        elif chance < stage[_CLOSED] + stage[_OPENED]:
            ways[k, 3] = OPEN
    if door >= 0:  # no door has to be opened before the target door
        for i in range(length):
            ways[path[i], 3] = GAP if draw(rng, 2) == 0 else OPEN
        ways[door, 3] = LOCKED if locks > 0 else CLOSED
        return
    if stage[_VERB] == NLM and locks == 0:  # its goal is always behind a door
        ways[path[length - 1], 3] = CLOSED
    for i in range(length):
        if draw(rng, length - i) < locks:
            ways[path[i], 3] = LOCKED
            locks -= 1


@part
def _hang_doors(rng, rooms, ways, cells, door):
    """Put doors of different colours into the doorways."""
    used = 0  # bit set of colours
    for k in range(rooms - 1):
        if ways[k, 3] != GAP:
            colour = draw(rng, 6)
            while used >> colour & 1:
                colour = draw(rng, 6)
            used |= 1 << colour
            marks = TARGET if k == door else 0
            cells[ways[k, 0]] = DOOR | colour << COLOUR_SHIFT | ways[k, 3] << STATE_SHIFT | marks


@part
def _lay_keys(home, rooms, length, cells, door, work):
    """Place every lock's key where it is reachable before the lock is opened; return whether there was a position."""
    ways, tree = work.ways, work.tree
    for i in range(rooms):
        tree[i, 3] = i == home
    for i in range(length + (1 if door >= 0 else 0)):
        lock = work.path[i] if i < length else door
        if ways[lock, 3] == LOCKED:
            spread(rooms, ways, tree, door)
            room = draw(work.rng, rooms)
            while tree[room, 3] == 0:
                room = draw(work.rng, rooms)
            place = _free(work.rng, work.rects[room], cells, work.label)
            if place < 0:
                return False
            cells[place] = KEY | _colour(cells[ways[lock, 0]]) << COLOUR_SHIFT | TOOL
            tree[ways[lock, 1], 3] = tree[ways[lock, 2], 3] = 1
    return True


@part
def _lay_target(kind, room, cells, work):
    """Place a target other than a door; return its colour, or -1 without a position."""
    place = _free(work.rng, work.rects[room], cells, work.label)
    if place < 0:
        return -1
    colour = GREEN if kind == GOAL else draw(work.rng, 6)
    if _is_tool(cells, kind, colour):
        return -1
    cells[place] = kind | colour << COLOUR_SHIFT | (0 if kind == GOAL else TARGET)
    return colour


@part
def _last_door(ways, path, length, cells):
    """Return the colour of the last locked door before the target; without one, of the last door."""
    last = path[length - 1]
    for i in range(length):
        if ways[path[i], 3] == LOCKED:
            last = path[i]
    return _colour(cells[ways[last, 0]])


@part
def _lay_distractors(stage, rooms, cells, kind, colour, work):
    """Place distractors, none of them a second target or a second key of a lock; return whether all had a position."""
    rng = work.rng
    missing = _between(rng, stage[_DISTRACTORS], stage[_DISTRACTORS + 1])
    for _ in range(TRIES):
        if missing == 0:
            return True
        other, hue = KEY + draw(rng, BOX - KEY + 1), draw(rng, 6)
        if (other == kind and hue == colour) or _is_tool(cells, other, hue):
            continue
        place = _free(rng, work.rects[draw(rng, rooms)], cells, work.label)
        if place >= 0:
            cells[place] = other | hue << COLOUR_SHIFT
            missing -= 1
    return False


@part
def _is_tool(cells, kind, colour):
    """Return whether an object of this kind and colour is the key of a lock."""
    wanted = KEY | colour << COLOUR_SHIFT | TOOL
    if kind == KEY:
        for i in range(len(cells)):
            if cells[i] == wanted:
                return True
    return False


@part
def _free(rng, rect, cells, label):
    """Return a random empty cell of a room that is not next to a doorway, or -1."""
    for _ in range(TRIES):
        x = rect[0] + draw(rng, rect[2] - rect[0] + 1)
        y = rect[1] + draw(rng, rect[3] - rect[1] + 1)
        place = index_of(x, y)
        if cells[place] == EMPTY and label[place] < KEEP_FREE:
            return place
    return -1


@part
def _set_agent(rng, rect, cells, info):
    """Place the agent facing an empty cell or a wall, as minigrid's `RoomGrid.place_agent` does."""
    for _ in range(TRIES):
        x = rect[0] + draw(rng, rect[2] - rect[0] + 1)
        y = rect[1] + draw(rng, rect[3] - rect[1] + 1)
        place, direction = index_of(x, y), draw(rng, 4)
        faced = cells[place + ahead(direction, STRIDE)] & TYPE_MASK
        if cells[place] == EMPTY and faced in (EMPTY, WALL):
            info[AT], info[DIRECTION] = place, direction
            return True
    return False


@kernel
def _generate_all(table, seeds, work, state):
    for n in range(len(seeds)):
        generate(table, seeds[n], work, state.cells[n], state.inside[n], state.info[n])


def levels(stage: str, seeds: np.ndarray) -> Levels:
    """Return the levels of seeds, int [L], 0 to 2^63 - 1.

    Raises:
        ValueError: Unknown stage.
    """
    seeds = np.ascontiguousarray(seeds, np.int64)
    state = empty_state(len(seeds), SIZE, SIZE)
    _generate_all(stage_table(stage), seeds, work(), state)
    return unpacked(state, SIZE, SIZE)


@kernel
def _following(seed):
    return following_seed(seed)


def next_seed(seed: int) -> int:
    """Return the seed of the level that follows the level of `seed` in an environment."""
    return int(_following(np.int64(seed)))
