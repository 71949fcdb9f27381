"""Advantages of trajectories and tokens beside naive loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textgames import advantages

SCORES = st.lists(st.floats(-20, 20), min_size=4, max_size=12)


@given(SCORES)
def test_the_batch_is_one_group(scores):
    scores = np.array(scores)
    found = advantages.of_outcomes("brpo", scores, np.arange(len(scores)))
    mean = sum(scores) / len(scores)
    spread = (sum((each - mean) ** 2 for each in scores) / (len(scores) - 1)) ** 0.5
    np.testing.assert_allclose(
        found, [(each - mean) / (spread + 1e-6) for each in scores], atol=1e-5
    )


def test_a_group_is_one_game_and_one_that_was_played_once_keeps_its_score():
    scores, groups = np.array([1.0, 3.0, 7.0, 5.0, 5.0]), np.array([4, 4, 9, 2, 2])
    found = advantages.of_outcomes("grpo", scores, groups)
    np.testing.assert_allclose(found, [-(0.5**0.5), 0.5**0.5, 7.0, 0.0, 0.0], rtol=1e-5, atol=1e-12)
    np.testing.assert_array_equal(advantages.of_outcomes("arpo", scores, groups), scores)
    with pytest.raises(ValueError, match="estimator"):
        advantages.of_outcomes("gae", scores, groups)


def test_the_games_whose_outcomes_differ_most_are_kept():
    groups = np.repeat(np.arange(4), 3)
    scores = np.array([0, 0, 0, 0, 0, 9, 1, 2, 1, 5, 5, 5.1])
    assert advantages.most_varied(scores, groups, 0.25).nonzero()[0].tolist() == [3, 4, 5]
    assert set(groups[advantages.most_varied(scores, groups, 0.5)]) == {1, 2}
    assert advantages.most_varied(scores, groups, 1.0).all()
    assert advantages.most_varied(scores, groups, 0.01).sum() == 3


@given(
    st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1) | st.none(),
    st.sampled_from(advantages.CREDITS),
)  # fmt: skip
def test_tokens_have_the_advantage_of_the_definition(seed, gamma, decay, critics, credit):
    rng = np.random.default_rng(seed)
    turns = [np.sort(rng.integers(3, size=rng.integers(1, 9))) for _ in range(3)]
    rewards = [rng.normal(size=3).tolist() for _ in turns]
    values = [rng.normal(size=len(each)) for each in turns]
    found, returns = advantages.of_tokens(
        rewards, turns, values, credit=credit, gamma=gamma, gae_lambda=decay, critic_lambda=critics
    )  # fmt: skip
    for b, of in enumerate(turns):
        paid = [0.0] * len(of)
        if credit == "outcome":
            paid[-1] = sum(rewards[b])
        else:
            for turn in set(of.tolist()):
                paid[max(np.flatnonzero(of == turn))] = rewards[b][turn]
        for t in range(len(of)):
            for own, told, start in (
                (decay, found, 0.0),
                (decay if critics is None else critics, returns, values[b][t]),
            ):
                wanted = start
                for later in range(t, len(of)):
                    after = values[b][later + 1] if later + 1 < len(of) else 0.0
                    wanted += (gamma * own) ** (later - t) * (
                        paid[later] + gamma * after - values[b][later]
                    )
                assert told[b][t] == pytest.approx(wanted, abs=1e-4)
