"""What an action does and what is seen: minigrid's `MiniGridEnv.step` and `gen_obs`, one environment at a time.

`minigrid` is the reference; `skills.check_engine` compares every array with it. Missions are verified as BabyAI's
verifier does, or, with `strict`, by the rules of this project's levels (docs/skills.md).
"""

from __future__ import annotations

import numpy as np

from rl.kernels import part
from skills.levels.codes import (
    BOX,
    CLOSED,
    COLOUR_SHIFT,
    DOOR,
    DROP,
    EMPTY,
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

_index = np.uint64  # spares the question whether an index is negative
NOTHING, SUCCESS, FAILURE = range(3)  # what an action leads to
_CLOSED_BIT, _LOCKED_BIT = CLOSED << STATE_SHIFT, LOCKED << STATE_SHIFT
_GROUND = 1 << EMPTY | 1 << GOAL | 1 << FLOOR | 1 << LAVA  # types to stand on
_STATE_BITS = TWO_BITS << STATE_SHIFT
_COLOUR_BITS = THREE_BITS << COLOUR_SHIFT


@part
def ahead(direction, stride):  # type: ignore[no-untyped-def]
    """Distance in a packed grid from a cell to the next one in a direction."""
    if direction == 0:
        return 1
    if direction == 1:
        return stride
    if direction == 2:
        return -1
    return -stride


@part
def is_open_door(cell):  # type: ignore[no-untyped-def]
    return (cell & (TYPE_MASK | _STATE_BITS)) == DOOR  # OPEN is 0


@part
def passable(cell):  # type: ignore[no-untyped-def]
    """Whether the agent can stand there."""
    return _GROUND >> (cell & TYPE_MASK) & 1 != 0 or is_open_door(cell)


@part
def opaque(cell):  # type: ignore[no-untyped-def]
    """Whether nothing is seen behind it: a wall, or a door that is not open."""
    kind = cell & TYPE_MASK
    return kind == WALL or (kind == DOOR and (cell & _STATE_BITS) != 0)


@part
def act(cells, inside, info, stride, action):  # type: ignore[no-untyped-def]
    """Carries out an action in one environment (rows of `State`) and returns what it leads to."""
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
def toggle(cells, inside, hand, front, before):  # type: ignore[no-untyped-def]
    """Opens or closes a door, unlocks it with its key, replaces a box by what is in it."""
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
def verify(cells, info, stride, action, front, before):  # type: ignore[no-untyped-def]
    """Whether the mission is done or spoiled by an action that met the cell `before` at `front`."""
    verb, strict = info[VERB], info[STRICT] != 0
    if verb == GTO:  # facing the target; it cannot be moved before, as it was never faced
        now = np.int64(cells[info[AT] + ahead(info[DIRECTION], stride)])
        stayed = action >= PICKUP
        return SUCCESS if now & TARGET or (stayed and before & TARGET) else NOTHING
    after = np.int64(cells[front])
    changed = after != before
    kind = before & TYPE_MASK
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
def observe(cells, info, stride, sight, image):  # type: ignore[no-untyped-def]
    """Writes what is seen in one environment (rows of `State`), as minigrid encodes it.

    Args:
        cells, info, stride: The environment; cells of a row of its grid.
        sight: From `sight_table`.
        image: uint8 [147], by column and row of the view; the agent is at column 3 of row 6.
    """
    forward = ahead(info[DIRECTION], stride)
    right = ahead((info[DIRECTION] + 1) & 3, stride)
    hand = info[HAND] if info[HAND] != 0 else EMPTY
    seen = np.int64(1 << VIEW // 2)
    start = info[AT] - right * (VIEW // 2)
    for depth in range(VIEW):  # from the agent's own row away
        row, clear, at = 3 * (VIEW - 1 - depth), 0, start
        for column in range(VIEW):
            clear |= np.int64(not opaque(np.int64(cells[_index(at)]))) << column
            at += right
        swept = np.int64(sight[_index(seen << VIEW | clear)])
        seen, at = swept >> VIEW, start
        for column in range(VIEW):
            shown = np.int64(cells[_index(at)])
            at += right
            if depth == 0 and column == VIEW // 2:
                shown = hand  # what is carried is seen in place of the agent's cell
            shown &= -(swept >> column & 1)  # all bits, or none
            byte = _index(column * 3 * VIEW + row)
            image[byte] = shown & TYPE_MASK
            image[byte + _index(1)] = shown >> COLOUR_SHIFT & THREE_BITS
            image[byte + _index(2)] = shown >> STATE_SHIFT & TWO_BITS
        start += forward


def sight_table() -> np.ndarray:
    """Returns how sight spreads in a row of a view (minigrid's `Grid.process_vis`), uint16 [2^14].

    Index: cells of the row that are seen from the row before, times 128, plus those that are not opaque. Value: cells
    of the next row that are seen from this one, times 128, plus those of this row. The sweep to the right comes first.
    """
    index = np.arange(1 << 2 * VIEW)
    seen, clear, beyond = index >> VIEW, index & ((1 << VIEW) - 1), np.zeros_like(index)
    for columns, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
        for column in columns:
            spreads = (seen & clear) >> column & 1
            seen = seen | spreads << (column + side)
            beyond = beyond | spreads << column | spreads << (column + side)
    return (beyond << VIEW | seen).astype(np.uint16)
