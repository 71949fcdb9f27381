"""Policies that were kept act as they did."""

import numpy as np
import pytest
import torch

from door.hypernet.agent import HyperAgent
from door.training import snapshots
from hyper_settings import hyper_settings
from ppo_settings import agent_settings
from rl.actor_critic import NetworkShape
from rl.agent import PPOAgent
from runcatalog import record

SHAPE = NetworkShape(5, 2, (7, 3))


def test_loaded_policies_equal_the_saved_ones(tmp_path):
    generator = torch.Generator().manual_seed(3)
    agent = HyperAgent(SHAPE, hyper_settings(log_std=-0.5, squash_mean=True), generator, "pull")
    agent.begin_task("lever", generator)
    draws = np.random.default_rng(0)
    for index, normaliser in enumerate(agent.normalisers):
        normaliser.update(draws.normal(index, 2, (30, 5)))
    snapshots.save(tmp_path, 20, list(zip(agent.tasks, agent.policies(), strict=True)))
    snapshots.save(tmp_path, 0, [("pull", agent.policy(0))])
    assert [update for update, _ in snapshots.paths(tmp_path)] == [0, 20]
    kept = snapshots.load(snapshots.paths(tmp_path)[1][1])
    assert [task for task, _ in kept] == ["pull", "lever"]
    observations = draws.normal(0, 3, (50, 5)).astype(np.float32)
    for index, (_, policy) in enumerate(kept):
        live = agent.policy(index)
        assert np.array_equal(policy(observations), live(observations))
        noise = draws.normal(size=(4, 2)).astype(np.float32)
        for mine, theirs in zip(policy.scale_noise(noise), live.scale_noise(noise), strict=True):
            assert np.array_equal(mine, theirs)


def test_training_does_not_change_a_snapshot(tmp_path):
    agent = PPOAgent(SHAPE, agent_settings(), torch.Generator().manual_seed(1))
    observations = np.ones((3, 5), np.float32)
    before = agent.policy()(observations)
    path = snapshots.save(tmp_path, 0, [("round", agent.policy())])
    agent.weights.add_(1.0)
    agent.normaliser.update(np.full((10, 5), 9.0))
    assert np.array_equal(snapshots.load(path)[0][1](observations), before)


@pytest.mark.parametrize("content", [b"", b"\x08" * 40, b"{}" * 30])
def test_a_damaged_snapshot_is_named(tmp_path, content):
    path = tmp_path / "000001.safetensors"
    path.write_bytes(content)
    with pytest.raises(record.UserError, match=r"000001\.safetensors is no snapshot"):
        snapshots.load(path)
