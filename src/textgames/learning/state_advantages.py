"""Advantages of turns in equal states (`adv-estimator=states`), without a critic.

Trajectories of the same game meet in equal states (GiGPO, Feng et al. 2025, arXiv 2505.10978). There the value of an
action is not the return that followed it, but comes from the transitions of all trajectories: the
certainty-equivalence estimate, to which TD(0) converges on a batch (Sutton and Barto 2018, section 6.3):

    Q(s, a) = mean reward + gamma sum_s' P(s' | s, a) V(s'),   V(s) = sum_a pi(a | s) Q(s, a)

with P and pi counted over the batch. The only remaining noise is that of single transitions. The policy is moved
towards exp(A / unit) pi, clipped ("CMPO", Hessel et al. 2021, arXiv 2104.06159).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from textgames.games.interface import NONE
from textgames.models.trajectories import Trajectory

Floats = NDArray[np.float64]
_PRIOR = 10.0  # transitions that the game's mean spread counts for in a state's spread
_STD_WEIGHT, _ERROR_WEIGHT = 0.1, 0.5  # parts of the unit of an advantage, see `improved_policy`
_CLIP = 5.0  # largest advantage in units
_EPSILON = 1e-6


@dataclass(frozen=True)
class Path:
    """States, actions and rewards of a trajectory.

    Attributes:
        states: The model's context at every turn; equal contexts are the same state.
        actions: The action of every turn, `NONE` for an invalid reply.
        rewards: The reward of every turn.
        done: Whether the game ended; otherwise turns ran out, and the state after the last action is unknown.
        replay: Random stream of the game: with the same stream the transitions of the k-th valid action are the same.
    """

    states: Sequence[Hashable]
    actions: Sequence[int]
    rewards: Sequence[float]
    done: bool
    replay: int = 0


@dataclass(frozen=True)
class TurnAdvantages:
    """Advantages of the turns of a trajectory.

    Attributes:
        advantage: Q(s, a) - V(s) [n].
        error: Standard error of the advantage, from the spread of single transitions [n].
        state: Number of the state within the game, int64 [n].
    """

    advantage: Floats
    error: Floats
    state: NDArray[np.int64]


def turn_advantages(
    trajectories: Sequence[Trajectory], groups: NDArray[np.int64], gamma: float
) -> list[Floats]:
    """Return the advantages of the turns of every trajectory, float64 [turns] each.

    Args:
        trajectories: At least one.
        groups: Number of the game of every trajectory, int64 [B].
        gamma: Discount from turn to turn.
    """
    paths = [
        Path(t.contexts(), [turn.action for turn in t.turns], t.rewards, t.done, t.replay)
        for t in trajectories
    ]
    games = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    estimates = [certainty_equivalence([paths[i] for i in game], gamma) for game in games]
    std = np.concatenate([turns.advantage for game in estimates for turns in game]).std()
    advantages: list[Floats] = [np.zeros(0)] * len(trajectories)
    for game, turns in zip(games, estimates, strict=True):
        for i, advantage in zip(game, improved_policy(turns, std), strict=True):
            advantages[i] = advantage
    return advantages


def certainty_equivalence(paths: Sequence[Path], gamma: float) -> list[TurnAdvantages]:
    """Estimate the advantages of all turns of a game's trajectories.

    A transition (state, action, valid actions before, random stream) that several trajectories share is counted once.
    The advantage is 0 in a state where all trajectories chose the same action, and where the next state is unknown.

    Args:
        paths: Trajectories of the same game.
        gamma: Discount from turn to turn.

    Returns:
        Estimates for every trajectory.
    """
    state_ids: dict[Hashable, int] = {}
    pair_ids: dict[tuple[int, int], int] = {}  # (state, action) -> number
    visited = [
        [state_ids.setdefault(state, len(state_ids)) for state in path.states] for path in paths
    ]
    chosen = [
        [pair_ids.setdefault(pair, len(pair_ids)) for pair in zip(states, path.actions, strict=True)]
        for states, path in zip(visited, paths, strict=True)
    ]  # fmt: skip
    # (pair, valid actions before, random stream) -> (next state or -1, reward)
    transitions: dict[tuple[int, int, int], tuple[int, float]] = {}
    for states, pairs, path in zip(visited, chosen, paths, strict=True):
        following = [*states[1:], -1]
        valid = 0
        for turn in range(len(pairs) if path.done else len(pairs) - 1):
            key = pairs[turn], valid, path.replay
            transitions[key] = following[turn], path.rewards[turn]
            valid += path.actions[turn] != NONE
    pair = np.array([pair for pair, _, _ in transitions], int)
    next_state, reward = (
        (np.array(column) for column in zip(*transitions.values(), strict=True))
        if transitions
        else ([], [])
    )
    next_state = np.asarray(next_state, int)
    count = np.bincount(pair, minlength=len(pair_ids))
    known = count > 0
    mean_reward = np.bincount(pair, reward, len(pair_ids)) / np.maximum(count, 1)
    # P(s' | s, a); the last column is the end of the game.
    transition_probs = np.zeros((len(pair_ids), len(state_ids) + 1))
    np.add.at(transition_probs, (pair, next_state), 1 / np.maximum(count, 1)[pair])
    pair_state = np.array([state for state, _ in pair_ids])
    policy = np.zeros((len(state_ids), len(pair_ids)))  # pi(a | s) at column (s, a)
    policy[pair_state, np.arange(len(pair_ids))] = known * np.bincount(np.concatenate(chosen))
    policy /= np.maximum(policy.sum(1, keepdims=True), 1)
    q = mean_reward
    for _ in range(max(map(len, chosen))):
        q = mean_reward + gamma * transition_probs[:, :-1] @ (policy @ q)
    v = policy @ q
    advantage = known * (q - v[pair_state])
    target = np.asarray(reward) + gamma * np.append(v, 0.0)[next_state]
    squares = np.bincount(pair, (target - q[pair]) ** 2, len(pair_ids))
    # A pair with one or two transitions says little about their spread; its state and the game say more.
    state_count = np.bincount(pair_state, count, len(state_ids)) + _PRIOR
    variance = (
        np.bincount(pair_state, squares, len(state_ids))
        + _PRIOR * squares.sum() / max(len(transitions), 1)
    ) / state_count
    error = np.sqrt(variance[pair_state] / (count + 1))
    return [
        TurnAdvantages(advantage[pairs], error[pairs], np.array(states))
        for pairs, states in zip(chosen, visited, strict=True)
    ]


def improved_policy(turns: Sequence[TurnAdvantages], std: float) -> list[Floats]:
    """Return how much likelier an improved policy makes every action: pi'(a | s) / pi(a | s) - 1.

    pi' is proportional to exp(clip(A / unit)) pi, and the unit of an advantage is

        unit = 0.1 std + 0.5 error + 1e-6

    so that uncertain advantages count little and every state counts alike. With plain advantages the few states with
    large differences dominate, and the policy becomes certain there before it distinguishes actions elsewhere.

    Args:
        turns: Estimates for all trajectories of a game.
        std: Standard deviation of the advantages of all games.

    Returns:
        Advantages of the turns of every trajectory; their mean in a state is 0.
    """
    advantage, error, state = (
        np.concatenate([getattr(estimate, name) for estimate in turns])
        for name in ("advantage", "error", "state")
    )
    unit = _STD_WEIGHT * std + _ERROR_WEIGHT * error + _EPSILON
    weight = np.exp(np.clip(advantage / unit, -_CLIP, _CLIP))
    mean = np.bincount(state, weight) / np.maximum(np.bincount(state), 1)
    ratio = weight / mean[state]
    return np.split(ratio - 1, np.cumsum([len(estimate.state) for estimate in turns])[:-1])
