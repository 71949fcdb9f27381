"""Rollouts, PPO and whole runs of `skill:train`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo_settings import ppo_settings
from runcatalog import record
from runcatalog.record.config import parse, without_effect
from runcatalog.record.journal.metrics import read_points
from skills import train
from skills.agents import checkpoints, evaluation
from skills.agents.evaluation import FIRST_TRAINING_SEED, play
from skills.agents.network import FROZEN, Network, Sequences, Shape, initial_weights, named_views
from skills.agents.policy import NetworkAgent
from skills.agents.rollout import Rollout
from skills.learning.options import Config
from skills.learning.ppo import Learner, LearnerSettings, RecurrentPPO, thread_pool
from skills.learning.schedule import CURRICULA, SCHEDULES, Schedule, chain
from skills.learning.trainer import Trainer, learning_rate
from skills.levels.engine import Engine
from skills.levels.stages import STAGES
from skills.levels.state import Levels

TINY = Shape(channels=4, hidden=32, memory=32)


def _network(shape: Shape = TINY, scale: float = 1.0) -> Network:
    flat = initial_weights(shape, torch.Generator().manual_seed(1))
    named_views(flat, shape)["head"][:] *= scale
    return Network(shape, flat)


SETTINGS = LearnerSettings(
    shape=TINY, envs=64, workers=2, rollout=16, passes=2, minibatch_size=16, max_grad_norm=0.5, frozen="nothing"
)  # fmt: skip
LOSS = ppo_settings(entropy_coef=0.01, time_limit="bootstrap")


def _learner(stage: str | Levels, settings: LearnerSettings = SETTINGS, loss=LOSS) -> RecurrentPPO:
    return RecurrentPPO(settings, loss, 0.0, stage, record.Seeds(1))


def _update(learner: RecurrentPPO, number: int, lr: float) -> dict[str, float]:
    learner.collect(number)
    learner.compute_advantages()
    return learner.optimise(number, lr)


def _rollout(stage: str, count: int, steps: int, network: Network) -> Rollout:
    seeds = np.arange(count) + FIRST_TRAINING_SEED
    return Rollout(Engine(stage, count), network, steps, seeds, shaping=False)


def test_rollouts_equal_the_environments_stepped_with_the_same_actions() -> None:
    count, steps = 12, 100
    seeds = np.arange(count) + FIRST_TRAINING_SEED
    rollout = _rollout("pkp0", count, steps, _network(scale=50))
    other = Engine("pkp0", count)
    now, begins = other.reset(seeds), np.ones(count, bool)
    rng = np.random.default_rng(2)
    for _ in range(3):
        rollout.collect(rng.random((steps, count)))
        for t in range(steps):
            np.testing.assert_array_equal(rollout.steps.image[t], now.image)
            np.testing.assert_array_equal(rollout.begins[t], begins)
            now = other.step(rollout.actions[t])
            for name in ("reward", "terminated", "truncated"):
                np.testing.assert_array_equal(
                    getattr(rollout.steps, name)[t + 1], getattr(now, name)
                )
            begins = now.terminated | now.truncated
    assert rollout.steps.truncated[1:].any()
    assert rollout.steps.terminated[1:].any()


def test_values_of_a_rollout_are_those_of_the_whole_sequence() -> None:
    """Also of the last views of episodes that time has ended: with the memory that leads to them."""
    count, steps = 16, 130
    network = _network(scale=50)
    rollout = _rollout("nlm0", count, steps, network)
    rollout.collect(np.random.default_rng(3).random((steps, count)))
    films = network.film_tables(rollout.missions)
    images, directions, rows, begins = (
        part.copy()
        for part in (rollout.images, rollout.steps.direction, rollout.rows, rollout.begins)
    )
    whole = Network(TINY, network.flat)
    every = np.arange(count)
    sequences = Sequences(images, directions, rows, begins, rollout.first_memory, every)
    np.testing.assert_allclose(
        whole.forward(sequences, films)[..., -1], rollout.values, rtol=0, atol=1e-5
    )
    cut = rollout.steps.truncated[1:] & ~rollout.steps.terminated[1:]
    assert cut.sum() >= count // 2
    for t, n in np.argwhere(cut):
        images[t + 1, n] = rollout.steps.last_image[t + 1, n].ravel()
        directions[t + 1, n], rows[t + 1, n] = rollout.steps.last_direction[t + 1, n], rows[t, n]
        begins[t + 1, n] = False
    goes_on = Sequences(images, directions, rows, begins, rollout.first_memory, every)
    values = whole.forward(goes_on, films)[1:, :, -1]
    np.testing.assert_allclose(rollout.final_values[cut], values[cut], rtol=0, atol=1e-5)
    assert (rollout.final_values[~cut] == 0).all()


def test_workers_in_threads_give_the_same_bits() -> None:
    alone, beside = _learner("pkp0"), _learner("pkp0")
    with thread_pool(2) as threads:
        beside.threads = threads
        for number in (1, 2, 3):
            assert _update(alone, number, 1e-3) == _update(beside, number, 1e-3)
    assert torch.equal(alone.weights, beside.weights)


@pytest.mark.parametrize("frozen", list(FROZEN))
def test_frozen_weights_stay_and_the_others_learn(frozen: str) -> None:
    learner = _learner("pkp0", replace(SETTINGS, frozen=frozen))
    before = {
        name: view.copy() for name, view in named_views(learner.weights.numpy(), TINY).items()
    }
    for number in (1, 2):
        _update(learner, number, 1e-2)
    for name, view in named_views(learner.weights.numpy(), TINY).items():
        assert np.array_equal(view, before[name]) == (name in FROZEN[frozen]), name


def test_it_learns() -> None:
    settings = replace(SETTINGS, passes=3, minibatch_size=8, max_grad_norm=1)
    learner = _learner("gto0", settings, replace(LOSS, gamma=0.97))
    before = play(learner.agent, "gto0", evaluation.TEST_SEEDS[:200], np.random.default_rng(1)).rate
    for number in range(1, 121):
        _update(learner, number, 3e-3)
    after = play(learner.agent, "gto0", evaluation.TEST_SEEDS[:200], np.random.default_rng(1)).rate
    assert after > max(0.5, before + 0.25), (before, after)


def test_episodes_do_not_depend_on_their_batch() -> None:
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


def test_film_parameters_of_known_missions_are_kept_when_missions_are_added() -> None:
    network, rollout = _network(), _rollout("pkp0", 4, 8, _network())
    rows = rollout.missions.rows(np.array([[2, 1, 5, 0], [2, 3, 6, 0]], np.uint8))
    first = network.film_tables(rollout.missions)
    rollout.missions.rows(np.array([[1, 1, 5, 0]], np.uint8))
    second = network.film_tables(rollout.missions)
    assert len(second.codes) == len(first.codes) + 1
    np.testing.assert_array_equal(first.tables[rows], second.tables[rows])


def test_the_schedule_is_complete() -> None:
    assert set(SCHEDULES) == set(STAGES)
    # Added up by hand from the source
    assert sum(course.epochs for course in SCHEDULES.values()) == 156
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
    course = Schedule(4, 3e-4, 3e-6)
    for schedule in ("linear", "cosine"):
        assert learning_rate(course, schedule, 0) == pytest.approx(3e-4)
        assert learning_rate(course, schedule, 1) == pytest.approx(3e-6)
        assert learning_rate(course, schedule, 0.5) == pytest.approx(1.515e-4)


def test_typed_flags_without_effect_are_named() -> None:
    typed = ["--bank", "9", "--eval-interval", "0", "--stop-at", "0.9"]
    assert without_effect(parse(train.Config, typed)) == [
        "--stop-at has no effect with eval-interval=0", "--bank has no effect without env"
    ]  # fmt: skip
    assert without_effect(parse(train.Config, ["--bank", "9", "--env", "BabyAI-GoToObj-v0"])) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"envs": 100}, "--envs"),
        ({"epoch_steps": 100}, "--epoch-steps"),
        ({"frozen": "eyes"}, "--frozen"),
        ({"pretrained": "/nowhere"}, "--pretrained"),
        ({"stage": "gtg7"}, "--stage"),
        ({"lr": 1e-5}, "--lr-end: the last step size, 2e-05, is above the first, 1e-05"),
        (
            {"lr": 0.0, "lr_end": 0.1},
            "--lr-end: the last step size, 0.1, is above the first, 0.001",
        ),
    ],
)
def test_wrong_flags_are_named(flags: dict, message: str) -> None:
    with pytest.raises(record.UserError, match=message):
        Config(**flags)


FLAGS = {
    "stage": "pkp0", "epochs": 1, "epoch_steps": 12288, "envs": 64, "rollout": 16, "hidden": 32, "memory": 32,
    "channels": 4, "eval_interval": 3, "eval_episodes": 20, "save_interval": 2, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def few_tests() -> Iterator[None]:
    """Fewer test episodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "test_seeds", evaluation.TEST_SEEDS[:100])
        yield


