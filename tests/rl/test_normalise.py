"""Running statistics against those of all data at once."""

import numpy as np
import pytest

from rl.normalise import ObservationNormaliser, ReturnScaler, RunningMoments


def test_moments_equal_those_of_all_batches():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, size=(size, 4)) for size in (1, 7, 100, 2)]
    moments = RunningMoments((4,), count=0.0)
    for batch in batches:
        moments.update(batch)
    together = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, together.mean(0))
    np.testing.assert_allclose(moments.variance, together.var(0))
    assert moments.count == len(together)


def test_observations_become_standard_and_outliers_are_clipped():
    rng = np.random.default_rng(1)
    data = rng.normal([5, -2], [0.1, 30], size=(10, 50, 2))
    normaliser = ObservationNormaliser(2, clip=4.0)
    normaliser.update(data)
    scaled = normaliser(data)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean((0, 1)), 0, atol=1e-3)
    np.testing.assert_allclose(scaled.std((0, 1)), 1, atol=2e-3)
    assert normaliser(np.array([[1e6, -1e6]])).tolist() == [[4.0, -4.0]]


def test_a_disabled_normaliser_changes_nothing():
    normaliser = ObservationNormaliser(2, enabled=False)
    data = np.array([[100.0, -3.0]], np.float32)
    normaliser.update(data)
    np.testing.assert_array_equal(normaliser(data), data)


def test_state_restores_the_same_bits():
    rng = np.random.default_rng(2)
    first, second = ObservationNormaliser(3), ObservationNormaliser(3)
    first.update(rng.normal(size=(20, 3)))
    second.set_state(first.state())
    more = rng.normal(size=(20, 3))
    for normaliser in (first, second):
        normaliser.update(more)
    np.testing.assert_array_equal(first(more), second(more))


def test_rewards_are_divided_by_the_standard_deviation_of_the_return():
    rng = np.random.default_rng(3)
    rewards = rng.normal(10, 5, size=(400, 8))
    ends = rng.random(rewards.shape) < 0.02
    scaler = ReturnScaler(8, 0.9, clip=1e9)
    scaled = scaler(rewards, ends)
    returns, history = np.zeros(8), []
    for t in range(400):
        returns = 0.9 * returns + rewards[t]
        history.append(returns)
        if t in (0, 50, 399):
            # The imagined sample that the statistics start with weighs 1e-4.
            np.testing.assert_allclose(scaled[t], rewards[t] / np.std(history), rtol=1e-3)
        returns = np.where(ends[t], 0.0, returns)


@pytest.mark.parametrize("statistics", [True, False])
def test_restart_resets_episodes_and_optionally_the_statistics(statistics):
    rng = np.random.default_rng(4)
    rewards, ends = rng.normal(size=(30, 4)), np.zeros((30, 4), bool)
    scaler, fresh = ReturnScaler(4, 0.9), ReturnScaler(4, 0.9)
    scaler(100 * rewards, ends)
    scaler.restart(statistics=statistics)
    again, expected = scaler(rewards, ends), fresh(rewards, ends)
    assert (scaler.returns == fresh.returns).all()
    assert (again == expected).all() == statistics


def test_rewards_off_and_state():
    rewards, ends = np.array([[3.0, 400.0]]), np.zeros((1, 2), bool)
    assert ReturnScaler(2, 0.9, enabled=False)(rewards, ends).tolist() == [[3.0, 400.0]]
    first, second = ReturnScaler(2, 0.9), ReturnScaler(2, 0.9)
    first(rewards, ends)
    second.set_state(first.state())
    np.testing.assert_array_equal(first(rewards, ends), second(rewards, ends))
