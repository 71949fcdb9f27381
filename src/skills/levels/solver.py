"""Solver: shortest solutions from any state of an episode, by breadth-first search on the complete level.

A state of the search is position and direction of the agent, the carried object, the positions of the locks' keys and
the open doors. Nothing else moves, no door is closed, and by default a key is dropped only when its door is open; in
rare levels a solution that moves a distractor could be shorter. The rules are written independently of the engine's, so
that tests compare both.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from rl.kernels import kernel, part
from skills.levels.codes import (
    BOX,
    COLOUR_SHIFT,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    GOAL,
    GTG,
    GTO,
    LEFT,
    LOCKED,
    NLM,
    PICKUP,
    PKP,
    RIGHT,
    STATE_SHIFT,
    TARGET,
    TGL,
    THREE_BITS,
    TOGGLE,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
)
from skills.levels.state import AT, DIRECTION, HAND, KIND, PAD, VERB, Levels, packed

_BITS = 22  # of the hash table of visited states, of which half may be used
_AREA_BITS = 11  # index of a cell; 2047: carried
_CARRIED = (1 << _AREA_BITS) - 1
_KEYS_AT = _AREA_BITS + 2  # two keys
_DOORS_AT = _KEYS_AT + 2 * _AREA_BITS  # the remaining bits: open doors


class Search(NamedTuple):
    """Workspace of the search.

    Attributes:
        table: Index of a state by its hash, int32 [2^_BITS]; -1: none.
        states, parents, actions: In the order of their first visit, int64, int32 and int8 [2^(_BITS - 1)].
        places: Positions of the states in `table`, int32 [2^(_BITS - 1)].
        doors: Cells of the doors, int64 [32].
        keys, what: Cells of the locks' keys, 0 for a carried one, and their codes (`skills.levels.codes`), int64 [2].
    """

    table: np.ndarray
    states: np.ndarray
    parents: np.ndarray
    actions: np.ndarray
    places: np.ndarray
    doors: np.ndarray
    keys: np.ndarray
    what: np.ndarray


def solutions(levels: Levels, *, drops_any: bool = False) -> list[np.ndarray | None]:
    """Return a shortest sequence of actions for every level, int8 [n], or None without a solution. Not thread-safe.

    Args:
        levels: The levels.
        drops_any: Whether a key may also be dropped before its door is open, to lift another key that is in the way.

    Raises:
        ValueError: A level has more than two keys of locks, or 28 doors, or carries another object.
    """
    state, stride = packed(levels), levels.size[0] + 2 * PAD
    hand = state.info[:, HAND]
    keys = (state.cells & TOOL > 0).sum(axis=1) + (hand & TOOL > 0)
    doors = (state.cells & TYPE_MASK == DOOR).sum(axis=1)
    if (keys > 2).any() or (doors > 27).any() or state.cells.shape[1] >= _CARRIED:
        raise ValueError("a level has more than two keys of locks, 28 doors, or is too large")
    if ((hand != 0) & (hand & TOOL == 0)).any():
        raise ValueError("the carried object is no key of a lock")
    search, paths = _search(), []
    for cells, info in zip(state.cells, state.info, strict=True):
        path = np.empty(1024, np.int8)
        length = _solve(cells, info, stride, search, drops_any, path)
        paths.append(path[:length].copy() if length >= 0 else None)
    return paths


@cache
def _search() -> Search:
    """Return the shared workspace, whose allocation takes longer than a small level's solution."""
    size = 1 << (_BITS - 1)
    return Search(
        np.full(1 << _BITS, -1, np.int32), np.empty(size, np.int64), np.empty(size, np.int32),
        np.empty(size, np.int8), np.empty(size, np.int32), np.zeros(32, np.int64), np.zeros(2, np.int64),
        np.zeros(2, np.int64),
    )  # fmt: skip


@kernel
def _solve(cells, info, stride, search, drops_any, path):
    """Write the actions of a shortest solution; return their number, or -1 without one."""
    count, length = _spread(cells, info, stride, search, drops_any, path)
    for i in range(count):  # most searches use little of the table
        search.table[search.places[i]] = -1
    return length


@part
def _spread(cells, info, stride, search, drops_any, path):
    """Search; return the number of visited states and the length of the solution."""
    doors, keys = 0, 0
    first = info[AT] | info[DIRECTION] << _AREA_BITS
    for at in range(len(cells)):
        if cells[at] & TYPE_MASK == DOOR:
            search.doors[doors] = at
            if cells[at] >> STATE_SHIFT & TWO_BITS == 0:
                first |= 1 << (_DOORS_AT + doors)
            doors += 1
        elif cells[at] & TOOL:
            search.keys[keys], search.what[keys] = at, cells[at]
            first |= at << (_KEYS_AT + keys * _AREA_BITS)
            keys += 1
    if info[HAND] & TOOL:
        search.keys[keys], search.what[keys] = 0, info[HAND]
        first |= _CARRIED << (_KEYS_AT + keys * _AREA_BITS)
        keys += 1
    count = _add(search, 0, first, -1, -1)
    head = 0
    while head < count and count < len(search.states) - 8:
        now = search.states[head]
        for action in range(TOGGLE + 1):
            after, done = _after(cells, info, stride, search, drops_any, doors, keys, now, action)
            if done:
                return count, _trace(search, head, action, path)
            if after != now:
                count = _add(search, count, after, head, action)
        head += 1
    return count, -1


