"""Metrics of continual learning, from arrays alone.

`success` [N, N] has in row i the success rates [1] on the N tasks after task i was learned, tasks in the order of
learning. Sources: Díaz-Rodríguez, Lomonaco, Filliat and Maltoni 2018, "Don't forget, there is
more than forgetting: new metrics for continual learning" (section 3); Wołczyk, Zając, Pascanu, Kuciński and
Miłoś 2021, "Continual World: a robotic benchmark for continual reinforcement learning" (section 4.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def accuracy(success: ArrayLike) -> float:
    """Mean success on the tasks learned so far, after every task (Díaz-Rodríguez et al. 2018, A)."""
    rates = _square(success, 1)
    return float(rates[np.tril_indices_from(rates)].mean())


def forward_transfer(success: ArrayLike) -> float:
    """Mean success on the tasks not yet learned, after every task (Díaz-Rodríguez et al. 2018, FWT).

    Raises:
        ValueError: There are fewer than two tasks.
    """
    rates = _square(success, 2)
    return float(rates[np.triu_indices_from(rates, 1)].mean())


def backward_transfer(success: ArrayLike) -> float:
    """Mean change of success on a task since its own training (Díaz-Rodríguez et al. 2018, BWT).

    The mean is over all tasks and all times after them. Negative: forgetting.

    Raises:
        ValueError: There are fewer than two tasks.
    """
    rates = _square(success, 2)
    change = rates - np.diagonal(rates)
    return float(change[np.tril_indices_from(rates, -1)].mean())


def positive_backward_transfer(success: ArrayLike) -> float:
    """Backward transfer where it is positive, else 0 (Díaz-Rodríguez et al. 2018, BWT+)."""
    return max(0.0, backward_transfer(success))


def remembering(success: ArrayLike) -> float:
    """1 minus the negative part of the backward transfer (Díaz-Rodríguez et al. 2018, REM)."""
    return 1.0 - abs(min(backward_transfer(success), 0.0))


def forgetting(success: ArrayLike) -> Floats:
    """Loss of success on every task, [N], from its own training to the end (Wołczyk et al. 2021, F).

    The last task's is 0; the source's metric is the mean over all.
    """
    rates = _square(success, 1)
    return np.diagonal(rates) - rates[-1]


def average_performance(success: ArrayLike) -> Floats:
    """Mean over all tasks, also those not yet learned, [T] (Wołczyk et al. 2021, P).

    Args:
        success: [T, N] success at T times on N tasks.
    """
    return np.asarray(success, np.float64).mean(axis=1)


def area(times: ArrayLike, success: ArrayLike, end: float) -> float:
    """Mean height of a curve between 0 and `end`, straight lines between its points.

    Args:
        times: [T], rising, from 0 to at least `end`.
        success: [T].
        end: where the area ends, above 0.

    Raises:
        ValueError: The curve does not cover that range.
    """
    at, rates = np.asarray(times, np.float64), np.asarray(success, np.float64)
    if at.shape != rates.shape or at.ndim != 1 or not len(at) or (np.diff(at) <= 0).any():
        raise ValueError("times must rise, with one success per time")
    if at[0] != 0 or not 0 < end <= at[-1]:
        raise ValueError(f"a curve from {at[0]:g} to {at[-1]:g} has no area from 0 to {end:g}")
    inside = at < end
    x = np.append(at[inside], end)
    y = np.append(rates[inside], np.interp(end, at, rates))
    return float(np.trapezoid(y, x) / end)


def curve_transfer(
    times: ArrayLike, success: ArrayLike, reference_times: ArrayLike, reference: ArrayLike
) -> float:
    """How much faster a task was learned than by a fresh network (Wołczyk et al. 2021, FT of a task).

    (AUC - AUC_ref) / (1 - AUC_ref), over the task's own training. Early stopping ends runs at different times:
    both areas end where the shorter curve ends.

    Args:
        times: [T], rising from 0, in the same unit as `reference_times`.
        success: [T] of the run in the series.
        reference_times: [S].
        reference: [S] of the fresh network.

    Returns:
        At most 1; 0 for equal curves; NaN if the reference has success 1 from the start.
    """
    end = min(np.asarray(times)[-1], np.asarray(reference_times)[-1])
    own, fresh = area(times, success, end), area(reference_times, reference, end)
    return (own - fresh) / (1.0 - fresh) if fresh < 1.0 else float("nan")


def _square(success: ArrayLike, least: int) -> Floats:
    rates = np.asarray(success, np.float64)
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or len(rates) < least:
        raise ValueError(f"success is {rates.shape}, not a square of {least} tasks or more")
    return rates
