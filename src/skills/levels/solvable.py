"""Check that a level can be solved without moving any object but the keys of its locks."""

from __future__ import annotations

import numpy as np

from rl.kernels import part
from skills.levels.codes import (
    COLOUR_SHIFT,
    DOOR,
    EMPTY,
    GOAL,
    LOCKED,
    STATE_SHIFT,
    TARGET,
    THREE_BITS,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
)


@part
def solvable(cells, start, stride, doors_stay, queue, visited):
    """Return whether a flood fill from the agent, which collects keys on its way, reaches the target.

    Args:
        cells: Row of `State.cells`.
        start: The agent's cell.
        stride: Number of cells of a row of the padded grid.
        doors_stay: Whether other doors must stay closed, since the target is a door.
        queue, visited: Workspace, int64 and uint8 of the length of `cells`.
    """
    keys, more = 0, True  # bit set of the colours of reachable keys
    while more:
        more = False
        for i in range(len(visited)):
            visited[i] = 0
        queue[0], count, head = start, 1, 0
        visited[start] = 1
        while head < count:
            at = queue[head]
            head += 1
            for side in range(4):
                step = 1 if side < 2 else stride
                neighbour = at + (step if side & 1 else -step)
                cell = np.int64(cells[neighbour])
                kind, colour = cell & TYPE_MASK, 1 << (cell >> COLOUR_SHIFT & THREE_BITS)
                state = cell >> STATE_SHIFT & TWO_BITS
                has_key = state != LOCKED or keys & colour != 0
                if kind == GOAL or (cell & TARGET and (kind != DOOR or has_key)):
                    return True
                if cell & TOOL and keys & colour == 0:
                    keys |= colour
                    more = True
                passes = kind == DOOR and has_key and not (state != 0 and doors_stay)
                if visited[neighbour] == 0 and (kind == EMPTY or passes):
                    visited[neighbour] = 1
                    queue[count] = neighbour
                    count += 1
    return False
