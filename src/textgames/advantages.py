"""How good what was said is: advantages of trajectories and of tokens, and which trajectories are worth learning from.

The estimators without a critic judge a trajectory by its outcome, the sum of its rewards, and give every token of it
the same advantage (RAGEN, Wang et al. 2025, section 3; group-relative: Shao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl.gae import gae

Floats = NDArray[np.float64]
ESTIMATORS = ("brpo", "grpo", "arpo", "gae")
CREDITS = ("outcome", "turn")
_EPSILON = 1e-6


def of_outcomes(estimator: str, scores: Floats, groups: NDArray[np.int64]) -> Floats:
    """Advantages of trajectories.

    Args:
        estimator: `brpo`: a score beside those of the whole batch; `grpo`: beside those of the same game; a game
            that was played once is beside a mean of 0 and a spread of 1; `arpo`: the score itself.
        scores: Sums of rewards [B].
        groups: Equal where the game is [B].
    """
    if estimator == "arpo":
        return scores.astype(np.float64)
    if estimator == "brpo":
        groups = np.zeros(len(scores), np.int64)
    elif estimator != "grpo":
        raise ValueError(f"estimator {estimator!r}: brpo, grpo or arpo")
    found = np.empty(len(scores))
    for group in np.unique(groups):
        of = groups == group
        alone = of.sum() == 1
        mean, spread = (0.0, 1.0) if alone else (scores[of].mean(), scores[of].std(ddof=1))
        found[of] = (scores[of] - mean) / (spread + _EPSILON)
    return found


def spreads(scores: Floats, groups: NDArray[np.int64]) -> Floats:
    """The standard deviation of scores in each group, by group's number; 0 of a single one."""
    names = np.unique(groups)
    return np.array([scores[groups == name].std() for name in names])


def most_varied(scores: Floats, groups: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """StarPO-S keeps the games whose outcomes differ most (Wang et al. 2025, section 4.2).

    Args:
        scores: [B].
        groups: [B].
        share: Of the games, over 0; at least one is kept.

    Returns:
        Which trajectories are kept, bool [B].
    """
    names = np.unique(groups)
    count = max(1, round(share * len(names)))
    best = np.argsort(-spreads(scores, groups), kind="stable")[:count]
    return np.isin(groups, names[best])


def of_tokens(
    rewards: Sequence[Sequence[float]],
    turns: Sequence[NDArray[np.int64]],
    values: Sequence[NDArray[np.floating]],
    *,
    credit: str,
    gamma: float,
    gae_lambda: float,
    critic_lambda: float | None = None,
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Generalised advantages of tokens, with a critic's values.

    Args:
        rewards: Of each trajectory's turns.
        turns: The turn of each of its tokens, in order.
        values: The critic's, before each token.
        credit: `outcome`: the sum of rewards comes with the last token; `turn`: each with its turn's last one.
        gamma, gae_lambda: From token to token.
        critic_lambda: Of the returns, which the critic learns, in place of `gae_lambda`; None: the same. Far-sighted
            returns have a critic that begins with nothing learn at all, short-sighted advantages have little noise
            (Yuan et al. 2025, arXiv 2503.01491, section 4.2, "decoupled GAE").

    Returns:
        Advantages and returns of each trajectory's tokens.
    """
    count, longest = len(turns), max(map(len, turns))
    paid, told = np.zeros((longest, count)), np.zeros((longest + 1, count))
    over = np.ones((longest, count), bool)
    for b, of in enumerate(turns):
        told[: len(of), b] = values[b]
        over[: len(of) - 1, b] = False
        if credit == "outcome":
            paid[len(of) - 1, b] = sum(rewards[b])
        else:
            last = np.flatnonzero(np.append(of[1:] != of[:-1], True))
            paid[last, b] = np.asarray(rewards[b])[of[last]]
    never = np.zeros_like(over)
    advantages, returns = gae(paid, told, over, never, gamma=gamma, gae_lambda=gae_lambda)
    if critic_lambda is not None and critic_lambda != gae_lambda:
        _, returns = gae(paid, told, over, never, gamma=gamma, gae_lambda=critic_lambda)
    lengths = [len(of) for of in turns]
    return (
        [advantages[:n, b] for b, n in enumerate(lengths)],
        [returns[:n, b] for b, n in enumerate(lengths)],
    )
