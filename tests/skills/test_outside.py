"""Agents of the engine in minigrid and BabyAI themselves."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch

from ppo_settings import ppo_settings
from runcatalog import record
from skills import agents, env_id
from skills.acting import Agent, NetworkAgent
from skills.engine import Engine, Step
from skills.learning import Learner
from skills.loading import bank
from skills.network import Network, Shape, initial, split
from skills.options import Config
from skills.outside import Outside, check
from skills.playing import FIRST_TRAINING_SEED, Played, play
from skills.state import Levels
from skills.training import levels_of


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _same(first: Played, second: Played) -> None:
    for name in Played.__annotations__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.fixture(scope="module")
def trained() -> Agent:
    """A small agent after some training: it succeeds, fails and runs out of time."""
    torch.set_num_threads(1)
    settings = ppo_settings(epochs=3, minibatch_size=16, gamma=0.97, entropy_coef=0.01)
    learner = Learner(
        Shape(channels=4, hidden=32, memory=32), "all1", envs=64, workers=1, rollout=16, settings=settings,
        max_grad_norm=1, frozen="nothing", seeds=record.Seeds(1),
    )  # fmt: skip
    for number in range(1, 101):
        learner.update(number, 3e-3)
    return learner.agent


@pytest.mark.parametrize("stage", ["all1", "pkp4", "tgl3", "nlm0"])
def test_a_trained_agent_plays_the_same_episodes_in_minigrid(trained: Agent, stage: str) -> None:
    """Mission, success, reward and length of each episode, with drawn actions and with the likeliest."""
    seeds = agents.TEST[:60]
    engine, minigrid = (
        agents.both(trained, levels, seeds, np.random.default_rng(1), **make)
        for levels, make in ((stage, {}), (env_id(stage), {"make": Outside}))
    )
    for kind in ("sampled", "greedy"):
        _same(engine[kind], minigrid[kind])
    if stage == "all1":
        assert 0.1 < engine["sampled"].rate < 0.95
        assert set(engine["sampled"].mission[:, 0]) == {0, 1, 2, 3}


class InOrder(Engine):
    """An environment for each level, the first for the first."""

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
    flat = initial(shape, torch.Generator().manual_seed(1))
    split(flat, shape)["head"][:6] *= 50  # not `done`, which only waits
    agent, seeds = NetworkAgent(Network(shape, flat)), range(15)
    engine = play(agent, bank(environment, seeds), seeds, np.random.default_rng(1), InOrder)
    _same(engine, play(agent, environment, seeds, np.random.default_rng(1), Outside))
    assert engine.success.any()


def test_levels_to_learn_on_are_no_levels_to_be_judged_by() -> None:
    config = Config(env="BabyAI-GoToObj-v0", bank=30, eval_episodes=20)
    learned, looked_at = levels_of(config)
    assert (len(learned), len(looked_at)) == (30, 20)
    assert learned.seed.min() >= FIRST_TRAINING_SEED
    assert set(looked_at.seed) <= set(agents.VALIDATION)
    assert not set(looked_at.seed) & set(agents.TEST)
    (env,) = {gymnasium.spec(config.env).id}
    assert config.task == env


def _told(levels: Levels) -> list[tuple]:
    """Levels as what can be seen of them, one by one."""
    return [
        (levels.cells[i].tolist(), levels.inside[i].tolist(), levels.agent[i].tolist(), levels.mission[i].tolist())
        for i in range(len(levels))
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["GoToObjS4", "GoToObj", "GoToLocal"])
def test_no_level_to_learn_on_is_the_same_as_one_to_be_judged_by(name: str) -> None:
    """What is left out is that and no more, be it two thirds of the levels or none."""
    config = Config(env=f"BabyAI-{name}-v0", bank=300, eval_episodes=40)
    learned, looked_at = levels_of(config)
    judged = _told(looked_at) + _told(bank(config.env, agents.TEST))
    plain = bank(config.env, range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 300))
    fitting = [i for i, level in enumerate(_told(plain)) if level not in judged]
    assert learned.seed.tolist() == plain.seed[fitting].tolist()
    assert (len(fitting) < 300) == (name != "GoToLocal")


def test_an_environment_whose_levels_are_all_to_be_judged_by_is_refused() -> None:
    with pytest.raises(record.UserError, match=r"--env MiniGrid-Empty-5x5-v0: .* more levels"):
        levels_of(Config(env="MiniGrid-Empty-5x5-v0", bank=50))


@pytest.mark.parametrize("name", ["BabyAI-Nowhere-v0", "BabyAI-PutNextLocal-v0", "CartPole-v1"])
def test_an_environment_that_cannot_be_played_is_named(name: str) -> None:
    with pytest.raises(record.UserError, match=f"--env {name}"):
        check(name)
