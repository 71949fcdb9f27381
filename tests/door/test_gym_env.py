"""The gymnasium environment: its interface, its registration, and the same bits as DoorVecEnv."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import door
from door.env.door_env import DoorVecEnv
from door.env.reward import RewardConfig
from runcatalog.record import Seeds


@pytest.mark.parametrize("robot", ["floatinghook", "floatinggripper"])
@pytest.mark.parametrize("task", ["pull", "lever_push"])
def test_gymnasiums_checker_passes(task: str, robot: str):
    env = gymnasium.make("catalog/Door-v0", task=task, robot=robot)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Joint velocities have no bound, as in gymnasium's own MuJoCo environments.
        warnings.filterwarnings("ignore", message=".*A Box observation space (min|max)imum value")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_registration_survives_being_called_again():
    door.register_envs()
    assert gymnasium.spec("catalog/Door-v0").entry_point == "door.env.gym_env:DoorEnv"


def test_importing_the_package_is_light_and_registers_the_environment():
    code = """
import sys, door
print([m for m in ("mujoco", "torch", "mlflow") if m in sys.modules])
import gymnasium
print(gymnasium.make("catalog/Door-v0", task="lever").reset(seed=1)[0].shape)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines() == ["[]", "(15,)"]


def test_gymnasium_imports_the_package_by_the_name_of_the_environment():
    code = "import gymnasium; print(gymnasium.make('door:catalog/Door-v0').reset(seed=1)[0].shape)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "(15,)"


@pytest.mark.parametrize("kind", ["shaped", "original"])
@pytest.mark.parametrize("task", ["pull_left", "lever", "round"])
def test_step_for_step_equal_to_the_vectorised_environment(task: str, kind: str):
    single = gymnasium.make(
        "catalog/Door-v0", task=task, reward=kind, horizon=20, episodes_per_world=2
    )
    many = DoorVecEnv(
        task, num_envs=3, seeds=Seeds(9), threads=2, stagger=False, horizon=20,
        reward=RewardConfig.of(kind),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for episode in range(5):
        obs, _ = single.reset(seed=9 if episode == 0 else None)
        if episode in (2, 4):
            many.new_worlds()
        assert np.array_equal(obs, many.observation[0])
        for step in range(20):
            action = rng.uniform(-1, 1, (3, 6)).astype(np.float32)
            obs, reward, terminated, truncated, info = single.step(action[0])
            _, rewards, ends, infos = many.step(action)
            assert np.array_equal(obs, infos["final_obs"][0])
            assert (reward, truncated, terminated) == (rewards[0], ends[0], False)
            assert truncated == (step == 19)
            assert info == {key: infos[key][0].item() for key in info}
    single.close()


@pytest.mark.parametrize("robot", ["floatinghook", "floatinggripper"])
def test_rendered_positions_equal_observed_positions(robot: str):
    env = gymnasium.make("catalog/Door-v0", robot=robot, horizon=3, episodes_per_world=2).unwrapped
    rng = np.random.default_rng(0)
    for seed in (4, None, None):
        obs, _ = env.reset(seed=seed)
        joints = (len(obs) - 3) // 2
        assert np.array_equal(env.qpos[:joints].astype(np.float32), obs[:joints])
        for step in range(3):
            action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            obs, _, _, truncated, info = env.step(action)
            assert np.array_equal(env.qpos[:joints].astype(np.float32), obs[:joints])
            assert info["hinge"] in env.qpos[joints:]
            assert truncated == (step == 2)
    env.close()


def test_episodes_depend_on_the_seed():
    env = gymnasium.make("catalog/Door-v0", task="lever")
    first, second, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(env.reset()[0], other)


def test_a_reset_in_the_middle_starts_another_episode():
    env = gymnasium.make("catalog/Door-v0", episodes_per_world=0)
    first, _ = env.reset(seed=3)
    env.step(np.ones(6, np.float32))
    second, _ = env.reset()
    assert not np.array_equal(first, second)
    assert (second[6:12] == 0).all()


def test_an_unknown_task_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown task 'gate': choose from pull"):
        gymnasium.make("catalog/Door-v0", task="gate")
