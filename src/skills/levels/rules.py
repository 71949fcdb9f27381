"""Rules of actions and observations: minigrid's `MiniGridEnv.step` and `gen_obs` for one environment.

minigrid is the reference, with which `skills.check_engine` compares every array. Missions are verified as BabyAI's
verifier does, or, with `strict`, by the rules of this project's levels (docs/skills.md).
"""

from __future__ import annotations

import numpy as np

from rl.kernels import part
from skills.levels.codes import (
    BOX,
    CLEAR,
    CLOSED,
    COLOUR_SHIFT,
    DOOR,
    DROP,
    EMPTY,
    FIXED,
    FLOOR,
    FORWARD,
    GOAL,
    GTO,
    KEY,
    LAVA,
    LEFT,
    LOCKED,
    NLM,
    OPEN,
    PICKUP,
    PKP,
    PUT,
    RIGHT,
    STATE_SHIFT,
    TARGET,
    TGL,
    THREE_BITS,
    TOGGLE,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
    VIEW,
    WALL,
)
from skills.levels.state import AT, DIRECTION, HAND, IN_HAND, KIND, STEPS, STRICT, VERB

_index = np.uint64  # avoids the check for negative indices
NOTHING, SUCCESS, FAILURE = range(3)  # outcomes of an action
_CLOSED_BIT, _LOCKED_BIT = CLOSED << STATE_SHIFT, LOCKED << STATE_SHIFT
_GROUND = 1 << EMPTY | 1 << GOAL | 1 << FLOOR | 1 << LAVA  # types that the agent can stand on
_STATE_BITS = TWO_BITS << STATE_SHIFT
_COLOUR_BITS = THREE_BITS << COLOUR_SHIFT


@part
def ahead(direction, stride):
    """Return the index difference in a packed grid between neighbours in a direction."""
    if direction == 0:
        return 1
    if direction == 1:
        return stride
    if direction == 2:
        return -1
    return -stride


@part
def is_open_door(cell):
    return (cell & (TYPE_MASK | _STATE_BITS)) == DOOR  # OPEN is 0


@part
def passable(cell):
    """Return whether the agent can stand on the cell."""
    return _GROUND >> (cell & TYPE_MASK) & 1 != 0 or is_open_door(cell)


@part
def opaque(cell):
    """Return whether the cell blocks sight: a wall, or a door that is not open."""
    kind = cell & TYPE_MASK
    return kind == WALL or (kind == DOOR and (cell & _STATE_BITS) != 0)


@part
def act(cells, inside, info, stride, action):
    """Apply an action in one environment (rows of `State`) and return its outcome."""
    at, direction = info[AT], info[DIRECTION]
    front = at + ahead(direction, stride)
    before = np.int64(cells[front])
    kind = before & TYPE_MASK
    outcome = NOTHING
    if action == LEFT:
        info[DIRECTION] = (direction + 3) & 3
    elif action == RIGHT:
        info[DIRECTION] = (direction + 1) & 3
    elif action == FORWARD:
        if passable(before):
            info[AT] = front
        if kind == GOAL:
            outcome = SUCCESS
        elif kind == LAVA:
            outcome = FAILURE
    elif action == PICKUP:
        if KEY <= kind <= BOX and info[HAND] == 0:
            info[HAND], info[IN_HAND] = before, inside[front]
            cells[front], inside[front] = EMPTY, 0
    elif action == DROP:
        if kind == EMPTY and info[HAND] != 0:
            cells[front], inside[front] = info[HAND], info[IN_HAND]
            info[HAND], info[IN_HAND] = 0, 0
    elif action == TOGGLE:
        toggle(cells, inside, info[HAND], front, before)
    info[STEPS] += 1
    verdict = verify(cells, info, stride, action, front, before)
    return outcome if verdict == NOTHING else verdict


@part
def toggle(cells, inside, hand, front, before):
    """Open or close a door, unlock it with its key, or replace a box by its content."""
    kind = before & TYPE_MASK
    if kind == BOX:
        cells[front] = inside[front] if inside[front] != 0 else EMPTY
        inside[front] = 0
    elif kind == DOOR:
        state = before & _STATE_BITS
        if state == _LOCKED_BIT:
            if (hand & (TYPE_MASK | _COLOUR_BITS)) == (KEY | (before & _COLOUR_BITS)):
                state = OPEN
        else:
            state ^= _CLOSED_BIT
        cells[front] = (before & ~_STATE_BITS) | state


