"""DoorVecEnv: the same bits however it is run, honest success, and an independent plain loop."""

import io
import math

import mujoco
import numpy as np
import pytest
import torch

from door.env.door_env import HORIZON, MEMORY, OPEN, DoorVecEnv
from door.env.mujoco_models import BOLT_RELEASE
from door.env.reward import RewardConfig
from door.env.scripted import ScriptedHook
from door.env.tasks import TASKS
from runcatalog.record import Seeds


def commands(env: DoorVecEnv, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((steps, env.num_envs, env.action_size))


def play(env: DoorVecEnv, actions: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Everything that the steps return, as one dictionary a step."""
    steps = []
    for action in actions:
        obs, reward, truncated, info = env.step(action)
        steps.append({"obs": obs, "reward": reward, "truncated": truncated, **info})
    return steps


def same(first: list[dict[str, np.ndarray]], second: list[dict[str, np.ndarray]]) -> bool:
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("task", "robot"), [("lever", "floatinghook"), ("pull", "floatinggripper")]
)
def test_threads_and_envs_per_call_change_no_bit(task: str, robot: str):
    runs = []
    for threads, envs_per_call in ((0, 0), (1, 3), (2, 0), (3, 4)):
        env = DoorVecEnv(
            task, robot, 7, seeds=Seeds(3), threads=threads, envs_per_call=envs_per_call, horizon=20
        )
        actions = commands(env, 30)
        run = play(env, actions)
        env.new_worlds()
        runs.append(run + play(env, actions))
        env.close()
    assert all(same(runs[0], run) for run in runs[1:])
    assert not np.array_equal(runs[0][0]["obs"], runs[0][30]["obs"])


@pytest.mark.parametrize("envs_per_call", [0, 2])
def test_resting_environments_stay_until_their_reset(envs_per_call: int):
    whole, part = (
        DoorVecEnv(
            "lever",
            num_envs=5,
            seeds=Seeds(1),
            envs_per_call=envs_per_call,
            horizon=9,
            stagger=False,
        )
        for _ in range(2)
    )
    actions = commands(whole, 14)
    before = [play(env, actions[:3])[-1] for env in (whole, part)][1]
    resting = np.array([False, True, False, False, True])
    part.rest(resting)
    for awake, rested in zip(play(whole, actions[3:8]), play(part, actions[3:8]), strict=True):
        assert all(np.array_equal(awake[key][~resting], rested[key][~resting]) for key in awake)
        assert np.array_equal(rested["obs"][resting], before["obs"][resting])
        assert not rested["reward"][resting].any()
    play(whole, actions[8:9]), play(part, actions[8:9])  # the horizon: a new episode for all
    assert same(play(whole, actions[9:]), play(part, actions[9:]))
    for env in (whole, part):
        env.close()


@pytest.mark.parametrize("task", ["pull_left", "round"])
def test_resume_is_bit_equal(task: str):
    def make() -> DoorVecEnv:
        return DoorVecEnv(task, num_envs=5, seeds=Seeds(1), threads=2, horizon=16)

    env = make()
    actions = commands(env, 60)
    play(env, actions[:10])
    env.new_worlds()
    play(env, actions[10:25])
    buffer = io.BytesIO()
    tensors = {k: torch.as_tensor(v) if k != "generation" else v for k, v in env.state().items()}
    torch.save(tensors, buffer)
    rest = play(env, actions[25:40])
    env.new_worlds()
    rest += play(env, actions[40:])

    buffer.seek(0)
    other = make()
    play(other, actions[:7])
    other.set_state(torch.load(buffer, weights_only=True))
    assert np.array_equal(other.state()["obs"], tensors["obs"].numpy())
    again = play(other, actions[25:40])
    other.new_worlds()
    again += play(other, actions[40:])
    assert same(rest, again)


def test_a_state_of_another_size_is_refused():
    small = DoorVecEnv("pull", num_envs=2, seeds=Seeds(0))
    with pytest.raises(ValueError, match=r"has shape \(2, 15\), not \(3, 15\)"):
        DoorVecEnv("pull", num_envs=3, seeds=Seeds(0)).set_state(small.state())


def test_episodes_end_at_the_horizon_and_are_reset():
    env = DoorVecEnv("lever", num_envs=4, seeds=Seeds(0), stagger=False, horizon=9)
    start = env.observation.copy()
    steps = play(env, commands(env, 20))
    assert [bool(step["truncated"].all()) for step in steps] == [k in (8, 17) for k in range(20)]
    assert not any(step["truncated"].any() for k, step in enumerate(steps) if k not in (8, 17))
    last = steps[8]
    assert not np.array_equal(last["final_obs"], last["obs"])
    assert (last["obs"][:, 6:12] == 0).all()  # at rest
    assert (np.abs(last["obs"][:, :5]) <= 0.3).all()
    assert not np.array_equal(last["obs"], start)  # another start
    total = sum(step["reward"] for step in steps[:9])
    np.testing.assert_allclose(last["episode_return"], total, rtol=1e-12)
    assert (last["episode_length"] == 9).all()
    np.testing.assert_array_equal(steps[9]["episode_return"], steps[9]["reward"])
    assert np.array_equal(steps[3]["final_obs"], steps[3]["obs"])


def test_staggered_ends_are_spread_over_the_horizon():
    env = DoorVecEnv("pull", num_envs=8, seeds=Seeds(0), horizon=16)
    ends = [int(step["truncated"].sum()) for step in play(env, np.zeros((16, 8, 6)))]
    assert ends == [0, 1] * 8


def test_held_out_worlds_differ_from_training_worlds():
    training = DoorVecEnv("lever", num_envs=16, seeds=Seeds(7))
    held_out = DoorVecEnv("lever", num_envs=16, seeds=Seeds(7), held_out=True)
    first = {world.height for world in training.worlds}
    training.new_worlds()
    second = {world.height for world in training.worlds}
    assert len(first | second | {world.height for world in held_out.worlds}) == 48


def test_the_first_world_does_not_depend_on_the_number_of_environments():
    one, many = (DoorVecEnv("round", num_envs=n, seeds=Seeds(2), stagger=False) for n in (1, 5))
    actions = commands(many, 4)
    assert np.array_equal(
        play(one, actions[:, :1])[-1]["obs"][0], play(many, actions)[-1]["obs"][0]
    )


@pytest.mark.parametrize("bad", [{"task": "door"}, {"robot": "arm"}, {"start": "far"}])
def test_unknown_names_are_errors_that_list_the_known_ones(bad: dict[str, str]):
    with pytest.raises(ValueError, match=r"unknown .* choose from "):
        DoorVecEnv(**{"task": "pull", **bad}, seeds=Seeds(0))


def test_an_action_of_the_wrong_shape_is_refused():
    env = DoorVecEnv("pull", num_envs=3, seeds=Seeds(0))
    with pytest.raises(ValueError, match=r"\(3, 5\), not \(3, 6\)"):
        env.step(np.zeros((3, 5)))


# Honest success


def force_hinge(env: DoorVecEnv, torque: float) -> None:
    """A spring drives every door open with about this torque."""
    for model in env.models:
        hinge = model.joint("hinge")
        model.jnt_stiffness[hinge.id] = torque
        model.qpos_spring[hinge.qposadr[0]] = env.task.opening_sign


@pytest.mark.parametrize("robot", ["floatinghook", "floatinggripper"])
@pytest.mark.parametrize("task", TASKS)
def test_a_forced_door_is_not_a_success(task: str, robot: str):
    env = DoorVecEnv(task, robot, 4, seeds=Seeds(0), stagger=False)
    force_hinge(env, 60.0)
    away = np.zeros((4, env.action_size))
    away[:, 0] = 1.0
    last = play(env, np.repeat(away[None], 40, 0))[-1]
    assert last["opened"].all() == (not TASKS[task].latched)
    assert not last["success"].any()
    if TASKS[task].latched:  # brute force breaks the latch, and still is no success
        force_hinge(env, 1e5)
        last = play(env, np.repeat(away[None], 40, 0))[-1]
        assert last["opened"].all()
        assert not last["success"].any()


@pytest.mark.parametrize("task", ["pull", "pull_left", "pull_left_fixed"])
def test_pushing_from_behind_is_not_a_success(task: str):
    env = DoorVecEnv(task, num_envs=8, seeds=Seeds(0), stagger=False)
    for model in env.models:  # as if it had walked round the wall
        model.body_pos[model.body("robot").id, 0] = -0.62
    push = np.zeros((60, 8, 6))
    push[..., 0] = 1.0
    last = play(env, push)[-1]
    assert last["opened"].sum() >= 4  # a start may be beside the door
    assert not last["success"].any()


def test_pushing_the_panel_of_a_latched_door_does_not_open_it():
    env = DoorVecEnv("lever_push", num_envs=4, seeds=Seeds(0), stagger=False)
    push = np.zeros((100, 4, 6))
    push[..., 0], push[..., 2] = -1.0, 1.0
    assert not any(step["opened"].any() for step in play(env, push))


# An independent plain loop


def plain_reward(config: RewardConfig, task: str, row: dict[str, np.ndarray | float]) -> float:
    d = float(np.linalg.norm(row["reach"]))
    turn = math.hypot(row["yaw"] - row["hinge"], row["pitch"])
    effort = float(np.mean(np.square(row["action"])))
    door, handle = abs(row["hinge"]), abs(row["handle"]) if TASKS[task].latched else 0.0
    if config.handle == 50:
        credit = 50 * handle
    else:
        handle_turn = 0.45 if door > 0.02 else min(handle, 0.45)
        credit = 10 * handle_turn if TASKS[task].latched else 0.0
    if config.kind == "original":
        return -d - math.log(d * d + 0.005) - 5 - turn + 30 * door + credit - effort
    return -d - math.log(d * d + 5e-4) - 5 - 0.3 * turn + 30 * door + credit - effort


class Plain:
    """One environment by ``mj_step`` alone: nothing of DoorVecEnv but its model and its start."""

    def __init__(self, env: DoorVecEnv, index: int, config: RewardConfig) -> None:
        self.task, self.config = env.task, config
        self.dof, self.cost = env.robot.dof, env.robot.cost_actions
        self.model = env.models[index]
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = env.qpos[index]
        self.by_handle, self.success, self.untouched = False, False, MEMORY
        self.at = {
            name: int(self.model.joint(name).qposadr[0])
            for name in ("hinge", "handle", "bolt")
            if name == "hinge" or self.task.latched
        }

    def row(self, action: np.ndarray) -> dict[str, np.ndarray | float]:
        data = self.data
        return {
            "reach": data.sensor("finger").data - data.sensor("knob").data,
            "yaw": data.qpos[3],
            "pitch": data.qpos[4],
            "hinge": data.qpos[self.at["hinge"]],
            "handle": data.qpos[self.at["handle"]] if self.task.latched else 0.0,
            "action": action[: self.cost],
        }

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        data, before, touched, out, reached = self.data, False, False, False, False
        data.ctrl[:] = action
        data.qacc_warmstart[:] = 0
        for substep in range(20):
            state = self.row(action)  # hinge and turns after the steps so far
            mujoco.mj_step(self.model, data)
            if substep == 15:  # 0.02 s before the end; sensors are those of the step's beginning
                late = {**state, "reach": self.row(action)["reach"]}
            angle = abs(data.qpos[self.at["hinge"]])
            closed = angle < (0.02 if self.task.latched else 0.1)
            before |= closed
            touched |= bool(data.sensor("touch").data[0] > 0)
            if self.task.latched:
                out |= bool(closed and data.qpos[self.at["bolt"]] >= BOLT_RELEASE)
            reached |= bool(angle >= OPEN)
        self.untouched = 0 if touched else self.untouched + 1
        way = self.untouched <= MEMORY
        if self.task.latched:
            way = out and (way or self.by_handle)
        if before:
            self.by_handle = way
        self.success |= reached and self.by_handle
        row = self.row(action)
        chosen = late if self.config.kind == "original" else row
        obs = np.concatenate([data.qpos[: self.dof], data.qvel[: self.dof], row["reach"]])
        return (
            obs.astype(np.float32),
            plain_reward(self.config, self.task.name, chosen),
            self.success,
        )


@pytest.mark.parametrize(
    ("kind", "handle"),
    [("shaped", "own"), ("original", "own"), ("shaped", "unlimited"), ("original", "capped")],
)
@pytest.mark.parametrize("task", ["pull_left", "lever", "round_left", "lever_push"])
def test_a_plain_mj_step_loop_gives_the_same(task: str, kind: str, handle: str):
    config = RewardConfig.of(kind, handle)
    of_source = handle == "unlimited" or (handle == "own" and kind == "original")
    assert config.handle == (50 if of_source else 10)
    env = DoorVecEnv(task, num_envs=3, seeds=Seeds(4), stagger=False, threads=2, reward=config)
    plain = [Plain(env, index, config) for index in range(env.num_envs)]
    policy, obs = ScriptedHook(task), env.observation
    opened = False
    for _ in range(110):
        action = policy(obs)
        obs, reward, _, info = env.step(action)
        for index, single in enumerate(plain):
            expected, gain, success = single.step(action[index])
            assert np.array_equal(obs[index], expected)  # bit for bit
            assert reward[index] == pytest.approx(gain, rel=1e-9, abs=1e-9)
            assert info["success"][index] == success
        opened |= bool(info["success"].any())
    assert opened


def test_the_grippers_last_two_commands_have_no_control_cost():
    def rewards(*commanded: int) -> np.ndarray:
        env = DoorVecEnv("pull", "floatinggripper", 2, seeds=Seeds(0), stagger=False)
        assert (env.obs_size, env.action_size) == (17, 7)
        action = np.zeros((2, 7))
        action[:, commanded] = 1.0
        return env.step(action)[1]

    # In one decision roll and fingers move the finger's site by next to nothing.
    np.testing.assert_allclose(rewards(5, 6), rewards(), atol=1e-3)
    assert (rewards(4) < rewards() - 0.1).all()
    assert HORIZON == 128
