"""Training on several tasks at once: the environments, the policies of single tasks, the results."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from door import train_multitask
from door.env.door_env import DoorVecEnv
from door.training import evaluation, snapshots, trainer
from door.training.multitask import MultitaskAgent, TaskGroups, TaskSeeds
from rl.actor_critic import NetworkShape
from rl.agent import AgentSettings
from rl.rollout import collect
from runcatalog.record import Seeds

TASKS = ("pull", "lever_left", "round")
STEPS = 20


def _groups(threads: int) -> TaskGroups:
    return TaskGroups(
        " ".join(TASKS), "floatinghook", 6, seeds=Seeds(3), threads=threads, horizon=12
    )


def _agent(groups: TaskGroups, tasks: Sequence[str] = TASKS) -> MultitaskAgent:
    shape = NetworkShape(groups.obs_size, groups.action_size, (16, 16))
    settings = AgentSettings(
        lr=1e-3, max_grad_norm=0.5, adam_eps=1e-5, squash_mean=False, mean_gain=1.0, log_std=0.0
    )
    return MultitaskAgent(shape, settings, torch.Generator().manual_seed(0), tasks=tasks)


def _play(groups: TaskGroups, observations: np.ndarray):
    return collect(
        groups.groups, _agent(groups).policy(), observations, STEPS, np.random.default_rng(0),
        keep_final=True, parallel=groups.parallel,
    )  # fmt: skip


def test_a_group_is_an_environment_of_its_task_with_the_index_behind():
    groups = _groups(1)
    observations = groups.new_worlds()
    assert groups.obs_size == observations.shape[1] == 15 + len(TASKS)
    rollout = _play(groups, observations)
    for index, task in enumerate(TASKS):
        alone = DoorVecEnv(task, num_envs=2, seeds=TaskSeeds(Seeds(3), task), horizon=12)
        columns = slice(2 * index, 2 * index + 2)
        np.testing.assert_array_equal(observations[columns, :15], alone.new_worlds())
        for t in range(STEPS):
            expected, rewards, truncated, info = alone.step(rollout.actions[t, columns])
            np.testing.assert_array_equal(rollout.raw_observations[t + 1, columns, :15], expected)
            np.testing.assert_array_equal(rollout.rewards[t, columns], rewards)
            np.testing.assert_array_equal(
                rollout.final_observations[t, columns, :15][truncated], info["final_obs"][truncated]
            )
        one_hot = np.eye(len(TASKS), dtype=np.float32)[index]
        assert (rollout.raw_observations[:, columns, 15:] == one_hot).all()
        alone.close()
    groups.close()


def test_the_tasks_have_doors_of_their_own():
    groups = _groups(1)
    groups.new_worlds()
    heights = {tuple(world.height for world in group.env.worlds) for group in groups.groups}
    assert len(heights) == len(TASKS)
    groups.close()


def test_threads_change_no_bit_and_a_restored_state_continues():
    alone, parallel, resumed = _groups(1), _groups(2), _groups(4)
    assert parallel.parallel
    assert not alone.parallel
    expected, actual = (_play(groups, groups.new_worlds()) for groups in (alone, parallel))
    np.testing.assert_array_equal(actual.raw_observations, expected.raw_observations)
    resumed.set_state(parallel.state())
    last = expected.raw_observations[-1]
    expected, actual = _play(alone, last), _play(resumed, last)
    np.testing.assert_array_equal(actual.raw_observations, expected.raw_observations)
    for groups in (alone, parallel, resumed):
        groups.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_task_s_policy_is_the_joint_policy_with_its_index(enabled):
    groups, rng = _groups(1), np.random.default_rng(0)
    agent = _agent(groups)
    agent.normaliser.enabled = enabled
    agent.normaliser.update(rng.normal(1, 3, (50, groups.obs_size)))
    observations = rng.normal(1, 3, (7, 15)).astype(np.float32)
    actions = []
    for index, policy in enumerate(agent.policies()):
        one_hot = np.tile(np.eye(len(TASKS), dtype=np.float32)[index], (7, 1))
        joint = agent.policy()(np.concatenate((observations, one_hot), 1))
        actions.append(policy(observations))
        np.testing.assert_allclose(actions[-1], joint, rtol=1e-4, atol=1e-5)
    assert not np.allclose(actions[0], actions[1])
    groups.close()


def test_an_agent_of_the_same_tasks_in_another_order_is_refused():
    """Its index 0 is another task."""
    groups = _groups(1)
    agent = _agent(groups)
    saved = agent.tensors(), agent.state()
    _agent(groups).load(*saved)
    with pytest.raises(ValueError, match="task is 'pull lever_left round' there"):
        _agent(groups, TASKS[::-1]).load(*saved)
    del saved[1]["tasks"]  # a checkpoint from before this check
    _agent(groups).load(*saved)
    groups.close()


def test_a_run_reports_each_task_and_their_mean(tmp_path, monkeypatch):
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setattr(trainer, "WORLDS", 10)
    opened = {"pull": 0.9, "lever": 0.3}
    evaluate = evaluation.HeldOutWorlds.evaluate

    def rate(worlds, policy, task):
        assert evaluate(worlds, policy, task).successes.shape == (10,)  # the policy fits the task
        return opened[task]

    monkeypatch.setattr(evaluation.HeldOutWorlds, "opening_rate", rate)
    config = train_multitask.Config(
        task="pull lever", num_envs=8, num_steps=16, minibatch_size=64, epochs=2, env_steps=256,
        eval_interval=1, video=False, network_size="16",
    )  # fmt: skip
    written = train_multitask.main(config)
    result = written["result"]
    assert result["objective"]["count"] == 20
    assert result["metrics"]["opening_rate/0_pull"] == 0.9
    assert result["metrics"]["opening_rate/1_lever"] == 0.3
    lines = (tmp_path / "run/journal/metrics.jsonl").read_text().splitlines()
    validated = [
        entry["m"]["validation_opening_rate"]
        for entry in map(json.loads, lines)
        if "validation_opening_rate" in entry["m"]
    ]
    assert validated == [pytest.approx(0.6)] * 2
    newest = max((tmp_path / "run/policies").iterdir())
    assert [task for task, _ in snapshots.load(newest)] == ["pull", "lever"]
    figure = (tmp_path / "run/artifacts/learning_curve.svg").read_text()
    assert "20 test worlds: " in figure