@part
def _add(search, count, state, parent, action):
    """Add a state if it is new; return the number of states."""
    place = (state * 0x1E3779B97F4A7C15 >> 20) & (len(search.table) - 1)
    while search.table[place] >= 0:
        if search.states[search.table[place]] == state:
            return count
        place = (place + 1) & (len(search.table) - 1)
    search.table[place], search.places[count] = count, place
    search.states[count], search.parents[count], search.actions[count] = state, parent, action
    return count + 1


@part
def _trace(search, last, action, path):
    """Write the actions that lead to a state, and one more; return their number."""
    length, at = 1, last
    while search.parents[at] >= 0:
        length, at = length + 1, search.parents[at]
    if length > len(path):
        return -1
    path[length - 1], at = action, last
    for i in range(length - 2, -1, -1):
        path[i], at = search.actions[at], search.parents[at]
    return length


@part
def _key_at(state, index):
    return state >> (_KEYS_AT + index * _AREA_BITS) & _CARRIED


@part
def _with_key_at(state, index, at):
    shift = _KEYS_AT + index * _AREA_BITS
    return state & ~(_CARRIED << shift) | at << shift


@part
def _door_of(cells, search, doors, key):
    """Return the number of a key's locked door; -1 if it is unlocked."""
    colour = search.what[key] >> COLOUR_SHIFT & THREE_BITS
    for i in range(doors):
        door = cells[search.doors[i]]
        if door >> STATE_SHIFT & TWO_BITS == LOCKED and door >> COLOUR_SHIFT & THREE_BITS == colour:
            return i
    return -1


@part
def _after(cells, info, stride, search, drops_any, doors, keys, now, action):
    """Return the state after an action, unchanged for useless actions, and whether it fulfils the mission."""
    at, direction = now & _CARRIED, now >> _AREA_BITS & 3
    carried = -1
    for i in range(keys):
        if _key_at(now, i) == _CARRIED:
            carried = i
    if action in (LEFT, RIGHT):
        direction = (direction + (3 if action == LEFT else 1)) & 3
        after = now & ~(3 << _AREA_BITS) | direction << _AREA_BITS
        front = at + _towards(direction, stride)
        return after, info[VERB] == GTO and cells[front] & TARGET != 0
    front = at + _towards(direction, stride)
    cell = np.int64(cells[front])
    kind = cell & TYPE_MASK
    lying, door = -1, -1  # the key and the door in front
    for i in range(keys):
        if _key_at(now, i) == front:
            lying = i
        if search.keys[i] == front:  # its first position
            kind = EMPTY
    for i in range(doors):
        if search.doors[i] == front:
            door = i
    is_open = door >= 0 and now >> (_DOORS_AT + door) & 1 != 0
    if action == FORWARD:
        if kind == GOAL:
            return now, info[VERB] == GTG or info[VERB] == NLM
        if lying >= 0 or not (kind == EMPTY or is_open):
            return now, False
        ahead = front + _towards(direction, stride)
        return now & ~_CARRIED | front, info[VERB] == GTO and cells[ahead] & TARGET != 0
    if action == PICKUP:
        if lying >= 0 and carried < 0:
            wanted = info[VERB] == PKP and search.what[lying] & TARGET != 0
            return _with_key_at(now, lying, _CARRIED), wanted
        return now, info[VERB] == PKP and carried < 0 and cell & TARGET != 0
    if action == DROP and carried >= 0 and lying < 0 and kind == EMPTY:
        mine = _door_of(cells, search, doors, carried)
        if drops_any or mine < 0 or now >> (_DOORS_AT + mine) & 1:
            return _with_key_at(now, carried, front), False
    if action == TOGGLE:
        return _toggled(cells, info, search, doors, now, carried, door, cell, is_open)
    return now, False


@part
def _toggled(cells, info, search, doors, now, carried, door, cell, is_open):
    """Return the same for the action toggle."""
    target = info[VERB] == TGL and cell & TARGET != 0
    if cell & TYPE_MASK == BOX:
        return now, target
    if door < 0 or is_open or (info[VERB] == TGL and info[KIND] == DOOR and not target):
        return now, False
    if cell >> STATE_SHIFT & TWO_BITS == LOCKED and (
        carried < 0 or _door_of(cells, search, doors, carried) != door
    ):
        return now, False
    return now | 1 << (_DOORS_AT + door), target


@part
def _towards(direction, stride):
    if direction & 1:
        return stride if direction == 1 else -stride
    return 1 if direction == 0 else -1
