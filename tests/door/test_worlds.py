"""Worlds: ranges, latch, and that the ways to build a model agree."""

import dataclasses

import mujoco
import numpy as np
import pytest

from door.env.mujoco_models import BOLT_RELEASE, DoorSpec, build_model
from door.env.robots import ROBOTS
from door.env.tasks import SERIES, TASKS, get_task
from door.env.worlds import STARTS, Settings, World, sample_world
from world_ranges import RANGES

LATCHED = [name for name, task in TASKS.items() if task.latched]


def draw(task: str, seed: int) -> World:
    return sample_world(TASKS[task], np.random.default_rng(seed))


def numbers(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """All numeric fields of a model."""
    fields = {}
    for name in dir(model):
        if not name.startswith("_") and isinstance(getattr(model, name), np.ndarray | int | float):
            fields[name] = np.asarray(getattr(model, name))
    assert len(fields) > 300
    return fields


def test_task_names_equal_the_sources_run_list():
    assert list(TASKS) == [
        "pull",
        "pull_left",
        "pull_left_fixed",
        "lever",
        "lever_left",
        "round",
        "round_left",
        "lever_push",
        "lever_push_left",
    ]
    assert set(SERIES) <= set(TASKS)
    with pytest.raises(ValueError, match="unknown task 'levr': choose from pull, "):
        get_task("levr")


@pytest.mark.parametrize("task", TASKS)
def test_worlds_lie_in_the_ranges_of_the_source(task: str):
    rng = np.random.default_rng(1)
    worlds = [sample_world(TASKS[task], rng) for _ in range(400)]

    def spread(name: str) -> np.ndarray:
        return np.array([getattr(world, name) for world in worlds])

    for name, (low, high) in RANGES.items():
        values = spread(name)
        assert low <= values.min() <= low + 0.05 * (high - low), name
        assert high - 0.05 * (high - low) <= values.max() <= high, name
    friction = spread("friction")
    assert (friction >= (0.5, 0.001, 0.001)).all()
    assert (friction <= (1.0, 0.005, 0.005)).all()
    y, z = spread("shift").T
    latched = TASKS[task].latched
    assert np.abs(y).max() <= 0.15
    assert np.abs(z).max() <= (0.0 if latched else 0.15)


def test_a_world_depends_on_its_seed_only():
    assert draw("lever", 5) == draw("lever", 5) != draw("lever", 6)


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("task", ["pull_left_fixed", "lever", "round_left", "lever_push"])
def test_a_spec_compiled_again_equals_a_fresh_one_in_every_field(task: str, robot: str):
    first, second = draw(task, 0), draw(task, 1)
    spec = DoorSpec(first, robot, Settings())
    spec.compile(first)
    again = numbers(spec.compile(second))
    fresh = numbers(build_model(second, robot, Settings()))
    other = numbers(build_model(first, robot, Settings()))
    assert all(np.array_equal(again[name], fresh[name]) for name in fresh)
    assert all(other[name].shape == fresh[name].shape for name in fresh)  # what rollout needs
    assert not all(np.array_equal(other[name], fresh[name]) for name in fresh)


def test_a_spec_refuses_a_world_of_another_task():
    spec = DoorSpec(draw("lever", 0), "floatinghook", Settings())
    with pytest.raises(ValueError, match="task pull, not lever"):
        spec.compile(draw("pull", 0))


def push(task: str, robot: str, seed: int, torque: float, turn: float) -> tuple[float, float]:
    """Largest door angle in 2 s under a torque on the hinge, handle kept at ``turn``; deepest contact."""
    world = draw(task, seed)
    model = build_model(world, robot, Settings())
    data = mujoco.MjData(model)
    hinge, handle = model.joint("hinge"), model.joint("handle")
    deepest = largest = 0.0
    for _ in range(500):
        # A stiff servo turns the handle; nothing else touches it.
        error = turn - data.qpos[handle.qposadr[0]]
        data.qfrc_applied[handle.dofadr[0]] = 40 * error - data.qvel[handle.dofadr[0]]
        ready = abs(error) < 0.1
        data.qfrc_applied[hinge.dofadr[0]] = torque * TASKS[task].opening_sign * ready
        mujoco.mj_step(model, data)
        largest = max(largest, abs(data.qpos[hinge.qposadr[0]]))
        deepest = max(deepest, -data.sensor("deepest").data[1])
    return largest, deepest


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("task", LATCHED)
def test_the_latch_holds_until_the_handle_is_turned(task: str, robot: str):
    for seed in range(3):
        angle, deepest = push(task, robot, seed, torque=60.0, turn=0.0)
        assert angle < 0.01
        assert deepest < 0.001
    for turn in (0.5, -0.5):  # either way
        angle, _ = push(task, robot, 0, torque=60.0, turn=turn)
        assert angle > 0.5


def test_the_bolt_leaves_the_strike_at_the_measured_angle():
    model = build_model(draw("lever", 0), "floatinghook", Settings())
    _, _, a, _, b = model.eq_data[0, :5]
    assert a * 0.25**2 + b * 0.25**4 == pytest.approx(BOLT_RELEASE, rel=0.05)
    travel = [a * angle**2 + b * angle**4 for angle in np.linspace(0, 1.3, 50)]
    assert np.all(np.diff(travel) > 0)


@pytest.mark.parametrize("task", ["pull", "lever", "round_left", "lever_push_left"])
def test_decoration_changes_no_bit_of_the_physics(task: str):
    world, rng = draw(task, 3), np.random.default_rng(0)
    settings = Settings()
    plain = build_model(world, "floatinghook", settings)
    visual = build_model(world, "floatinghook", dataclasses.replace(settings, visual=True))
    assert visual.ngeom > plain.ngeom
    states = [mujoco.MjData(plain), mujoco.MjData(visual)]
    for _ in range(40):
        command = rng.uniform(-1, 1, plain.nu)
        command[0] = -1.0  # into the door
        for model, data in zip((plain, visual), states, strict=True):
            data.ctrl[:] = command
            mujoco.mj_step(model, data, 20)
    assert np.array_equal(states[0].qpos, states[1].qpos)


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("task", TASKS)
def test_no_robot_reaches_around_the_wall(task: str, start: str, robot: str):
    base, retreat = STARTS[start]
    model = build_model(draw(task, 0), robot, Settings(base=base, retreat=retreat))
    wall, slide = model.geom("wall_left"), model.joint("slide_y").range
    far = wall.pos[1] - wall.size[1]
    assert base[1] + slide[0] - ROBOTS[robot].length > far + 1.0
    assert base[2] + model.joint("slide_z").range[1] + ROBOTS[robot].length < 3.0  # nor over it


def test_starts_have_the_documented_distance_from_the_handle():
    rng = np.random.default_rng(0)
    for start, expected in (("near", 0.48), ("original", 1.0)):
        base, retreat = STARTS[start]
        distances = []
        for seed in range(40):
            settings = Settings(base=base, retreat=retreat)
            model = build_model(draw("lever", seed), "floatinghook", settings)
            data = mujoco.MjData(model)
            data.qpos[:6] = rng.uniform(-0.3, 0.3, 6)
            mujoco.mj_forward(model, data)
            distances.append(np.linalg.norm(data.sensordata[:3] - data.sensordata[3:6]))
            assert data.ncon == 0
        assert np.mean(distances) == pytest.approx(expected, abs=0.06)
