"""The physics stays sane under any play: energy, depth of contacts, ranges of joints, numbers.

That a latch holds 60 Nm until the handle is turned is in `test_worlds`; `benchmarks/physics.py` plays a
million decisions.
"""

import mujoco
import numpy as np
import pytest

from door.env.door_env import DoorVecEnv
from door.env.mujoco_models import build_model
from door.env.robots import ROBOTS
from door.env.stress import KINDS, play, player
from door.env.tasks import TASKS
from door.env.worlds import Settings, sample_world
from runcatalog.record import Seeds

PENETRATION = 0.003  # m
# The hook on all doors, the gripper on a door of every kind; `benchmarks/physics.py` has all pairs.
GRIPPED = ("pull", "lever_left", "round", "lever_push_left")
CASES = [
    *((task, "floatinghook") for task in TASKS),
    *((task, "floatinggripper") for task in GRIPPED),
]
# J; a shove leaves up to half a joule. What a compressed contact gives back is not counted as energy
# while it is stored: at most about 5 mJ.
ENERGY = 0.01


def energy(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Kinetic energy and that of the joints' springs, J; there is no gravity."""
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    springs = model.jnt_stiffness @ (data.qpos - model.qpos_spring) ** 2  # one number a joint
    return float(data.qvel @ inertia @ data.qvel + springs) / 2


def coast(task: str, robot: str, seed: int) -> tuple[np.ndarray, bool]:
    """Energies over 1 s without motors, after 1 s of shoving; and whether it began in a contact."""
    rng = np.random.default_rng(seed)
    model = build_model(sample_world(TASKS[task], rng), robot, Settings())
    data = mujoco.MjData(model)
    for step in range(240):
        if step % 50 == 0:
            data.ctrl[:] = rng.choice([-1.0, 1.0], model.nu)
            aim = rng.uniform(-0.06, 0.06, 3)
        reach = data.sensor("finger").data - data.sensor("knob").data
        data.ctrl[:3] = np.clip(-40 * (reach + aim), -1, 1)
        mujoco.mj_step(model, data)
    touching, energies = data.ncon > 0, []
    data.ctrl[:] = 0
    for _ in range(250):
        mujoco.mj_forward(model, data)
        energies.append(energy(model, data))
        mujoco.mj_step(model, data)
    return np.array(energies), touching


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("task", TASKS)
def test_without_motors_the_energy_does_not_increase(task: str, robot: str):
    runs = [coast(task, robot, seed) for seed in range(4)]
    for energies, _ in runs:
        assert (energies - np.minimum.accumulate(energies)).max() < ENERGY
        assert energies[-1] < energies[0]
    assert max(energies[0] for energies, _ in runs) > 10 * ENERGY
    assert any(touching for _, touching in runs)


@pytest.mark.parametrize(("task", "robot"), CASES)
def test_stress_keeps_contacts_shallow_joints_in_range_and_numbers_finite(task: str, robot: str):
    rng = np.random.default_rng(0)
    for kind in KINDS:
        env = DoorVecEnv(task, robot, 5, seeds=Seeds(3), stagger=False)
        outcome = play(env, kind, 60 if kind != "scripted" else 100, rng)
        env.close()
        assert outcome.finite, kind
        assert outcome.deepest <= PENETRATION, kind
        assert outcome.overrun <= 0.02, kind
        if kind == "scripted":  # what it opens is part of the play
            assert outcome.opened >= 0.8


def test_a_slam_hits_the_handle_at_full_speed():
    """The tool reaches the handle near full speed, so that depths are those of hard impacts."""
    env = DoorVecEnv("pull", num_envs=20, seeds=Seeds(1), stagger=False)
    act, obs, fastest, touched = (
        player("slam", env, np.random.default_rng(0)),
        env.observation,
        0,
        0,
    )
    for _ in range(60):
        obs, _, _, info = env.step(act(obs))
        fastest = max(fastest, np.linalg.norm(obs[:, 6:9], axis=1).max())
        touched |= info["contact"]
    env.close()
    assert fastest > 0.7  # m/s
    assert touched.mean() > 0.5


def test_an_unknown_stress_test_is_an_error_that_lists_the_known_ones():
    env = DoorVecEnv("pull", num_envs=1, seeds=Seeds(1))
    with pytest.raises(ValueError, match="choose from random, held, slam, scripted"):
        player("wild", env, np.random.default_rng(0))
