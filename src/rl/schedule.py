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
