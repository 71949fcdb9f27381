"""Rooms of a level: walls split a square, with one doorway through every wall, so that rooms and doorways are a tree.

Arrays of rooms and doorways (`ways`) are those of `generate.Work`.
"""

from __future__ import annotations

import numpy as np

from rl.draws import draw
from rl.kernels import part
from skills.levels.codes import BORDER, CLOSED, EMPTY, OPEN
from skills.levels.stages import SIZE
from skills.levels.state import PAD

STRIDE = SIZE + 2 * PAD
GAP = 3  # a doorway without a door; smaller values are states of a door
TRIES = 40  # random positions for an object before the level is drawn anew
KEEP_FREE = 64  # mark in `label` of cells next to a doorway, which stay empty
_MIN_SIDE = 2  # smallest side of a room


@part
def index_of(x, y):
    return (y + PAD) * STRIDE + x + PAD


@part
def build(rng, side, rooms, cells, rects, ways, label):
    """Split a square into rooms with one doorway per wall; return whether it was possible."""
    for i in range(len(cells)):
        cells[i] = BORDER
        label[i] = 0
    for y in range(1, side - 1):
        for x in range(1, side - 1):
            cells[index_of(x, y)] = EMPTY
    rects[0, 0], rects[0, 1], rects[0, 2], rects[0, 3] = 1, 1, side - 2, side - 2
    for k in range(1, rooms):
        if not _split(rng, cells, rects, ways, _largest(rects, k), k):
            return False
    for i in range(rooms):
        for y in range(rects[i, 1], rects[i, 3] + 1):
            for x in range(rects[i, 0], rects[i, 2] + 1):
                label[index_of(x, y)] = i + 1
    for k in range(rooms - 1):
        step = 1 if ways[k, 3] == 0 else STRIDE
        for j in range(2):
            neighbour = ways[k, 0] + (step if j == 1 else -step)
            ways[k, 1 + j] = (np.int64(label[neighbour]) & (KEEP_FREE - 1)) - 1
            label[neighbour] |= KEEP_FREE
    return True


@part
def _largest(rects, count):
    """Return the room with the most cells."""
    largest, largest_area = 0, 0
    for i in range(count):
        area = (rects[i, 2] - rects[i, 0] + 1) * (rects[i, 3] - rects[i, 1] + 1)
        if area > largest_area:
            largest, largest_area = i, area
    return largest


@part
def _split(rng, cells, rects, ways, i, k):
    """Split room i by a wall across its longer side; the new part is room k. Return whether there was a position."""
    width, height = rects[i, 2] - rects[i, 0] + 1, rects[i, 3] - rects[i, 1] + 1
    upright = width > height or (width == height and draw(rng, 2) == 0)
    length, other = (width, height) if upright else (height, width)
    along, across, axis = (1, STRIDE, 0) if upright else (STRIDE, 1, 1)
    if length < 2 * _MIN_SIDE + 1:
        return False
    corner = index_of(rects[i, 0], rects[i, 1])
    for _ in range(TRIES):
        offset = _MIN_SIDE + draw(rng, length - 2 * _MIN_SIDE)
        wall = corner + along * offset
        # A wall must not end at a doorway of another wall.
        if cells[wall - across] == BORDER and cells[wall + across * other] == BORDER:
            for j in range(other):
                cells[wall + across * j] = BORDER
            ways[k - 1, 0], ways[k - 1, 3] = wall + across * draw(rng, other), axis
            cells[ways[k - 1, 0]] = EMPTY
            for j in range(4):
                rects[k, j] = rects[i, j]
            rects[i, 2 + axis] = rects[i, axis] + offset - 1
            rects[k, axis] += offset + 1
            return True
    return False


@part
def path_between(home, goal_room, door, rooms, ways, path, tree):
    """Write the doorways from room `home` to a room, or up to the doorway `door`, into `path`; return their number.

    Rooms and doorways are a tree, so there is one path.
    """
    for i in range(rooms):
        tree[i, 0] = 0 if i == home else -1
    for _ in range(rooms):
        for k in range(rooms - 1):
            for j in range(2):
                a, b = ways[k, 1 + j], ways[k, 2 - j]
                if tree[a, 0] >= 0 and tree[b, 0] < 0:
                    tree[b, 0], tree[b, 1], tree[b, 2] = tree[a, 0] + 1, k, a
    if door >= 0:  # up to its nearer side
        a, b = ways[door, 1], ways[door, 2]
        goal_room = a if tree[a, 0] < tree[b, 0] else b
    length, room = tree[goal_room, 0], goal_room
    for i in range(length - 1, -1, -1):
        path[i], room = tree[room, 1], tree[room, 2]
    return length


@part
def spread(rooms, ways, tree, door):
    """Add the rooms that are connected by unlocked doorways to those marked as reached."""
    for _ in range(rooms):
        for k in range(rooms - 1):
            passes = ways[k, 3] == GAP or ways[k, 3] == OPEN or (ways[k, 3] == CLOSED and door < 0)
            if passes and tree[ways[k, 1], 3] != tree[ways[k, 2], 3]:
                tree[ways[k, 1], 3] = tree[ways[k, 2], 3] = 1
