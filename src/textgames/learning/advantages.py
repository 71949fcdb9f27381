"""Advantages of tokens, from the rewards of trajectories.

Estimators without a critic score a whole trajectory i by its outcome s_i, the sum of its rewards, and every token of
it gets the same advantage (RAGEN, Wang et al. 2025, arXiv 2504.20073, section 3; group-relative: Shao et al. 2024,
arXiv 2402.03300):

    arpo    A_i = s_i
    brpo    A_i = (s_i - mean(s)) / (std(s) + 1e-6)        over the batch
    grpo    A_i = (s_i - mean(s_g)) / (std(s_g) + 1e-6)    over the trajectories of the same game g
    gae     A_t = sum_l (gamma lambda)^l delta_(t+l),  delta_t = r_t + gamma V_(t+1) - V_t,  normalised over all tokens
    states  compares turns in equal states, see `state_advantages`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl.gae import gae
from textgames.learning.state_advantages import turn_advantages
from textgames.models.trajectories import Trajectory

OF_OUTCOMES = ("brpo", "grpo", "arpo")
WITHOUT_CRITIC = (*OF_OUTCOMES, "states")
ESTIMATORS = (*WITHOUT_CRITIC, "gae")
CREDITS = ("outcome", "turn")
_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class AdvantageSettings:
    """Settings of `estimate`.

    Attributes:
        estimator: One of `ESTIMATORS`.
        credit: For `gae`: "outcome" pays the sum of rewards with the last token of a trajectory, "turn" pays every
            reward with the last token of its turn.
        gamma: Discount from token to token (`gae`) or from turn to turn (`states`).
        gae_lambda: Decay from token to token (`gae`).
        all_tokens: Which tokens are trained on, see `Text.trained_turns`.
    """

    estimator: str
    credit: str
    gamma: float
    gae_lambda: float
    all_tokens: bool


class Estimates(NamedTuple):
    """Advantages and returns of the trained tokens of every trajectory, float32 [N] each.

    Attributes:
        advantages: A_t.
        returns: Targets of the critic, A_t + V_t before normalisation; None without a critic.
    """

    advantages: list[NDArray[np.float32]]
    returns: list[NDArray[np.float32]] | None


def estimate(
    trajectories: Sequence[Trajectory],
    groups: NDArray[np.int64],
    values: Sequence[NDArray[np.floating]] | None,
    settings: AdvantageSettings,
) -> Estimates:
    """Estimate the advantages of all trained tokens.

    Args:
        trajectories: At least one.
        groups: Number of the game of every trajectory, int64 [B].
        values: The critic's values of the trained tokens of every trajectory, [N] each; for `gae` only.
        settings: The estimator.
    """
    token_turns = [t.token_turns(all_tokens=settings.all_tokens) for t in trajectories]
    if settings.estimator == "gae":
        return normalized_gae(trajectories, token_turns, values or (), settings)
    if settings.estimator == "states":
        per_turn = turn_advantages(trajectories, groups, settings.gamma)
        per_token = [a[turns] for a, turns in zip(per_turn, token_turns, strict=True)]
    else:
        scores = np.array([t.score for t in trajectories])
        outcomes = outcome_advantages(settings.estimator, scores, groups)
        per_token = [np.full(len(t), a) for t, a in zip(token_turns, outcomes, strict=True)]
    return Estimates([advantage.astype(np.float32) for advantage in per_token], None)


def outcome_advantages(
    estimator: str, scores: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the advantages of whole trajectories, float64 [B].

    Args:
        estimator: "brpo", "grpo" or "arpo". A game that was played once has mean 0 and standard deviation 1 in "grpo".
        scores: Sums of rewards [B].
        groups: Number of the game of every trajectory [B].
    """
    if estimator == "arpo":
        return scores.astype(np.float64)
    if estimator == "brpo":
        groups = np.zeros(len(scores), np.int64)
    elif estimator != "grpo":
        raise ValueError(f"estimator {estimator!r}: brpo, grpo or arpo")
    advantages = np.empty(len(scores))
    for group in np.unique(groups):
        members = groups == group
        mean, std = 0.0, 1.0
        if members.sum() > 1:
            mean, std = scores[members].mean(), scores[members].std(ddof=1)
        advantages[members] = (scores[members] - mean) / (std + _EPSILON)
    return advantages


def normalized_gae(
    trajectories: Sequence[Trajectory],
    token_turns: Sequence[NDArray[np.int64]],
    values: Sequence[NDArray[np.floating]],
    settings: AdvantageSettings,
) -> Estimates:
    """Return generalised advantages of tokens (Schulman et al. 2016), normalised over all tokens, and returns."""
    rewards = [trajectory.rewards for trajectory in trajectories]
    advantages, returns = token_gae(
        rewards, token_turns, values, credit=settings.credit, gamma=settings.gamma, gae_lambda=settings.gae_lambda
    )  # fmt: skip
    every = np.concatenate(advantages)
    mean, std = every.mean(), every.std() + 1e-8
    return Estimates([(a - mean) / std for a in advantages], returns)


def token_gae(
    rewards: Sequence[Sequence[float]],
    token_turns: Sequence[NDArray[np.int64]],
    values: Sequence[NDArray[np.floating]],
    *,
    credit: str,
    gamma: float,
    gae_lambda: float,
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return generalised advantages and returns of the tokens of every trajectory.

    Args:
        rewards: Rewards of the turns of every trajectory.
        token_turns: The turn of every token, in order.
        values: The critic's value before every token.
        credit, gamma, gae_lambda: See `AdvantageSettings`.
    """
    lengths = [len(turns) for turns in token_turns]
    shape = max(lengths), len(lengths)
    paid, predicted = np.zeros(shape), np.zeros((shape[0] + 1, shape[1]))
    ended = np.ones(shape, bool)
    for b, turns in enumerate(token_turns):
        predicted[: len(turns), b] = values[b]
        ended[: len(turns) - 1, b] = False
        if credit == "outcome":
            paid[len(turns) - 1, b] = sum(rewards[b])
        else:
            last = np.flatnonzero(np.append(turns[1:] != turns[:-1], True))
            paid[last, b] = np.asarray(rewards[b])[turns[last]]
    truncated = np.zeros_like(ended)
    advantages, returns = gae(paid, predicted, ended, truncated, gamma=gamma, gae_lambda=gae_lambda)
    return (
        [advantages[:n, b] for b, n in enumerate(lengths)],
        [returns[:n, b] for b, n in enumerate(lengths)],
    )


def group_std(scores: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard deviation of the scores of every group, ordered by number; 0 for a single score."""
    return np.array([scores[groups == group].std() for group in np.unique(groups)])


def most_varied(
    scores: NDArray[np.float64], groups: NDArray[np.int64], share: float
) -> NDArray[np.bool_]:
    """Select the games with the most varied outcomes, as StarPO-S does (Wang et al. 2025, section 4.2).

    Args:
        scores: Sums of rewards [B].
        groups: Number of the game of every trajectory [B].
        share: Share of the games to keep, above 0; at least one game is kept.

    Returns:
        Which trajectories are kept, bool [B].
    """
    names = np.unique(groups)
    count = max(1, round(share * len(names)))
    best = np.argsort(-group_std(scores, groups), kind="stable")[:count]
    return np.isin(groups, names[best])
