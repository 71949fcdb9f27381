"""Learning-rate schedules, as factors of the highest rate."""

from __future__ import annotations

import math


def rise_and_fall(update: int, updates: int, warm_up: float) -> float:
    """Return the factor of an update: a linear warm-up, then half a cosine down to 0.

    After Loshchilov and Hutter (2017, arXiv 1608.03983), without restarts.

    Args:
        update: 1 to `updates`.
        updates: Number of updates of the training.
        warm_up: Fraction of the updates in the warm-up, which has at least one update.
    """
    rise = max(1, round(warm_up * updates))
    if update <= rise:
        return update / rise
    done = (update - rise) / max(1, updates - rise)
    return 0.5 * (1 + math.cos(math.pi * done))


def hold_and_fall(update: int, updates: int, share: float) -> float:
    """Return the factor of an update: 1, then a linear decay that would reach 0 after the last update.

    Args:
        update: 0 to `updates` - 1.
        updates: Number of updates of the training.
        share: Fraction of the updates, the last ones, in the decay.
    """
    falling = share * updates
    return min(1.0, (updates - update) / falling) if falling else 1.0
