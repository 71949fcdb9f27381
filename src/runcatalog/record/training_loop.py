"""Rules that training loops share: early stopping, when something is due, and how often to log."""

from __future__ import annotations

import math
from collections.abc import Sequence

STOP_WINDOW = 3  # validations; a single high value is often luck


def reached_target(values: Sequence[float], target: float, window: int = STOP_WINDOW) -> bool:
    """Return whether the mean of the last validations has reached a target: early stopping.

    Args:
        values: One value per validation, oldest first; higher is better.
        target: The value to reach; 0 never stops.
        window: Number of validations in the mean; with fewer values the result is False.
    """
    latest = list(values)[-window:]
    if not target or len(latest) < window:
        return False
    return math.fsum(latest) >= window * target - 1e-9  # a sum of rates may round below the target


def is_due(update: int, interval: int, total: int = 0) -> bool:
    """Return whether an action with an interval is due after an update; always after the last one.

    Args:
        update: Number of the update that has just ended, from 1.
        interval: Updates between two actions; 0: never, not after the last update either.
        total: Number of the last update; 0: no update counts as the last.
    """
    return interval > 0 and (update % interval == 0 or update == total)


def log_interval(updates: int, points: int) -> int:
    """Return the updates between two points of a curve that has about `points` of them, and at most twice as many."""
    return max(1, updates // points)
