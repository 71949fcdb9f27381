"""When a run has learned: its plateau, as a criterion that needs no eye.

The source read "episodes to plateau" off one plot. Here: the first episode whose mean length over the last
100 episodes is at least 475 (gymnasium's reward threshold of CartPole-v1) and stays at least 450 for the
next 500 episodes.
"""

from __future__ import annotations

import numpy as np

WINDOW = 100  # episodes
REACHED, HELD = 475.0, 450.0  # steps, mean over WINDOW
STAYS = 500  # episodes
NEVER = 0


def recent_mean(lengths: np.ndarray) -> np.ndarray:
    """Mean length of the last 100 episodes, or of all so far where these are fewer.

    Args:
        lengths: int [..., N], episode by episode.

    Returns:
        float64 [..., N]; place k is what is known after episode k + 1.
    """
    sums = np.cumsum(lengths, axis=-1, dtype=np.float64)
    sums[..., WINDOW:] -= sums[..., :-WINDOW].copy()
    return sums / np.minimum(np.arange(1, lengths.shape[-1] + 1), WINDOW)


def plateau(lengths: np.ndarray) -> np.ndarray:
    """The episode (counted from 1) in which each run reaches its plateau; NEVER without one.

    A plateau has to be seen to last: within the last 500 episodes of a run none can begin.

    Args:
        lengths: int [..., N].

    Returns:
        int [...].
    """
    mean = recent_mean(lengths)
    count = mean.shape[-1]
    if count < WINDOW + STAYS:
        return np.full(mean.shape[:-1], NEVER)
    low = np.cumsum(mean < HELD, axis=-1)
    candidates = np.arange(WINDOW - 1, count - STAYS)  # full windows with 500 episodes behind
    lasts = low[..., candidates + STAYS] == low[..., candidates]
    begins = (mean[..., candidates] >= REACHED) & lasts
    return np.where(begins.any(-1), candidates[begins.argmax(-1)] + 1, NEVER)


def cost(lengths: np.ndarray) -> np.ndarray:
    """What a search minimises, float64 [...]: episodes to plateau, finite for every run.

    A run without a plateau costs its budget N plus N (1 - m / 500) with m the mean length of its last 100
    episodes: always more than any run that got there, and the less the closer it came.
    """
    found, budget = plateau(lengths), lengths.shape[-1]
    missing = budget * (2 - recent_mean(lengths)[..., -1] / 500)
    return np.where(found == NEVER, missing, found)
