"""What the algorithms differ in: the advantage of a step, for many runs at once.

All arrays are float64 [R, E, T]: runs, episodes of one update, steps; steps after an episode's end hold
zeros. With G_t the discounted return-to-go (reward 1 a step, so that G depends on the steps left alone):

    vpg        A_t = G_t                                   REINFORCE: Williams 1992
    mean       A_t = G_t - mean of G over the episode
    value      A_t = G_t - V(s_t), V trained on G          Sutton & Barto, 2nd ed., section 13.4
    rloo       A_t = G_t - mean over the other episodes of their undiscounted total reward
                                                           Kool, van Hoof & Welling 2019, and the source's code
    rloo_step  A_t = G_t - mean of G over the other steps of the episode: the source's formula
"""

from __future__ import annotations

import numpy as np

ALGORITHMS = ("vpg", "mean", "value", "rloo", "rloo_step")
# Episodes of one update: the source takes a step after every episode, and RLOO after ten.
EPISODES_PER_UPDATE = {"vpg": 1, "mean": 1, "value": 1, "rloo": 10, "rloo_step": 10}
TINY = 1e-8  # keeps a standard deviation from being zero


def total(values: np.ndarray) -> np.ndarray:
    """Sum over the last axis, one after the other: zeros behind change nothing, not even rounding."""
    return values.cumsum(-1)[..., -1]


def mask(lengths: np.ndarray, steps: int) -> np.ndarray:
    """Which steps happened: bool [R, E, steps] from lengths [R, E]."""
    return np.arange(steps) < lengths[..., None]


def return_table(gammas: np.ndarray, steps: int) -> np.ndarray:
    """Returns with k steps left, float64 [R, steps + 1]: G(0) = 0, G(k) = 1 + gamma G(k - 1)."""
    table = np.zeros((len(gammas), steps + 1))
    for k in range(1, steps + 1):
        table[:, k] = 1 + gammas * table[:, k - 1]
    return table


def returns_to_go(table: np.ndarray, lengths: np.ndarray, steps: int) -> np.ndarray:
    """Discounted returns [R, E, steps] of episodes of these lengths [R, E]."""
    left = np.maximum(lengths[..., None] - np.arange(steps), 0)
    return np.take_along_axis(table, left.reshape(len(table), -1), 1).reshape(left.shape)


def advantages(
    algorithm: str, returns: np.ndarray, lengths: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """Advantages of runs of one algorithm.

    Args:
        algorithm: One of ALGORITHMS.
        returns: Returns-to-go [R, E, T].
        lengths: Lengths of the episodes, which are their undiscounted total rewards, [R, E].
        values: V(s_t) [R, E, T], for "value".
    """
    if algorithm == "vpg":
        return returns
    if algorithm == "mean":
        baseline = (total(returns) / lengths)[..., None]
    elif algorithm == "value":
        assert values is not None
        baseline = values
    elif algorithm == "rloo":
        others = lengths.shape[1] - 1
        baseline = ((lengths.sum(1, keepdims=True) - lengths) / others)[..., None]
    elif algorithm == "rloo_step":
        others = np.maximum(lengths - 1, 1)[..., None]
        baseline = (total(returns)[..., None] - returns) / others
    else:
        raise ValueError(f"{algorithm!r} is none of {', '.join(ALGORITHMS)}")
    return (returns - baseline) * mask(lengths, returns.shape[-1])


def normalised(advantage: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Advantages [R, E, T] with mean 0 and standard deviation 1 over all steps of a run's update.

    With "vpg", whose advantage is the return, this is what is usually called return normalisation.
    """
    happened = mask(lengths, advantage.shape[-1])
    count = lengths.sum(1)[:, None, None]
    mean = total(total(advantage))[:, None, None] / count
    centred = (advantage - mean) * happened
    variance = total(total(np.square(centred)))[:, None, None] / count
    return centred / (np.sqrt(variance) + TINY)


def policy_slope(
    logits: np.ndarray,
    actions: np.ndarray,
    advantage: np.ndarray,
    weights: np.ndarray,
    entropy_coef: np.ndarray,
) -> np.ndarray:
    """Gradient by the logits of the loss of one update, float32 [R, N, 2].

    The loss is  - sum_t w_t (A_t log pi(a_t | s_t) + c H(pi(. | s_t))).  With two actions pi depends on
    d = logit_1 - logit_0 alone: p = sigmoid(d), dlog pi(a)/dd = a - p, dH/dd = -d p (1 - p).

    Args:
        logits: float32 [R, N, 2].
        actions: 0 or 1, [R, N].
        advantage: A_t, held constant, [R, N].
        weights: w_t: 1 / (episodes x length of the episode), and 0 after its end, [R, N].
        entropy_coef: c, [R].
    """
    difference = (logits[..., 1] - logits[..., 0]).astype(np.float64)
    probability = 1 / (1 + np.exp(-difference))
    spread = probability * (1 - probability)
    slope = (probability - actions) * advantage + entropy_coef[:, None] * difference * spread
    slope *= weights
    return np.stack([-slope, slope], axis=-1).astype(np.float32)
