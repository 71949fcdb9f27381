"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438), with two treatments of a time limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.variants import TIME_LIMITS


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
    """Return advantages and returns of a rollout of T steps in N environments that reset themselves.

        delta_t = r_t + gamma V(s_(t+1)) - V(s_t)
        A_t = delta_t + gamma lambda A_(t+1)

    After a step that ends an episode by itself (`terminated`), V and A are 0. For a step at the time limit
    (`truncated`) there are two treatments:

    - `cut`: the step gets advantage 0 and its value as return (`bad_masks` of a2c_ppo_acktr, used by the source of the
      door study). Advantages that are normalised afterwards shift it from 0.
    - `bootstrap`: V is the value of the last observation of the episode; needs `final_values`.

    Args:
        rewards: [T, N], r.
        values: [T + 1, N]; the last row belongs to the observation after the rollout.
        terminated: [T, N], true where the episode ended by itself.
        truncated: [T, N], true where the time limit ended it.
        gamma: Discount per step, [0, 1].
        gae_lambda: Trace decay lambda per step, [0, 1].
        time_limit: `cut` or `bootstrap`.
        final_values: [T, N], values of the last observations of episodes; read only by `bootstrap`, where
            `truncated`.

    Returns:
        Advantages [T, N] and returns [T, N] (advantage + value), float32.

    Raises:
        ValueError: Unknown `time_limit`, or `bootstrap` without `final_values`.
    """
    if time_limit not in TIME_LIMITS:
        raise ValueError(f"time_limit is {time_limit!r}, not one of {', '.join(TIME_LIMITS)}")
    if time_limit == "bootstrap" and final_values is None:
        raise ValueError("time_limit 'bootstrap' needs final_values")
    rewards = np.asarray(rewards, np.float64)
    values = np.asarray(values, np.float64)
    continues = ~(terminated | truncated)
    next_values = np.where(continues, values[1:], 0.0)
    if time_limit == "bootstrap":
        assert final_values is not None
        only_time = truncated & ~terminated
        next_values = np.where(only_time, final_values, next_values)
    deltas = rewards + gamma * next_values - values[:-1]
    if time_limit == "cut":
        deltas[truncated] = 0.0
    decay = gamma * gae_lambda * continues
    advantages = np.empty_like(deltas)
    advantage = np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        advantage = deltas[t] + decay[t] * advantage
        advantages[t] = advantage
    returns = advantages + values[:-1]
    return advantages.astype(np.float32), returns.astype(np.float32)
