"""Rollouts, PPO and whole runs of `skill:train`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo_settings import ppo_settings
from runcatalog import record
from skills import agents
from skills.acting import NetworkAgent
from skills.engine import Engine
from skills.learning import Learner, thread_pool
from skills.levels import STAGES
from skills.network import FROZEN, Network, Sequences, Shape, initial, split
from skills.options import Config
from skills.playing import FIRST_TRAINING_SEED, Player, play
from skills.schedule import COURSES, CURRICULA, Course, chain
from skills.state import Levels
from skills.training import step_size

TINY = Shape(channels=4, hidden=32, memory=32)
SCRIPT = Path(__file__).parents[2] / "src/skills/train.py"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the script has it: of products this small more only get into each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _network(shape: Shape = TINY, scale: float = 1.0) -> Network:
    flat = initial(shape, torch.Generator().manual_seed(1))
    split(flat, shape)["head"][:] *= scale
    return Network(shape, flat)


def _learner(stage: str | Levels, frozen: str = "nothing", **changes) -> Learner:
    settings = ppo_settings(epochs=2, minibatch_size=16, entropy_coef=0.01, time_limit="bootstrap")
    about = {"envs": 64, "workers": 2, "rollout": 16, "settings": settings, "max_grad_norm": 0.5}
    return Learner(TINY, stage, frozen=frozen, seeds=record.Seeds(1), **about | changes)


def test_rollouts_are_what_the_environments_give_for_the_actions() -> None:
    count, steps = 12, 100
    seeds = np.arange(count) + FIRST_TRAINING_SEED
    player = Player("pkp0", count, steps, _network(scale=50), seeds)
    other = Engine("pkp0", count)
    now, begins = other.reset(seeds), np.ones(count, bool)
    rng = np.random.default_rng(2)
    for _ in range(3):
        player.rollout(rng.random((steps, count)))
        for t in range(steps):
            np.testing.assert_array_equal(player.steps.image[t], now.image)
            np.testing.assert_array_equal(player.begins[t], begins)
            now = other.step(player.actions[t])
            for name in ("reward", "terminated", "truncated"):
                np.testing.assert_array_equal(
                    getattr(player.steps, name)[t + 1], getattr(now, name)
                )
            begins = now.terminated | now.truncated
    assert player.steps.truncated[1:].any()
    assert player.steps.terminated[1:].any()


def test_values_of_a_rollout_are_those_of_the_whole_sequence() -> None:
    """Also of the last views of episodes that time has ended: with the memory that leads to them."""
    count, steps = 16, 130
    network = _network(scale=50)
    player = Player("nlm0", count, steps, network, np.arange(count) + FIRST_TRAINING_SEED)
    player.rollout(np.random.default_rng(3).random((steps, count)))
    films = network.films(player.missions)
    images, directions, rows, begins = (
        each.copy() for each in (player.images, player.steps.direction, player.rows, player.begins)
    )
    whole = Network(TINY, network.flat)
    every = np.arange(count)
    seen = Sequences(images, directions, rows, begins, player.first_memory, every)
    np.testing.assert_allclose(
        whole.forward(seen, films)[..., -1], player.values, rtol=0, atol=1e-5
    )
    cut = player.steps.truncated[1:] & ~player.steps.terminated[1:]
    assert cut.sum() >= count // 2
    for t, n in np.argwhere(cut):
        images[t + 1, n] = player.steps.last_image[t + 1, n].ravel()
        directions[t + 1, n], rows[t + 1, n] = player.steps.last_direction[t + 1, n], rows[t, n]
        begins[t + 1, n] = False
    goes_on = Sequences(images, directions, rows, begins, player.first_memory, every)
    values = whole.forward(goes_on, films)[1:, :, -1]
    np.testing.assert_allclose(player.final_values[cut], values[cut], rtol=0, atol=1e-5)
    assert (player.final_values[~cut] == 0).all()


def test_workers_in_threads_give_the_same_bits() -> None:
    alone, beside = _learner("pkp0"), _learner("pkp0")
    with thread_pool(2) as threads:
        for number in (1, 2, 3):
            assert alone.update(number, 1e-3) == beside.update(number, 1e-3, threads)
    assert torch.equal(alone.weights, beside.weights)


@pytest.mark.parametrize("frozen", list(FROZEN))
def test_frozen_weights_stay_and_the_others_learn(frozen: str) -> None:
    learner = _learner("pkp0", frozen)
    before = {name: view.copy() for name, view in split(learner.weights.numpy(), TINY).items()}
    for number in (1, 2):
        learner.update(number, 1e-2)
    for name, view in split(learner.weights.numpy(), TINY).items():
        assert np.array_equal(view, before[name]) == (name in FROZEN[frozen]), name


def test_it_learns() -> None:
    settings = ppo_settings(
        epochs=3, minibatch_size=8, gamma=0.97, entropy_coef=0.01, time_limit="bootstrap"
    )
    learner = _learner("gto0", settings=settings, max_grad_norm=1)
    before = play(learner.agent, "gto0", agents.TEST[:200], np.random.default_rng(1)).rate
    for number in range(1, 121):
        learner.update(number, 3e-3)
    after = play(learner.agent, "gto0", agents.TEST[:200], np.random.default_rng(1)).rate
    assert after > max(0.5, before + 0.25), (before, after)


def test_episodes_do_not_depend_on_those_beside_them() -> None:
    agent = NetworkAgent(_network(scale=50))
    together, apart = (
        play(agent, "gto0", range(300), None),
        play(agent, "gto0", range(200, 300), None),
    )
    for name in ("success", "reward", "steps", "mission"):
        np.testing.assert_array_equal(getattr(together, name)[200:], getattr(apart, name))
    np.testing.assert_allclose(
        together.reward, np.where(together.success, 1 - 0.9 * together.steps / 121, 0), atol=1e-6
    )
    assert 0 < together.rate < 1 or together.steps.max() == 121


def test_films_of_known_missions_stay_when_new_ones_come() -> None:
    network, player = _network(), Player("pkp0", 4, 8, _network(), np.arange(4))
    rows = player.missions.rows(np.array([[2, 1, 5, 0], [2, 3, 6, 0]], np.uint8))
    first = network.films(player.missions)
    player.missions.rows(np.array([[1, 1, 5, 0]], np.uint8))
    second = network.films(player.missions)
    assert len(second.codes) == len(first.codes) + 1
    np.testing.assert_array_equal(first.tables[rows], second.tables[rows])


def test_the_schedule_is_complete() -> None:
    assert set(COURSES) == set(STAGES)
    assert (
        sum(course.epochs for course in COURSES.values()) == 156
    )  # added up by hand from the source
    assert {stage for last in CURRICULA.values() for stage in chain(last)} == set(STAGES)
    assert chain("tglc2") == [
        "all0",
        "all1",
        "all2",
        "all3",
        "all4",
        "all5",
        "all6",
        "tglc1",
        "tglc2",
    ]
    course = Course(4, 3e-4, 3e-6)
    for schedule in ("linear", "cosine"):
        assert step_size(course, schedule, 0) == pytest.approx(3e-4)
        assert step_size(course, schedule, 1) == pytest.approx(3e-6)
        assert step_size(course, schedule, 0.5) == pytest.approx(1.515e-4)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"envs": 100}, "--envs"),
        ({"epoch_steps": 100}, "--epoch-steps"),
        ({"frozen": "eyes"}, "--frozen"),
        ({"pretrained": "/nowhere"}, "--pretrained"),
        ({"stage": "gtg7"}, "--stage"),
    ],
)
def test_wrong_flags_are_named(flags: dict, told: str) -> None:
    with pytest.raises(record.UserError, match=told):
        Config(**flags)


FLAGS = {
    "stage": "pkp0", "epochs": 1, "epoch-steps": 12288, "envs": 64, "rollout": 16, "hidden": 32, "memory": 32,
    "channels": 4, "eval-interval": 3, "eval-episodes": 20, "save-interval": 2, "threads": 1,
}  # fmt: skip


def _run(folder: Path, kill_after: str = "", **changes) -> dict:
    """Runs the script in a process of its own; a kill comes once the checkpoint is there."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = ("GUILD_", "MLFLOW_", "RUN_", "RECORD")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {"PYTHONPATH": str(SCRIPT.parents[1]), "RUN_DIR": str(folder), "RECORD_MLFLOW": "off"}
    words = [f"--{name}={value}" for name, value in (FLAGS | changes).items()]
    command = [sys.executable, str(SCRIPT), *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    if kill_after:
        while process.poll() is None and not (folder / "checkpoints" / kill_after).exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    process.communicate()
    if kill_after:
        return {}
    assert process.returncode == 0
    return json.loads((folder / "result.json").read_text())


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = _run(tmp_path / "whole")
    killed = tmp_path / "killed"
    _run(killed, kill_after="00000004")
    assert not (killed / "result.json").exists()
    resumed = _run(killed, threads=2)
    assert resumed["resume_mismatch"] == 0
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"]["metrics"] == whole["result"]["metrics"]
    agent = agents.load(killed)
    assert agent.stage == "pkp0"
    assert (
        play(agent, "pkp0", agents.TEST, None).rate == whole["result"]["metrics"]["success/greedy"]
    )


def test_a_stage_goes_on_from_another_one(tmp_path: Path) -> None:
    # An agent may learn without its locks kept, and go on with them.
    _run(tmp_path / "first", **{"keep-locks": "no"})
    second = tmp_path / "second"
    _run(second, pretrained=tmp_path / "first", frozen="trunk", stage="pkp1")
    first = json.loads((tmp_path / "first/journal/run.json").read_text())["id"]
    assert json.loads((second / "journal/parents.json").read_text())["parents"] == [first]
    before, after = (agents.load(tmp_path / name).network.weights for name in ("first", "second"))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == set(before) - set(FROZEN["trunk"])
    kept = [agents.load(tmp_path / name).network.shape.keep_locks for name in ("first", "second")]
    assert kept == [False, True]
