"""The batched environment against gymnasium's CartPole-v1, bit for bit."""

import gymnasium
import numpy as np
import pytest

from cartpole.policy_gradient.env import MAX_STEPS, CartPoleBatch, random_starts


def test_random_transitions_are_bit_equal_to_gymnasium():
    rng = np.random.default_rng(0)
    count, compared, round_ = 100, 0, 0
    envs = [gymnasium.make("CartPole-v1").unwrapped for _ in range(count)]
    batch = CartPoleBatch(count)
    # Wider than the start states, so that positions, angles and speeds of whole episodes are covered.
    spread = np.array([2.6, 3.0, 0.23, 3.5])
    while compared < 40_000:  # of poles that have not fallen
        round_ += 1
        states = (
            random_starts(rng, count) if round_ % 2 else rng.uniform(-spread, spread, (count, 4))
        )
        batch.reset(states)
        for env, state in zip(envs, states, strict=True):
            env.reset()
            env.state = state
        for _ in range(20):
            alive = batch.alive.copy()
            actions = rng.integers(2, size=count)
            observations, terminated, truncated = batch.step(actions)
            assert not truncated.any()
            compared += alive.sum()
            for i in np.flatnonzero(alive):
                observation, _, ended, _, _ = envs[i].step(int(actions[i]))
                assert (observation == observations[i]).all()
                assert (envs[i].state == batch.states[i]).all()
                assert ended == terminated[i]


def test_whole_episodes_are_those_of_gymnasium():
    """With its time limit, and start states drawn from the same generator."""
    env = gymnasium.make("CartPole-v1")
    batch, lengths = CartPoleBatch(3), []
    # One policy balances the pole, one pushes by its angular velocity, one always pushes right.
    gains = np.array([[0.1, 0.5, 3, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    for seed in range(3):
        expected, _ = env.reset(seed=seed)
        batch.reset(np.repeat(random_starts(np.random.default_rng(seed), 1), 3, axis=0))
        observations = batch.observations
        assert (observations[0] == expected).all()
        single = [[] for _ in range(3)]
        while batch.alive.any():
            alive = batch.alive.copy()
            actions = (observations * gains).sum(1) >= 0
            observations, terminated, truncated = batch.step(actions)
            for i in np.flatnonzero(alive):
                single[i].append((actions[i], observations[i], terminated[i], truncated[i]))
        for i in range(3):
            env.reset(seed=seed)
            for action, observation, terminated, truncated in single[i]:
                expected, reward, ended, cut, _ = env.step(int(action))
                assert (expected == observation).all()
                assert (reward, ended, cut) == (1, terminated, truncated)
            assert ended or cut
        lengths += batch.steps.tolist()
    assert max(lengths) == MAX_STEPS
    assert min(lengths) < 20


def test_an_ended_episode_is_frozen_until_its_reset():
    batch = CartPoleBatch(2)
    assert not batch.alive.any()
    batch.reset(np.array([[0, 0, 0.2, 3.0], [0.0, 0, 0, 0]]))
    observations, terminated, _ = batch.step(np.array([1, 1]))
    assert terminated.tolist() == [True, False]
    _, again, _ = batch.step(np.array([0, 1]))
    assert not again.any()
    assert (batch.observations[0] == observations[0]).all()
    assert batch.steps.tolist() == [1, 2]
    batch.reset(np.zeros((1, 4)), rows=np.array([0]))
    assert batch.alive.all()
    assert batch.steps.tolist() == [0, 2]


def test_kept_poles_continue_unchanged():
    rng = np.random.default_rng(1)
    whole, part = CartPoleBatch(5), CartPoleBatch(5)
    starts = random_starts(rng, 5)
    whole.reset(starts)
    part.reset(starts)
    part.keep(np.array([1, 4]))
    for _ in range(8):
        actions = rng.integers(2, size=5)
        whole.step(actions)
        part.step(actions[[1, 4]])
        assert (whole.states[[1, 4]] == part.states).all()


@pytest.mark.parametrize("count", [1, 7, 60])
def test_start_states_are_within_their_range(count):
    states = random_starts(np.random.default_rng(2), count)
    assert states.shape == (count, 4)
    assert (np.abs(states) <= 0.05).all()
