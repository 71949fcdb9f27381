"""Equality of levels by content, whatever their seeds, and tables of levels that an engine leaves out.

Levels are equal if they agree in all cells, in the agent's place and direction, and in the mission. A level that is
turned by a quarter gives the agent the same images for the same actions, a mirrored one the mirrored images with left
and right exchanged; so turned and mirrored levels count as equal too. The walled square of a small room stands at the
top left of the grid before and after.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rl.draws import mix
from rl.kernels import kernel, part
from skills.levels.codes import TYPE_MASK, WALL
from skills.levels.state import AT, DIRECTION, KIND, PAD, VERB, Levels, packed

_FACTOR, _1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(1)
POSITIONS = 8  # of a square: four turns, mirrored or not
NOTHING = np.zeros(0, np.uint64)  # the table without a level
_FILLED = 0.25  # share of a table's places that are used at most


@part
def level_key(cells, info, stride):
    """Return the key of a level, uint64 above 0; different levels have the same one with a probability of 2^-63.

    Args:
        cells, info: Rows of `State`.
        stride: Number of cells of a row of the padded grid.
    """
    key = np.uint64(info[AT] << 2 | info[DIRECTION])
    for i in range(VERB, KIND + 1):
        key = key * _FACTOR + np.uint64(info[i])
    height = len(cells) // stride
    for y in range(PAD, height - PAD):
        for i in range(y * stride + PAD, (y + 1) * stride - PAD):
            key = key * _FACTOR + np.uint64(cells[i])
    return mix(key) | _1


@part
def is_in(table, key):
    """Return whether a table of :func:`table_of` contains a key."""
    if len(table) == 0:
        return False
    place = np.int64(key >> _1) & (len(table) - 1)
    while table[place] != 0:
        if table[place] == key:
            return True
        place += 1
        if place == len(table):
            place = 0
    return False


@part
def _side(cells, stride):
    """Return the side of the walled square at the top left of a grid."""
    last = 0
    for i in range(len(cells)):
        if cells[i] & TYPE_MASK != WALL:
            last = max(last, i // stride, i % stride)
    return last - PAD + 2


@part
def _turned_key(cells, info, stride, side, position):
    """Return :func:`level_key` of a level in a position: mirrored from 4 on, then turned `position % 4` times."""
    x, y, direction = info[AT] % stride - PAD, info[AT] // stride - PAD, info[DIRECTION]
    if position >= 4:
        x, direction = side - 1 - x, (2 - direction) % 4
    for _ in range(position % 4):
        x, y, direction = y, side - 1 - x, (direction + 3) % 4
    key = np.uint64(((y + PAD) * stride + x + PAD) << 2 | direction)
    for i in range(VERB, KIND + 1):
        key = key * _FACTOR + np.uint64(info[i])
    for row in range(stride - 2 * PAD):
        for column in range(stride - 2 * PAD):
            x, y = column, row
            if x < side and y < side:
                for _ in range(position % 4):
                    x, y = side - 1 - y, x
                if position >= 4:
                    x = side - 1 - x
            key = key * _FACTOR + np.uint64(cells[(y + PAD) * stride + x + PAD])
    return mix(key) | _1


@kernel
def _keys(cells, info, stride, keys):
    for n in range(len(info)):
        keys[0, n] = level_key(cells[n], info[n], stride)
        side = _side(cells[n], stride) if len(keys) > 1 else 0
        for position in range(1, len(keys)):
            keys[position, n] = _turned_key(cells[n], info[n], stride, side, position)


def keys(levels: Levels) -> np.ndarray:
    """Return the keys of levels as they are, uint64 [L]."""
    return _keys_of(levels, 1)[0]


def symmetric_keys(levels: Levels) -> np.ndarray:
    """Return the keys of levels on square grids in all positions, uint64 [8, L]; the first row is :func:`keys`."""
    return _keys_of(levels, POSITIONS)


def _keys_of(levels: Levels, positions: int) -> np.ndarray:
    state, found = packed(levels), np.zeros((positions, len(levels)), np.uint64)
    _keys(state.cells, state.info, levels.size[0] + 2 * PAD, found)
    return found


def table_of(found: Iterable[np.ndarray]) -> np.ndarray:
    """Return a hash table of keys for :func:`is_in`, uint64 [places]; 0: free.

    Args:
        found: Arrays of keys of any shape.
    """
    joined = np.concatenate([NOTHING, *(each.ravel() for each in found)])
    if not len(joined):
        return NOTHING
    table = np.zeros(1 << int(np.ceil(np.log2(len(joined) / _FILLED))), np.uint64)
    _fill(table, joined)
    return table


@kernel
def _fill(table, found):
    for key in found:
        place = np.int64(key >> _1) & (len(table) - 1)
        while table[place] != 0 and table[place] != key:
            place += 1
            if place == len(table):
                place = 0
        table[place] = key
