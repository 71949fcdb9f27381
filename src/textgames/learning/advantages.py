"""How good what was said is: advantages of trajectories and of tokens, and which trajectories are worth learning from.

The estimators without a critic judge a trajectory by its outcome, the sum of its rewards, and give every token of it
the same advantage (RAGEN, Wang et al. 2025, section 3; group-relative: Shao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.gae import gae

Floats = NDArray[np.float64]
ESTIMATORS = ("brpo", "grpo", "arpo", "states", "gae")
CREDITS = ("outcome", "turn")
_EPSILON = 1e-6
_SHRUNK = 10.0  # how many transitions what is known of a whole game counts for
_OF_SPREAD, _OF_ERROR, _CLIP = 0.1, 0.5, 5.0  # see `preferred`


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
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Generalised advantages of tokens, with a critic's values.

    Args:
        rewards: Of each trajectory's turns.
        turns: The turn of each of its tokens, in order.
        values: The critic's, before each token.
        credit: `outcome`: the sum of rewards comes with the last token; `turn`: each with its turn's last one.
        gamma, gae_lambda: From token to token.

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
    lengths = [len(of) for of in turns]
    return (
        [advantages[:n, b] for b, n in enumerate(lengths)],
        [returns[:n, b] for b, n in enumerate(lengths)],
    )


@dataclass(frozen=True)
class Path:
    """A trajectory as states and what was done there.

    Attributes:
        states: What the model was told at each turn, equal where it is the same.
        actions: What it did.
        rewards: Of each turn.
        done: The game is over; else turns ran out, and it is not known what came of the last one.
        luck: How chance treated it; the draws of a turn are the same where it is.
    """

    states: Sequence[Hashable]
    actions: Sequence[int]
    rewards: Sequence[float]
    done: bool
    luck: int = 0


@dataclass(frozen=True)
class Judged:
    """What was done at the turns of a trajectory.

    Attributes:
        advantage: How much more it is worth than what else is done in that state [n].
        error: The standard error that chance at this turn leaves in it [n].
        state: A number of the state within the game, int64 [n].
    """

    advantage: Floats
    error: Floats
    state: NDArray[np.int64]


def of_turns(paths: Sequence[Path], gamma: float) -> list[Judged]:
    """How good what was done at each turn is, from all trajectories of a game.

    A state is where several trajectories meet (as in GiGPO, Feng et al. 2025, arXiv 2505.10978). What an action is
    worth there is not taken from what each of them came to, but from where the action led, and what it is worth to be
    there, which all of them tell: the certainty-equivalence estimate, which TD(0) converges to on a batch (Sutton and
    Barto 2018, section 6.3). Of chance that leaves the draws of single steps.

    Chance at a turn is the same in all trajectories of a game with the same luck: what one action in one state came to
    at one turn counts once. A turn is worth nothing where no other trajectory did anything else in its state, or where
    it is not known what came of it.

    Args:
        paths: Of one game.
        gamma: Discount from turn to turn.

    Returns:
        One of each trajectory.
    """
    names: dict[Hashable, int] = {}
    pairs: dict[tuple[int, int], int] = {}
    where = [[names.setdefault(state, len(names)) for state in path.states] for path in paths]
    did = [
        [pairs.setdefault(each, len(pairs)) for each in zip(at, path.actions, strict=True)]
        for at, path in zip(where, paths, strict=True)
    ]
    # Of a pair at a turn with a luck: where to, -1 nowhere, and the reward.
    led: dict[tuple[int, int, int], tuple[int, float]] = {}
    for at, of, path in zip(where, did, paths, strict=True):
        to = [*at[1:], -1]
        for turn in range(len(of) if path.done else len(of) - 1):
            led[of[turn], turn, path.luck] = to[turn], path.rewards[turn]
    from_pair = np.array([pair for pair, _, _ in led], int)
    to_state, paid = (
        (np.array(each) for each in zip(*led.values(), strict=True)) if led else ([], [])
    )
    count = np.bincount(from_pair, minlength=len(pairs))
    known = count > 0
    reward = np.bincount(from_pair, paid, len(pairs)) / np.maximum(count, 1)
    chance = np.zeros((len(pairs), len(names) + 1))  # a last column for the end
    np.add.at(chance, (from_pair, np.asarray(to_state, int)), 1 / np.maximum(count, 1)[from_pair])
    states = np.array([state for state, _ in pairs])
    policy = np.zeros((len(names), len(pairs)))
    policy[states, np.arange(len(pairs))] = known * np.bincount(np.concatenate(did))
    policy /= np.maximum(policy.sum(1, keepdims=True), 1)
    worth = reward
    for _ in range(max(map(len, did))):
        worth = reward + gamma * chance[:, :-1] @ (policy @ worth)
    values = policy @ worth
    better = known * (worth - values[states])
    came_to = np.asarray(paid) + gamma * np.append(values, 0.0)[np.asarray(to_state, int)]
    off = np.bincount(from_pair, (came_to - worth[from_pair]) ** 2, len(pairs))
    # What an action came to once or twice says little of its spread; that of the state and of the game say more.
    of_state = np.bincount(states, count, len(names)) + _SHRUNK
    spread = (
        np.bincount(states, off, len(names)) + _SHRUNK * off.sum() / max(len(led), 1)
    ) / of_state
    error = np.sqrt(spread[states] / (count + 1))
    return [Judged(better[of], error[of], np.array(at)) for of, at in zip(did, where, strict=True)]


def preferred(turns: Sequence[Judged], spread: float) -> list[Floats]:
    """Advantages that count each state alike, however little its actions differ.

    The policy that is gone towards prefers an action by e to the power of its advantage, which is clipped ("CMPO",
    Hessel et al. 2021, arXiv 2104.06159): said is how much likelier it makes what was done, less 1. The unit of an
    advantage is its own error, so that little is made of little evidence, and a share of the spread of all of them.
    Plain advantages let the few states in which much is at stake speak loudest, where the policy is sure before it
    tells actions apart in the others.

    Args:
        turns: Of all trajectories of a game.
        spread: The standard deviation of advantages, of this and other games.

    Returns:
        One of each turn, for each trajectory; their mean in a state is 0.
    """
    better, error, state = (
        np.concatenate([getattr(each, name) for each in turns])
        for name in ("advantage", "error", "state")
    )
    unit = _OF_SPREAD * spread + _OF_ERROR * error + _EPSILON
    liking = np.exp(np.clip(better / unit, -_CLIP, _CLIP))
    mean = np.bincount(state, liking) / np.maximum(np.bincount(state), 1)
    found = liking / mean[state] - 1
    return np.split(found, np.cumsum([len(each.state) for each in turns])[:-1])
