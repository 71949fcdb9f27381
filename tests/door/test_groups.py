"""Environments in groups: the same bits as all together, with any number of threads."""

import numpy as np
import pytest
import torch

from door.env.door_env import DoorVecEnv
from door.env.groups import GROUPS, DoorGroups
from rl.actor_critic import NetworkShape, initial_weights, unflatten
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from rl.rollout import collect
from runcatalog.record import Seeds

STEPS = 20


def _policy(groups: DoorGroups) -> Policy:
    shape = NetworkShape(groups.obs_size, groups.action_size, (16,))
    generator = torch.Generator().manual_seed(0)
    flat = initial_weights(shape.actor, generator, output_gain=1.0, log_std=0.0)
    normaliser = ObservationNormaliser(shape.observation_size)
    return Policy(unflatten(flat, shape.actor), normaliser, squash=False)


def _groups(threads: int, num_envs: int = 5) -> DoorGroups:
    return DoorGroups(
        "lever", "floatinghook", num_envs, seeds=Seeds(3), threads=threads, horizon=12
    )


def _play(groups: DoorGroups, observations: np.ndarray, seed: int):
    return collect(
        groups.groups, _policy(groups), observations, STEPS, np.random.default_rng(seed),
        keep_final=True, episode_info=("episode_return", "success"), parallel=groups.parallel,
    )  # fmt: skip


@pytest.mark.parametrize("num_envs", [1, 5])
def test_groups_equal_a_single_environment(num_envs):
    groups = _groups(1, num_envs)
    assert len(groups.groups) == min(GROUPS, num_envs)
    whole = DoorVecEnv("lever", num_envs=num_envs, seeds=Seeds(3), horizon=12)
    observations = groups.new_worlds()
    np.testing.assert_array_equal(observations, whole.new_worlds())
    rollout = _play(groups, observations, 0)
    returns, successes = [], []
    for t in range(STEPS):
        observations, rewards, truncated, info = whole.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.raw_observations[t + 1], observations)
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.truncated[t], truncated)
        np.testing.assert_array_equal(
            rollout.final_observations[t, truncated], info["final_obs"][truncated]
        )
        returns += info["episode_return"][truncated].tolist()
        successes += info["success"][truncated].tolist()
    assert len(returns) >= num_envs
    assert rollout.episodes["episode_return"].tolist() == returns
    assert rollout.episodes["success"].tolist() == successes
    state = whole.state()
    assert groups.state().keys() == state.keys()
    for name, value in groups.state().items():
        np.testing.assert_array_equal(value, state[name])


def test_threads_change_no_bit_and_a_restored_state_continues():
    alone, parallel, resumed = _groups(1), _groups(2), _groups(4)
    assert parallel.parallel
    assert not alone.parallel
    first = _play(alone, alone.new_worlds(), 1)
    second = _play(parallel, parallel.new_worlds(), 1)
    np.testing.assert_array_equal(first.raw_observations, second.raw_observations)
    np.testing.assert_array_equal(first.actions, second.actions)
    resumed.set_state(parallel.state())
    now = second.raw_observations[-1]
    third, fourth = _play(parallel, now, 2), _play(resumed, now, 2)
    np.testing.assert_array_equal(third.raw_observations, fourth.raw_observations)
    for groups in (alone, parallel, resumed):
        groups.close()
        groups.close()
