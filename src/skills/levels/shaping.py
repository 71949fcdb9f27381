"""How far keys and locks have come, as a potential: shaping by it leaves the best policy what it is.

Ng, Harada & Russell, "Policy invariance under reward transformations" (ICML 1999): what is added to the reward of a
step from s to s' is gamma F(s') - F(s), with F = 0 where an episode has ended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.kernels import kernel
from skills.levels.codes import (
    COLOUR_SHIFT,
    DOOR,
    LOCKED,
    STATE_SHIFT,
    THREE_BITS,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
)
from skills.levels.state import HAND

_IN_HAND, _OPENED = np.float32(0.5), np.float32(1)


@kernel
def potentials(cells, info, out):  # type: ignore[no-untyped-def]
    """Writes 1 for each lock that was opened, and 1/2 if the key of one that was not is in the hand.

    Args:
        cells, info: Of `State`, N environments.
        out: float32 [N].
    """
    for n in range(len(info)):
        keys, locked, held = 0, 0, np.int64(info[n, HAND])  # colours, a bit each
        if held & TOOL:
            held = 1 << (held >> COLOUR_SHIFT & THREE_BITS)
            keys = held
        else:
            held = 0
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
        if held & locked:
            value += _IN_HAND
        out[n] = value


def shaping_rewards(
    potential: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
) -> NDArray[np.float32]:
    """What shaping adds to the rewards of a rollout, float32 [T, N].

    An episode that only time has ended goes on in its last view's value; its last step is taken to have moved nothing.

    Args:
        potential: Before each step and after the last, float32 [T + 1, N]; where an episode has ended, the next one's.
        terminated, truncated: bool [T, N].
        gamma: Discount a step.
    """
    before = potential[:-1]
    after = np.where(truncated, before, potential[1:])
    after[terminated] = 0
    return (np.float32(gamma) * after - before).astype(np.float32)
