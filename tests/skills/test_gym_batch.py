"""Agents of the engine in minigrid and BabyAI themselves."""

import gymnasium
import numpy as np
import pytest
import torch

from ppo_settings import ppo_settings
from runcatalog import record
from skills import env_id
from skills.agents import evaluation, rollout
from skills.agents.evaluation import FIRST_TRAINING_SEED, Episodes, play
from skills.agents.network import Network, Shape, initial_weights, named_views
from skills.agents.policy import Agent, NetworkAgent
from skills.learning.options import Config
from skills.learning.ppo import LearnerSettings, RecurrentPPO
from skills.learning.trainer import training_levels
from skills.levels.engine import Engine, Step
from skills.levels.minigrid.babyai import bank
from skills.levels.minigrid.batch import GymBatch, check_environment
from skills.levels.state import Levels


def _same(first: Episodes, second: Episodes) -> None:
    for name in Episodes.__annotations__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.fixture(scope="module")
def trained() -> Agent:
    """A small agent after some training: it succeeds, fails and runs out of time."""
    torch.set_num_threads(1)
    settings = LearnerSettings(
        shape=Shape(channels=4, hidden=32, memory=32), envs=64, workers=1, rollout=16, passes=3, minibatch_size=16,
        max_grad_norm=1, frozen="nothing",
    )  # fmt: skip
    learner = RecurrentPPO(
        settings, ppo_settings(gamma=0.97, entropy_coef=0.01), 0.0, "all1", record.Seeds(1)
    )
    for update in range(1, 101):
        learner.collect(update)
        learner.compute_advantages()
        learner.optimise(update, 3e-3)
    return learner.agent


@pytest.mark.parametrize("stage", ["all1", "pkp4", "tgl3", "nlm0"])
def test_a_trained_agent_plays_the_same_episodes_in_minigrid(trained: Agent, stage: str) -> None:
    """Mission, success, reward and length per episode, with sampled and with greedy actions."""
    seeds = evaluation.TEST_SEEDS[: 60 if stage == "all1" else 20]
    engine, minigrid = (
        evaluation.play_sampled_and_greedy(trained, levels, seeds, np.random.default_rng(1), **make)
        for levels, make in ((stage, {}), (env_id(stage), {"make": GymBatch}))
    )
    for kind in ("sampled", "greedy"):
        _same(engine[kind], minigrid[kind])
    if stage == "all1":
        assert 0.1 < engine["sampled"].rate < 0.95
        assert set(engine["sampled"].mission[:, 0]) == {0, 1, 2, 3}


class InOrder(Engine):
    """One environment per level, in order."""

    def __init__(self, levels: Levels, count: int) -> None:
        super().__init__(levels, count, auto_reset=False)
        self._given = levels

    def reset(self, seeds: np.ndarray, which=None, out=None) -> Step:
        if which is not None:
            return super().reset(seeds, which, out)
        return self.load(self._given)


@pytest.mark.parametrize("name", ["GoToObj", "GoToLocal", "PickupLoc", "OpenDoor"])
def test_an_agent_plays_the_same_episodes_in_babyai(name: str) -> None:
    shape, environment = Shape(channels=4, hidden=16, memory=16), f"BabyAI-{name}-v0"
    flat = initial_weights(shape, torch.Generator().manual_seed(1))
    named_views(flat, shape)["head"][:6] *= 50  # not `done`, which only waits
    agent, seeds = NetworkAgent(Network(shape, flat)), range(15)
    engine = play(agent, bank(environment, seeds), seeds, np.random.default_rng(1), InOrder)
    _same(engine, play(agent, environment, seeds, np.random.default_rng(1), GymBatch))
    assert engine.success.any()


def test_a_rollout_does_not_depend_on_the_missions_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Missions with two objects; an index of many missions is begun anew with a rollout."""
    levels = bank("BabyAI-PutNextLocal-v0", range(60))
    levels.max_steps[:] = 20
    shape = Shape(channels=4, hidden=16, memory=16, two_objects=True)
    settings = LearnerSettings(
        shape=shape, envs=8, workers=1, rollout=16, passes=1, minibatch_size=4, max_grad_norm=1, frozen="nothing",
    )  # fmt: skip
    counts, played = [], []
    for most in (rollout.MOST_MISSIONS, 10):
        monkeypatch.setattr(rollout, "MOST_MISSIONS", most)
        learner = RecurrentPPO(settings, ppo_settings(), 0.5, levels, record.Seeds(1))
        mine = learner.workers[0].rollout
        for update in range(1, 5):
            learner.collect(update)
        counts.append(len(mine.missions.codes))
        played.append((mine.actions.copy(), mine.values.copy(), mine.missions.codes[mine.rows]))
        learner.compute_advantages()
        learner.optimise(5, 1e-3)
    assert counts[1] < counts[0]
    for first, second in zip(*played, strict=True):
        np.testing.assert_array_equal(first, second)


def test_training_seeds_and_evaluation_seeds_are_disjoint() -> None:
    config = Config(env="BabyAI-GoToObj-v0", bank=30, eval_episodes=20)
    training, validation = training_levels(config)
    assert (len(training), len(validation)) == (30, 20)
    assert training.seed.min() >= FIRST_TRAINING_SEED
    assert set(validation.seed) <= set(evaluation.VALIDATION_SEEDS)
    assert not set(validation.seed) & set(evaluation.TEST_SEEDS)
    (env,) = {gymnasium.spec(config.env).id}
    assert config.task == env


def _contents(levels: Levels) -> list[tuple]:
    """(cells, inside, agent, mission) per level."""
    return [
        (levels.cells[i].tolist(), levels.inside[i].tolist(), levels.agent[i].tolist(), levels.mission[i].tolist())
        for i in range(len(levels))
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["GoToObjS4", "GoToObj", "GoToLocal"])
def test_no_training_level_equals_a_validation_or_test_level(name: str) -> None:
    """Equal levels alone are left out, be it two thirds of all levels or none."""
    config = Config(env=f"BabyAI-{name}-v0", bank=300, eval_episodes=40)
    training, validation = training_levels(config)
    evaluated = _contents(validation) + _contents(bank(config.env, evaluation.TEST_SEEDS))
    plain = bank(config.env, range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 300))
    fitting = [i for i, level in enumerate(_contents(plain)) if level not in evaluated]
    assert training.seed.tolist() == plain.seed[fitting].tolist()
    assert (len(fitting) < 300) == (name != "GoToLocal")


def test_an_environment_with_too_few_levels_is_refused() -> None:
    with pytest.raises(record.UserError, match=r"--env MiniGrid-LavaGapS5-v0: .* more levels"):
        training_levels(Config(env="MiniGrid-LavaGapS5-v0", bank=50))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("BabyAI-Nowhere-v0", "doesn't exist"),
        ("BabyAI-GoToSeq-v0", "only missions with one verb"),
        ("CartPole-v1", "not a minigrid environment"),
        ("MiniGrid-FourRooms-v0", "no mission: 'reach the goal'"),
        ("MiniGrid-Empty-8x8-v0", "sees through walls"),
    ],
)
def test_an_environment_that_cannot_be_played_is_named(name: str, problem: str) -> None:
    with pytest.raises(record.UserError, match=f"--env {name}: .*{problem}"):
        check_environment(name)


def test_an_environment_of_which_only_some_levels_can_be_played_is_named() -> None:
    with pytest.raises(record.UserError, match="--env BabyAI-MiniBossLevel-v0: "):
        training_levels(Config(env="BabyAI-MiniBossLevel-v0", bank=50))
