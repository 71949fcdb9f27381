"""Rules shared by training loops: early stopping, intervals of actions, and logging frequency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

STOP_WINDOW = 3  # validations; a single high value is often chance


def reached_target(values: Sequence[float], target: float, window: int = STOP_WINDOW) -> bool:
    """Return whether the mean of the last validations has reached a target: early stopping.

    Args:
        values: Values of the validations, oldest first; higher is better.
        target: Value to reach; 0 disables early stopping.
        window: Number of validations in the mean; False with fewer values.
    """
    latest = list(values)[-window:]
    if not target or len(latest) < window:
        return False
    return math.fsum(latest) >= window * target - 1e-9  # a sum of rates may round below the target


def is_due(update: int, interval: int, total: int = 0) -> bool:
    """Return whether a periodic action is due after an update; it is always due after the last update.

    Args:
        update: Number of the completed update, from 1.
        interval: Updates between two actions; 0: never, not even after the last update.
        total: Number of the last update; 0: no update counts as the last.
    """
    return interval > 0 and (update % interval == 0 or update == total)


def log_interval(updates: int, points: int) -> int:
    """Return the interval, in updates, that gives a curve about `points` points, and at most twice as many."""
    return max(1, updates // points)


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric over the updates that have it, by name.

    Args:
        updates: Metrics of the updates since the last point of the curves.
    """
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    values = {name: [metrics[name] for metrics in updates if name in metrics] for name in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
