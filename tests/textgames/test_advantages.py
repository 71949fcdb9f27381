"""Advantages of trajectories and tokens beside naive loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textgames.learning import advantages, state_advantages
from textgames.learning.state_advantages import Path

SCORES = st.lists(st.floats(-20, 20), min_size=4, max_size=12)


@given(SCORES)
def test_the_batch_is_one_group(scores):
    scores = np.array(scores)
    found = advantages.outcome_advantages("brpo", scores, np.arange(len(scores)))
    mean = sum(scores) / len(scores)
    spread = (sum((each - mean) ** 2 for each in scores) / (len(scores) - 1)) ** 0.5
    np.testing.assert_allclose(
        found, [(each - mean) / (spread + 1e-6) for each in scores], atol=1e-5
    )


def test_a_group_is_one_game_and_one_that_was_played_once_keeps_its_score():
    scores, groups = np.array([1.0, 3.0, 7.0, 5.0, 5.0]), np.array([4, 4, 9, 2, 2])
    found = advantages.outcome_advantages("grpo", scores, groups)
    np.testing.assert_allclose(found, [-(0.5**0.5), 0.5**0.5, 7.0, 0.0, 0.0], rtol=1e-5, atol=1e-12)
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
    values = [rng.normal(size=len(each)) for each in turns]
    found, returns = advantages.token_gae(
        rewards, turns, values, credit=credit, gamma=gamma, gae_lambda=decay
    )  # fmt: skip
    for b, of in enumerate(turns):
        paid = [0.0] * len(of)
        if credit == "outcome":
            paid[-1] = sum(rewards[b])
        else:
            for turn in set(of.tolist()):
                paid[max(np.flatnonzero(of == turn))] = rewards[b][turn]
        for t in range(len(of)):
            wanted = 0.0
            for later in range(t, len(of)):
                after = values[b][later + 1] if later + 1 < len(of) else 0.0
                wanted += (gamma * decay) ** (later - t) * (
                    paid[later] + gamma * after - values[b][later]
                )
            assert found[b][t] == pytest.approx(wanted, abs=1e-4)
            assert returns[b][t] == pytest.approx(wanted + values[b][t], abs=1e-4)


def of_turns(paths, gamma):
    return [each.advantage for each in state_advantages.certainty_equivalence(paths, gamma)]


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
        worth = rewards + gamma * values[moves].mean(2)
        values[:-1] = (policy * worth).sum(1)
    worth = rewards + gamma * values[moves].mean(2)
    return worth - (policy * worth).sum(1)[:, None]


@pytest.mark.parametrize("seed", range(3))
def test_without_chance_turns_have_the_advantage_that_dynamic_programming_finds(seed):
    """Of the policy that the trajectories had, as often as they did what they did."""
    rng = np.random.default_rng(seed)
    moves, rewards = rng.integers(6, size=(5, 3, 1)), rng.normal(size=(5, 3))
    moves[4, 0] = 5  # there is an end
    policy = rng.dirichlet(np.ones(3) * 3, size=5)
    paths = [played(rng, moves, rewards, policy, k % 5, 50) for k in range(60)]
    did = [(int(s[-1]), a) for p in paths for s, a in zip(p.states, p.actions, strict=True)]
    seen = np.array([[did.count((s, a)) for a in range(3)] for s in range(5)])
    assert (seen > 0).all()
    wanted = by_dynamic_programming(
        moves, rewards, seen / seen.sum(1, keepdims=True), 0.5, max(len(p.rewards) for p in paths)
    )
    for path, found in zip(paths, of_turns(paths, 0.5), strict=True):
        for state, action, each in zip(path.states, path.actions, found, strict=True):
            assert each == pytest.approx(wanted[int(state[-1]), action], abs=1e-6)


def test_far_less_of_it_is_chance_than_of_what_trajectories_came_to():
    """Games with luck of their own, the same in all trajectories of a game, as in `FrozenLake`."""
    rng = np.random.default_rng(4)
    moves = rng.integers(6, size=(5, 3, 3))
    rewards = np.zeros((5, 3))
    rewards[0, 0] = 1.0
    moves[0, 0] = 5
    policy = np.full((5, 3), 1 / 3)
    wanted = by_dynamic_programming(moves, rewards, policy, 0.9, 60)
    pairs: list[tuple[float, float, float]] = []
    for _ in range(60):
        luck = rng.integers(3, size=20)
        paths = [played(rng, moves, rewards, policy, 1, 20, luck) for _ in range(24)]
        scores = np.array([sum(path.rewards) for path in paths])
        came_to = advantages.outcome_advantages("grpo", scores, np.zeros(24, int))
        for path, each, whole in zip(paths, of_turns(paths, 0.9), came_to, strict=True):
            pairs += [
                (wanted[int(state[-1]), action], of, whole)
                for state, action, of in zip(path.states, path.actions, each, strict=True)
            ]
    true, of_states, of_outcomes = np.array(pairs).T
    assert np.corrcoef(true, of_states)[0, 1] > 2 * abs(np.corrcoef(true, of_outcomes)[0, 1])
    # A state that few are in is compared with little else than itself.
    assert 0.6 < np.polyfit(true, of_states, 1)[0] < 1.1


def test_a_turn_that_nothing_can_be_compared_with_is_worth_nothing():
    alone = Path(["a", "b", "c"], [1, 2, 1], [0.0, 0.0, 5.0], True)
    np.testing.assert_allclose(of_turns([alone], 1.0)[0], 0, atol=1e-12)
    # In a, action 1 leads to 5, action 2 to 1: of each half the time.
    other = Path(["a", "d"], [2, 1], [0.0, 1.0], True)
    found = of_turns([alone, other], 1.0)
    np.testing.assert_allclose(found[0], [2.0, 0, 0])
    np.testing.assert_allclose(found[1], [-2.0, 0])
    # What came of the last turn is not known: it says nothing of d.
    cut = Path(["a", "d"], [2, 3], [0.0, 9.0], False)
    found = of_turns([alone, other, cut], 1.0)
    np.testing.assert_allclose(np.concatenate(found), [8 / 3, 0, 0, -4 / 3, 0, -4 / 3, 0])


def test_with_luck_of_their_own_trajectories_tell_of_different_draws():
    """In a, action 1 pays 4 or 0 by chance, action 2 always 1; one kind of luck has said the same three times."""
    paths = [Path(["a"], [1], [4.0], True, 5)] * 3 + [Path(["a"], [1], [0.0], True, 6)]
    paths += [Path(["a"], [2], [1.0], True, 7)] * 4
    found = np.concatenate(of_turns(paths, 1.0))
    np.testing.assert_allclose(found, [0.5] * 4 + [-0.5] * 4)


def test_the_error_is_how_far_estimates_of_an_action_are_spread():
    """One step pays 0 or 1; the same experiment over and over."""
    rng = np.random.default_rng(7)
    worth, told = [], []
    for _ in range(400):
        paid = np.concatenate([rng.random(60) < 0.3, rng.random(20) < 0.8]).astype(float)
        paths = [Path(["a"], [int(k >= 60)], [each], True, replay=k) for k, each in enumerate(paid)]
        found = state_advantages.certainty_equivalence(paths, 1.0)
        worth.append((paid[:60].mean(), paid[60:].mean()))
        told.append((found[0].error[0], found[-1].error[0]))
    np.testing.assert_allclose(np.mean(told, axis=0), np.std(worth, axis=0), rtol=0.15)


def judged(better, error, state):
    return state_advantages.TurnAdvantages(
        np.array(better, float), np.array(error, float), np.array(state)
    )


def test_what_is_preferred_is_the_improved_policy_beside_the_old_one():
    rng = np.random.default_rng(8)
    worth, error = rng.normal(size=(4, 3)), rng.uniform(0.1, 3, size=(4, 3))
    paths = []
    for length in rng.integers(1, 30, size=40):
        state, action = rng.integers(4, size=length), rng.integers(3, size=length)
        paths.append((state, action))
    turns = [judged(worth[s, a], error[s, a], s) for s, a in paths]
    found = state_advantages.improved_policy(turns, 0.7)
    assert [len(each) for each in found] == [len(s) for s, _ in paths]
    did = np.zeros((4, 3))
    for s, a in paths:
        np.add.at(did, (s, a), 1)
    old = did / did.sum(1, keepdims=True)
    new = old * np.exp(np.clip(worth / (0.1 * 0.7 + 0.5 * error), -5, 5))
    new /= new.sum(1, keepdims=True)
    for (s, a), each in zip(paths, found, strict=True):
        np.testing.assert_allclose(each, (new / old)[s, a] - 1, rtol=1e-4)


def test_a_state_with_little_at_stake_counts_as_much_as_one_with_much():
    much = [judged([5.0], [1.0], [0]), judged([-5.0], [1.0], [0])]
    little = [judged([0.05], [0.01], [1]), judged([-0.05], [0.01], [1])]
    found = state_advantages.improved_policy([*much, *little], 0.0)
    np.testing.assert_allclose(found[2:], found[:2], rtol=1e-3)
    unsure = state_advantages.improved_policy(
        [judged([0.05], [5.0], [0]), judged([-0.05], [5.0], [0])], 0.0
    )
    np.testing.assert_allclose(unsure, [[0.02], [-0.02]], rtol=0.02)


def test_nothing_is_preferred_where_nothing_was_learned():
    assert state_advantages.improved_policy([judged([0.0, 0.0], [0.0, 0.0], [0, 1])], 0.0)[
        0
    ].tolist() == [0, 0]