@part
def is_next_to_fixed(cells, at, stride):
    """Return whether one of the four neighbours of a cell has the mark FIXED."""
    beside = cells[at - 1] | cells[at + 1] | cells[at - stride] | cells[at + stride]
    return beside & FIXED != 0


@part
def verify(cells, info, stride, action, front, before):
    """Return whether an action on the cell `front`, which was `before`, fulfils or fails the mission."""
    verb, strict = info[VERB], info[STRICT] != 0
    if action == DROP and before & CLEAR and np.int64(cells[front]) != before:
        return FAILURE
    if verb == GTO:  # facing the target, which cannot have been moved before it was faced
        now = np.int64(cells[info[AT] + ahead(info[DIRECTION], stride)])
        stayed = action >= PICKUP
        return SUCCESS if now & TARGET or (stayed and before & TARGET) else NOTHING
    after = np.int64(cells[front])
    changed = after != before
    kind = before & TYPE_MASK
    if verb == PUT:
        put = action == DROP and changed and after & TARGET != 0
        return SUCCESS if put and is_next_to_fixed(cells, front, stride) else NOTHING
    if action == PICKUP and verb in (PKP, NLM) and changed:
        if verb == PKP and before & TARGET:
            return SUCCESS
        return FAILURE if strict and not before & TOOL else NOTHING
    if action == TOGGLE and verb in (PKP, NLM):
        return FAILURE if strict and changed and kind == BOX else NOTHING
    if action == TOGGLE and verb == TGL:
        if before & TARGET:
            return SUCCESS if (changed if kind == BOX else is_open_door(after)) else NOTHING
        return FAILURE if strict and changed and kind == info[KIND] else NOTHING
    return NOTHING


@part
def observe(cells, info, stride, sight, image):
    """Write the observation of one environment (rows of `State`) in minigrid's encoding.

    Args:
        cells, info, stride: The environment, and the number of cells of a row of its padded grid.
        sight: Table of `sight_table`.
        image: Written, by column and row of the view, with the agent at column 3 of row 6; uint8 [147].
    """
    forward = ahead(info[DIRECTION], stride)
    right = ahead((info[DIRECTION] + 1) & 3, stride)
    hand = info[HAND] if info[HAND] != 0 else EMPTY
    visible = np.int64(1 << VIEW // 2)
    start = info[AT] - right * (VIEW // 2)
    for depth in range(VIEW):  # from the agent's own row away
        row, clear, at = 3 * (VIEW - 1 - depth), 0, start
        for column in range(VIEW):
            clear |= np.int64(not opaque(np.int64(cells[_index(at)]))) << column
            at += right
        swept = np.int64(sight[_index(visible << VIEW | clear)])
        visible, at = swept >> VIEW, start
        for column in range(VIEW):
            shown = np.int64(cells[_index(at)])
            at += right
            if depth == 0 and column == VIEW // 2:
                shown = hand  # the carried object is shown in the agent's cell
            shown &= -(swept >> column & 1)  # all bits, or none
            byte = _index(column * 3 * VIEW + row)
            image[byte] = shown & TYPE_MASK
            image[byte + _index(1)] = shown >> COLOUR_SHIFT & THREE_BITS
            image[byte + _index(2)] = shown >> STATE_SHIFT & TWO_BITS
        start += forward


def sight_table() -> np.ndarray:
    """Return the spread of visibility in a row of a view (minigrid's `Grid.process_vis`), uint16 [2^14].

    Index: bit set of cells visible from the row before, times 128, plus the cells that are not opaque. Value: visible
    cells of the next row, times 128, plus those of this row. The sweep to the right comes first.
    """
    index = np.arange(1 << 2 * VIEW)
    visible, clear, beyond = index >> VIEW, index & ((1 << VIEW) - 1), np.zeros_like(index)
    for columns, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
        for column in columns:
            spreads = (visible & clear) >> column & 1
            visible = visible | spreads << (column + side)
            beyond = beyond | spreads << column | spreads << (column + side)
    return (beyond << VIEW | visible).astype(np.uint16)
