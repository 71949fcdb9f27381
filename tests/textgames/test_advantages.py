"""Advantages of trajectories and tokens against naive loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textgames.learning import advantages, state_advantages
from textgames.learning.state_advantages import Path

SCORES = st.lists(st.floats(-20, 20), min_size=4, max_size=12)


@given(SCORES)
def test_brpo_standardises_over_the_batch(scores):
    scores = np.array(scores)
    actual = advantages.outcome_advantages("brpo", scores, np.arange(len(scores)))
    mean = sum(scores) / len(scores)
    spread = (sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)) ** 0.5
    np.testing.assert_allclose(
        actual, [(score - mean) / (spread + 1e-6) for score in scores], atol=1e-5
    )


def test_grpo_standardises_by_game_and_a_single_game_keeps_its_score():
    scores, groups = np.array([1.0, 3.0, 7.0, 5.0, 5.0]), np.array([4, 4, 9, 2, 2])
    actual = advantages.outcome_advantages("grpo", scores, groups)
    np.testing.assert_allclose(
        actual, [-(0.5**0.5), 0.5**0.5, 7.0, 0.0, 0.0], rtol=1e-5, atol=1e-12
    )
    np.testing.assert_array_equal(advantages.outcome_advantages("arpo", scores, groups), scores)
    with pytest.raises(ValueError, match="estimator"):
        advantages.outcome_advantages("gae", scores, groups)


def test_the_games_whose_outcomes_differ_most_are_kept():
    groups = np.repeat(np.arange(4), 3)
    scores = np.array([0, 0, 0, 0, 0, 9, 1, 2, 1, 5, 5, 5.1])
    assert advantages.most_varied(scores, groups, 0.25).nonzero()[0].tolist() == [3, 4, 5]
    assert set(groups[advantages.most_varied(scores, groups, 0.5)]) == {1, 2}
    assert advantages.most_varied(scores, groups, 1.0).all()
    assert advantages.most_varied(scores, groups, 0.01).sum() == 3


@given(
    st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1), st.sampled_from(advantages.CREDITS)
)
def test_tokens_have_the_advantage_of_the_definition(seed, gamma, decay, credit):
    rng = np.random.default_rng(seed)
    turns = [np.sort(rng.integers(3, size=rng.integers(1, 9))) for _ in range(3)]
    rewards = [rng.normal(size=3).tolist() for _ in turns]
    values = [rng.normal(size=len(numbers)) for numbers in turns]
    actual, returns = advantages.token_gae(
        rewards, turns, values, credit=credit, gamma=gamma, gae_lambda=decay
    )  # fmt: skip
    for b, numbers in enumerate(turns):
        paid = [0.0] * len(numbers)
        if credit == "outcome":
            paid[-1] = sum(rewards[b])
        else:
            for turn in set(numbers.tolist()):
                paid[max(np.flatnonzero(numbers == turn))] = rewards[b][turn]
        for t in range(len(numbers)):
            expected = 0.0
            for later in range(t, len(numbers)):
                after = values[b][later + 1] if later + 1 < len(numbers) else 0.0
                expected += (gamma * decay) ** (later - t) * (
                    paid[later] + gamma * after - values[b][later]
                )
            assert actual[b][t] == pytest.approx(expected, abs=1e-4)
            assert returns[b][t] == pytest.approx(expected + values[b][t], abs=1e-4)


def turn_advantages(paths, gamma):
    return [path.advantage for path in state_advantages.certainty_equivalence(paths, gamma)]


def played(rng, moves, rewards, policy, start, turns, luck=None):
    """A path through states; the last one ends it. Args: moves [S, A, outcomes]."""
    states, actions, paid, at = [], [], [], start
    for turn in range(turns):
        action = int(rng.choice(policy.shape[1], p=policy[at]))
        outcome = rng.integers(moves.shape[2]) if luck is None else luck[turn]
        states.append(f"state {at}")
        actions.append(action)
        paid.append(float(rewards[at, action]))
        at = int(moves[at, action, outcome])
        if at == len(moves):
            return Path(states, actions, paid, True)
    return Path(states, actions, paid, False)


def by_dynamic_programming(moves, rewards, policy, gamma, turns):
    """Advantages [S, A]."""
    values = np.zeros(len(moves) + 1)
    for _ in range(turns):
        action_values = rewards + gamma * values[moves].mean(2)
        values[:-1] = (policy * action_values).sum(1)
    action_values = rewards + gamma * values[moves].mean(2)
    return action_values - (policy * action_values).sum(1)[:, None]


@pytest.mark.parametrize("seed", range(3))
def test_deterministic_games_have_the_advantages_of_dynamic_programming(seed):
    """Advantages of the policy given by the frequencies of the actions in the trajectories."""
    rng = np.random.default_rng(seed)
    moves, rewards = rng.integers(6, size=(5, 3, 1)), rng.normal(size=(5, 3))
    moves[4, 0] = 5  # there is an end
    policy = rng.dirichlet(np.ones(3) * 3, size=5)
    paths = [played(rng, moves, rewards, policy, k % 5, 50) for k in range(60)]
    choices = [(int(s[-1]), a) for p in paths for s, a in zip(p.states, p.actions, strict=True)]
    counts = np.array([[choices.count((s, a)) for a in range(3)] for s in range(5)])
    assert (counts > 0).all()
    expected = by_dynamic_programming(
        moves,
        rewards,
        counts / counts.sum(1, keepdims=True),
        0.5,
        max(len(p.rewards) for p in paths),
    )
    for path, estimates in zip(paths, turn_advantages(paths, 0.5), strict=True):
        for state, action, estimate in zip(path.states, path.actions, estimates, strict=True):
            assert estimate == pytest.approx(expected[int(state[-1]), action], abs=1e-6)


def test_state_advantages_have_less_noise_than_outcome_advantages():
    """Random games with the same draws in all trajectories of a game, as in `FrozenLake`."""
    rng = np.random.default_rng(4)
    moves = rng.integers(6, size=(5, 3, 3))
    rewards = np.zeros((5, 3))
    rewards[0, 0] = 1.0
    moves[0, 0] = 5
    policy = np.full((5, 3), 1 / 3)
    expected = by_dynamic_programming(moves, rewards, policy, 0.9, 60)
    pairs: list[tuple[float, float, float]] = []
    for _ in range(60):
        luck = rng.integers(3, size=20)
        paths = [played(rng, moves, rewards, policy, 1, 20, luck) for _ in range(24)]
        scores = np.array([sum(path.rewards) for path in paths])
        outcomes = advantages.outcome_advantages("grpo", scores, np.zeros(24, int))
        for path, estimates, outcome in zip(
            paths, turn_advantages(paths, 0.9), outcomes, strict=True
        ):
            pairs += [
                (expected[int(state[-1]), action], estimate, outcome)
                for state, action, estimate in zip(
                    path.states, path.actions, estimates, strict=True
                )
            ]
    true, of_states, of_outcomes = np.array(pairs).T
    assert np.corrcoef(true, of_states)[0, 1] > 2 * abs(np.corrcoef(true, of_outcomes)[0, 1])
    # A state that few are in is compared with little else than itself.
    assert 0.6 < np.polyfit(true, of_states, 1)[0] < 1.1


def test_a_turn_without_comparison_has_no_advantage():
    alone = Path(["a", "b", "c"], [1, 2, 1], [0.0, 0.0, 5.0], True)
    np.testing.assert_allclose(turn_advantages([alone], 1.0)[0], 0, atol=1e-12)
    # In a, action 1 leads to 5, action 2 to 1: equally often.
    other = Path(["a", "d"], [2, 1], [0.0, 1.0], True)
    actual = turn_advantages([alone, other], 1.0)
    np.testing.assert_allclose(actual[0], [2.0, 0, 0])
    np.testing.assert_allclose(actual[1], [-2.0, 0])
    # The outcome of the last turn is unknown, so it gives no estimate for d.
    cut = Path(["a", "d"], [2, 3], [0.0, 9.0], False)
    actual = turn_advantages([alone, other, cut], 1.0)
    np.testing.assert_allclose(np.concatenate(actual), [8 / 3, 0, 0, -4 / 3, 0, -4 / 3, 0])


def test_repeated_draws_count_once():
    """In a, action 1 pays 4 or 0 by chance, action 2 always 1; one draw is repeated three times."""
    paths = [Path(["a"], [1], [4.0], True, 5)] * 3 + [Path(["a"], [1], [0.0], True, 6)]
    paths += [Path(["a"], [2], [1.0], True, 7)] * 4
    actual = np.concatenate(turn_advantages(paths, 1.0))
    np.testing.assert_allclose(actual, [0.5] * 4 + [-0.5] * 4)


def test_an_invalid_reply_draws_no_chance():
    """Both act in x at turn 1 by the same stream, one with its second draw, one with its first."""
    late = Path(["x", "x", "y"], [1, 2, 1], [0.0, 0.0, 1.0], True)
    early = Path(["x", "x", "z"], [0, 2, 1], [-1.0, 0.0, 0.0], True)
    forth = state_advantages.certainty_equivalence([late, early], 1.0)
    back = state_advantages.certainty_equivalence([early, late], 1.0)
    for one, other in zip(forth, back[::-1], strict=True):
        np.testing.assert_allclose(one.advantage, other.advantage)


def test_the_error_is_the_standard_deviation_of_estimates():
    """One step pays 0 or 1; the same experiment over and over."""
    rng = np.random.default_rng(7)
    means, errors = [], []
    for _ in range(400):
        rewards = np.concatenate([rng.random(60) < 0.3, rng.random(20) < 0.8]).astype(float)
        paths = [
            Path(["a"], [int(k >= 60)], [reward], True, replay=k)
            for k, reward in enumerate(rewards)
        ]
        actual = state_advantages.certainty_equivalence(paths, 1.0)
        means.append((rewards[:60].mean(), rewards[60:].mean()))
        errors.append((actual[0].error[0], actual[-1].error[0]))
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(means, axis=0), rtol=0.15)


def turns_with(advantage, error, state):
    return state_advantages.TurnAdvantages(
        np.array(advantage, float), np.array(error, float), np.array(state)
    )


def test_preferences_are_the_ratio_of_improved_to_old_policy():
    rng = np.random.default_rng(8)
    advantage, error = rng.normal(size=(4, 3)), rng.uniform(0.1, 3, size=(4, 3))
    paths = []
    for length in rng.integers(1, 30, size=40):
        state, action = rng.integers(4, size=length), rng.integers(3, size=length)
        paths.append((state, action))
    turns = [turns_with(advantage[s, a], error[s, a], s) for s, a in paths]
    preferences = state_advantages.improved_policy(turns, 0.7)
    assert [len(preference) for preference in preferences] == [len(s) for s, _ in paths]
    counts = np.zeros((4, 3))
    for s, a in paths:
        np.add.at(counts, (s, a), 1)
    old = counts / counts.sum(1, keepdims=True)
    new = old * np.exp(np.clip(advantage / (0.1 * 0.7 + 0.5 * error), -5, 5))
    new /= new.sum(1, keepdims=True)
    for (s, a), preference in zip(paths, preferences, strict=True):
        np.testing.assert_allclose(preference, (new / old)[s, a] - 1, rtol=1e-4)


def test_preferences_do_not_depend_on_the_scale_of_rewards():
    much = [turns_with([5.0], [1.0], [0]), turns_with([-5.0], [1.0], [0])]
    little = [turns_with([0.05], [0.01], [1]), turns_with([-0.05], [0.01], [1])]
    preferences = state_advantages.improved_policy([*much, *little], 0.0)
    np.testing.assert_allclose(preferences[2:], preferences[:2], rtol=1e-3)
    unsure = state_advantages.improved_policy(
        [turns_with([0.05], [5.0], [0]), turns_with([-0.05], [5.0], [0])], 0.0
    )
    np.testing.assert_allclose(unsure, [[0.02], [-0.02]], rtol=0.02)


def test_preferences_are_zero_where_advantages_and_errors_are_zero():
    assert state_advantages.improved_policy([turns_with([0.0, 0.0], [0.0, 0.0], [0, 1])], 0.0)[
        0
    ].tolist() == [0, 0]
