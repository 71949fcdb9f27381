"""Reward shaping by a potential of keys, locks and objects to move, which does not change the optimal policy.

Ng, Harada & Russell, "Policy invariance under reward transformations" (ICML 1999): a step from s to s' gets the
additional reward gamma F(s') - F(s), with F = 0 where an episode has ended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.kernels import kernel
from skills.levels.codes import (
    COLOUR_SHIFT,
    DOOR,
    LOCKED,
    PUT,
    STATE_SHIFT,
    TARGET,
    THREE_BITS,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
)
from skills.levels.state import HAND, VERB

_IN_HAND, _OPENED = np.float32(0.5), np.float32(1)


@kernel
def potentials(cells, info, out):
    """Write F: 1 for every opened lock, and 1/2 if the key of a locked door or the object to move is carried.

    Args:
        cells, info: See `State`, N environments.
        out: F, written, float32 [N].
    """
    for n in range(len(info)):
        keys, locked, carried = 0, 0, np.int64(info[n, HAND])  # bit sets of colours
        if carried & TOOL:
            carried = 1 << (carried >> COLOUR_SHIFT & THREE_BITS)
            keys = carried
        else:
            carried = 0
        for i in range(cells.shape[1]):
            cell = np.int64(cells[n, i])
            colour = 1 << (cell >> COLOUR_SHIFT & THREE_BITS)
            if cell & TOOL:
                keys |= colour
            elif cell & TYPE_MASK == DOOR and cell >> STATE_SHIFT & TWO_BITS == LOCKED:
                locked |= colour
        opened, value = keys & ~locked, np.float32(0)
        while opened:
            value += _OPENED
            opened &= opened - 1
        if carried & locked or (info[n, VERB] == PUT and info[n, HAND] & TARGET):
            value += _IN_HAND
        out[n] = value


def shaping_rewards(
    potential: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
) -> NDArray[np.float32]:
    """Return the additional rewards gamma F(s') - F(s) of a rollout, float32 [T, N].

    F(s') is unknown where the time limit ended an episode, and taken to be F(s).

    Args:
        potential: F before every step and after the last, float32 [T + 1, N]; after the end of an episode that of the
            next one.
        terminated, truncated: bool [T, N].
        gamma: Discount per step.
    """
    before = potential[:-1]
    after = np.where(truncated, before, potential[1:])
    after[terminated] = 0
    return (np.float32(gamma) * after - before).astype(np.float32)