@pytest.fixture(scope="module")
def whole(run_main, few_tests, tmp_path_factory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    run_main(folder, train, **FLAGS)
    return folder


def test_a_resumed_run_is_the_same_bit_for_bit(run_main, whole, few_tests, tmp_path) -> None:
    first = json.loads((whole / "result.json").read_text())
    collect = Learner.collect

    def breaks(self, update: int) -> None:
        if update == 6:
            raise RuntimeError("interrupted")
        collect(self, update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "collect", breaks)
        with pytest.raises(RuntimeError, match="interrupted"):
            run_main(tmp_path, train, **FLAGS)
    assert not (tmp_path / "checkpoints/00000006").exists()
    resumed = run_main(tmp_path, train, **FLAGS | {"threads": 2})
    assert resumed["session"] == 2
    assert resumed["resume_mismatch"] == 0
    assert resumed["digest"] == first["digest"]
    assert resumed["result"]["metrics"] == first["result"]["metrics"]
    agent = checkpoints.load(tmp_path)
    assert agent.stage == "pkp0"
    rate = play(agent, "pkp0", evaluation.TEST_SEEDS[:100], None).rate
    assert rate == first["result"]["metrics"]["success/greedy"]


def test_the_mean_reward_is_that_of_the_episodes_that_ended(whole) -> None:
    """1 - 0.9 t / T for a success after t of T steps, so at least 0.1; no point without an ended episode."""
    points = {"reward": {}, "success/training": {}}
    for point in read_points(whole / "journal/metrics.jsonl"):
        if point.name in points:
            points[point.name][point.step] = point.value
    rewards, successes = points.values()
    assert rewards.keys() == successes.keys()
    assert max(successes.values()) > 0
    for step, success in successes.items():
        assert 0.1 * success <= rewards[step] <= success


def test_the_curves_have_the_last_updates_of_a_training_that_stops_early(
    run_main, few_tests, tmp_path, monkeypatch
) -> None:
    """Three updates, where a point of the curves is the mean of eight."""
    monkeypatch.setattr(record, "reached_target", lambda rates, target: True)
    stopped = run_main(tmp_path, train, **FLAGS)
    assert stopped["result"]["env_steps"] == 3 * 64 * 16
    points = list(read_points(tmp_path / "journal/metrics.jsonl"))
    logged = {point.name: (point.step, point.value) for point in points}
    assert logged["env_steps"] == (3, 3 * 64 * 16)
    assert {logged[name][0] for name in ("policy_loss", "lr", "validation/greedy")} == {3}


def test_a_stage_begins_with_the_weights_of_another(run_main, few_tests, tmp_path) -> None:
    # An agent may train without keep_locks, and continue with it.
    first, second = tmp_path / "first", tmp_path / "second"
    short = FLAGS | {"epoch_steps": 2048}
    run_main(first, train, **short | {"keep_locks": False})
    run_main(
        second, train, **short | {"pretrained": str(first), "frozen": "trunk", "stage": "pkp1"}
    )
    run_id = json.loads((first / "journal/run.json").read_text())["id"]
    assert json.loads((second / "journal/parents.json").read_text())["parents"] == [run_id]
    networks = [checkpoints.load(folder).network for folder in (first, second)]
    before, after = (network.weights for network in networks)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == set(before) - set(FROZEN["trunk"])
    assert [network.shape.keep_locks for network in networks] == [False, True]


def test_weights_of_another_shape_are_refused(run_main, whole, tmp_path) -> None:
    with pytest.raises(record.UserError, match=r"--pretrained .*memory=32"):
        run_main(tmp_path, train, **FLAGS | {"pretrained": str(whole), "memory": 64})


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    learner = _learner("pkp0")
    learner.collect(1)
    learner.compute_advantages()
    learner.workers[0].advantages[:] = np.nan
    with pytest.raises(record.NumericalError, match="policy_loss"):
        learner.optimise(1, 1e-3)
