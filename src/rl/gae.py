"""Generalised advantage estimation (Schulman et al. 2016) with the two ways to treat a time limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TIME_LIMITS = ("cut", "bootstrap")


def gae(
    rewards: NDArray[np.floating],
    values: NDArray[np.floating],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    *,
    gamma: float,
    gae_lambda: float,
    time_limit: str = "cut",
    final_values: NDArray[np.floating] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns of a rollout of T steps in N environments that reset themselves.

    An episode that ends by itself (`terminated`) has no value after its end. One that the clock
    cuts (`truncated`) would have gone on, and there are two ways to say so:

    - `cut`: the step at the limit gets advantage 0 and its value as return, so it teaches
      nothing, and the recursion starts anew before it (`bad_masks` of a2c_ppo_acktr, which
      the door study's source uses).
    - `bootstrap`: the value of the observation at the limit stands for the rest of the episode;
      needs `final_values`.

    Args:
        rewards: [T, N].
        values: [T + 1, N], the last row for the observation after the rollout.
        terminated: [T, N], true where step t ended the episode.
        truncated: [T, N], true where the time limit did.
        gamma: discount per step, [0, 1].
        gae_lambda: trace decay per step, [0, 1].
        time_limit: one of `TIME_LIMITS`.
        final_values: [T, N], values of the last observation of each episode; read only where
            `truncated`, and only by `bootstrap`.

    Returns:
        advantages [T, N] and returns [T, N] (advantage + value), float32.

    Raises:
        ValueError: an unknown `time_limit`, or `bootstrap` without `final_values`.
    """
    if time_limit not in TIME_LIMITS:
        raise ValueError(f"time_limit is {time_limit!r}, not one of {', '.join(TIME_LIMITS)}")
    if time_limit == "bootstrap" and final_values is None:
        raise ValueError("time_limit 'bootstrap' needs final_values")
    rewards = np.asarray(rewards, np.float64)
    values = np.asarray(values, np.float64)
    goes_on = ~(terminated | truncated)
    next_values = np.where(goes_on, values[1:], 0.0)
    if time_limit == "bootstrap":
        only_time = truncated & ~terminated
        next_values = np.where(only_time, final_values, next_values)
    deltas = rewards + gamma * next_values - values[:-1]
    if time_limit == "cut":
        deltas[truncated] = 0.0
    decay = gamma * gae_lambda * goes_on
    advantages = np.empty_like(deltas)
    advantage = np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        advantage = deltas[t] + decay[t] * advantage
        advantages[t] = advantage
    returns = advantages + values[:-1]
    return advantages.astype(np.float32), returns.astype(np.float32)
