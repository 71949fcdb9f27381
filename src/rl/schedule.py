"""Step sizes over a training."""

from __future__ import annotations

import math


def rise_and_fall(update: int, updates: int, warm_up: float) -> float:
    """The step size of an update as a share of the highest: a line up, then half a cosine down.

    After Loshchilov and Hutter (2017, arXiv 1608.03983), without restarts.

    Args:
        update: 1 to `updates`.
        updates: Of the whole training.
        warm_up: Share of them in which it rises, at least one.
    """
    rise = max(1, round(warm_up * updates))
    if update <= rise:
        return update / rise
    done = (update - rise) / max(1, updates - rise)
    return 0.5 * (1 + math.cos(math.pi * done))


def hold_and_fall(update: int, updates: int, share: float) -> float:
    """The step size of an update as a share of the highest: that, then a line to 0 after the last update.

    Args:
        update: 0 to `updates` - 1.
        updates: Of the whole training.
        share: Of them in which it falls, the last ones.
    """
    falling = share * updates
    return min(1.0, (updates - update) / falling) if falling else 1.0
