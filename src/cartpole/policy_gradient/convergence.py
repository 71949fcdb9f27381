"""Convergence criterion: the episode at which a run reaches its plateau.

The source read "episodes to plateau" off one plot. Here the plateau begins with the first episode whose mean
length over the last 100 episodes is at least 475 (gymnasium's reward threshold of CartPole-v1) and stays at
least 450 for the next 500 episodes.
"""

from __future__ import annotations

import numpy as np

WINDOW = 100  # episodes in a moving mean
REACHED, KEPT = 475.0, 450.0  # steps, moving mean: at the plateau's first episode, and after it
KEPT_EPISODES = 500
NO_PLATEAU = 0


def moving_mean(lengths: np.ndarray) -> np.ndarray:
    """Return the mean length of the last 100 episodes, or of all so far if these are fewer.

    Args:
        lengths: int [..., N], episode by episode.

    Returns:
        float64 [..., N]; entry k is the mean after episode k + 1.
    """
    sums = np.cumsum(lengths, axis=-1, dtype=np.float64)
    sums[..., WINDOW:] -= sums[..., :-WINDOW].copy()
    return sums / np.minimum(np.arange(1, lengths.shape[-1] + 1), WINDOW)


def plateau_episode(lengths: np.ndarray) -> np.ndarray:
    """Return the episode (counted from 1) at which each run reaches its plateau, or NO_PLATEAU.

    The last 500 episodes of a run are needed to confirm a plateau, so none can begin in them.

    Args:
        lengths: int [..., N].

    Returns:
        int [...].
    """
    mean = moving_mean(lengths)
    count = mean.shape[-1]
    if count < WINDOW + KEPT_EPISODES:
        return np.full(mean.shape[:-1], NO_PLATEAU)
    low = np.cumsum(mean < KEPT, axis=-1)
    # Episodes with a full window before them and 500 episodes after them.
    candidates = np.arange(WINDOW - 1, count - KEPT_EPISODES)
    lasts = low[..., candidates + KEPT_EPISODES] == low[..., candidates]
    begins = (mean[..., candidates] >= REACHED) & lasts
    return np.where(begins.any(-1), candidates[begins.argmax(-1)] + 1, NO_PLATEAU)


def search_cost(lengths: np.ndarray) -> np.ndarray:
    """Return the objective of a hyperparameter search, float64 [...]: episodes to plateau, always finite.

    A run without a plateau costs its budget N plus N (1 - m / 500), where m is the mean length of its last
    100 episodes: more than any run with a plateau, and less the closer it came.
    """
    reached, budget = plateau_episode(lengths), lengths.shape[-1]
    penalty = budget * (2 - moving_mean(lengths)[..., -1] / 500)
    return np.where(reached == NO_PLATEAU, penalty, reached)
