"""Levels in which a planner's sub-tasks begin, and training on them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from runcatalog import record
from skills import subtasks, train
from skills.agents import checkpoints
from skills.agents.network import Network, Shape, initial_weights
from skills.agents.policy import NetworkAgent
from skills.learning import level_sets
from skills.learning import subtasks as training
from skills.learning.ppo import Learner
from skills.learning.subtasks import ListedLevels
from skills.levels.codes import (
    BALL,
    BOX,
    CLEAR,
    DROP,
    EMPTY,
    KEY,
    PKP,
    TARGET,
    TYPE_MASK,
    WALL,
    mission_text,
)  # fmt: skip
from skills.levels.content import keys
from skills.levels.generate import levels
from skills.levels.solver import solutions
from skills.levels.state import Levels
from skills.planner.subtask_levels import subtask_levels

SHAPE = {"channels": 4, "hidden": 32, "memory": 32}
TINY = SHAPE | {
    "epoch_steps": 6 * 16 * 32, "envs": 32, "rollout": 16, "workers": 1, "threads": 1, "minibatches": 2,
    "eval_episodes": 20, "eval_interval": 3, "save_interval": 2, "stop_at": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> Levels:
    shape = Shape(**SHAPE)
    agent = NetworkAgent(Network(shape, initial_weights(shape, torch.Generator().manual_seed(1))))
    return subtask_levels("nlm2", np.arange(10_000, 10_040), agent, np.random.default_rng(1))


def test_the_shortest_path_to_its_target_fulfils_a_subtask(drawn: Levels) -> None:
    carrying = solved = 0
    for n, path in enumerate(solutions(drawn)):
        level = drawn[n : n + 1]
        target = level.cells[level.cells & TARGET > 0] & TYPE_MASK
        assert level.mission[0, 2] == target[0], mission_text(level.mission[0])
        assert level.steps[0] == 0
        if path is None:  # behind a closed door that the whole task's solution opens on the way
            continue
        environments = ListedLevels(drawn, 1)
        environments.reset(np.array([n]))
        rewards = [float(environments.step(np.array([action])).reward[0]) for action in path]
        assert rewards[-1] > 0
        assert not any(rewards[:-1])
        solved += 1
        carrying += level.mission[0, 0] == PKP and level.carried[0, 0] & TYPE_MASK == KEY
    assert solved > 0.9 * len(drawn) > 50
    assert carrying > 0


def test_a_key_on_a_bottleneck_separates_cells_and_fails_the_subtask(drawn: Levels) -> None:
    marked = (drawn.cells & CLEAR > 0).reshape(len(drawn), -1).sum(1)
    assert marked.min() >= 1
    for n in range(0, len(drawn), 9):
        kinds = drawn.cells[n] & TYPE_MASK
        free = {(int(y), int(x)) for y, x in np.argwhere(~np.isin(kinds, (WALL, BALL, BOX)))}
        for y, x in sorted(free):
            others = free - {(y, x)}
            around = [c for c in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)) if c in others]
            # Every neighbour is reached from the first one, or the cell alone connects them.
            reached, border = set(around[:1]), around[:1]
            while border:
                v, u = border.pop()
                new = {(v - 1, u), (v + 1, u), (v, u - 1), (v, u + 1)} & others - reached
                reached |= new
                border += new
            cuts = not set(around) <= reached
            assert bool(drawn.cells[n, y, x] & CLEAR) == (cuts and kinds[y, x] == EMPTY)


def test_laying_a_key_on_a_bottleneck_ends_the_episode(drawn: Levels) -> None:
    ended = allowed = 0
    steps = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    for n in range(len(drawn)):
        level = drawn[n : n + 1]
        x, y = level.agent[0, :2] + steps[level.agent[0, 2]]
        cell = int(level.cells[0, y, x])
        if not level.carried[0, 0] or cell & TYPE_MASK != EMPTY:
            continue
        environments = ListedLevels(drawn, 1)
        environments.reset(np.array([n]))
        step = environments.step(np.array([DROP]))
        assert not step.reward[0]
        assert bool(step.terminated[0]) == bool(cell & CLEAR)
        ended, allowed = ended + bool(cell & CLEAR), allowed + (not cell & CLEAR)
    assert min(ended, allowed) > 0


def test_training_seeds_have_no_level_that_is_evaluated() -> None:
    """In small rooms other seeds often give the same level."""
    seeds = range(3000)  # the first thousand are the test levels themselves
    left = level_sets.without_evaluated("nlm0", seeds)
    assert left.min() >= 1000
    assert 0 < len(left) < 2000
    tested = keys(levels("nlm0", np.arange(1000)))
    assert not np.isin(keys(levels("nlm0", left)), tested).any()


@pytest.fixture
def pretrained(run_main, monkeypatch, tmp_path: Path) -> Path:
    """A run of an untrained agent; tests with few levels."""
    monkeypatch.setattr(training, "VALIDATED", 3)
    monkeypatch.setattr(training, "TESTED", 3)
    folder = tmp_path / "pretrained"
    run_main(folder, train, **TINY | {"stage": "gtg0", "epochs": 1, "epoch_steps": 16 * 32})
    return folder


def test_a_resumed_training_ends_with_the_same_weights(
    run_main, monkeypatch, pretrained: Path, tmp_path: Path
) -> None:
    flags = TINY | {"levels": 10, "pretrained": str(pretrained)}
    whole = run_main(tmp_path / "whole", subtasks, **flags)
    collect = Learner.collect

    def breaks(self: Learner, update: int) -> None:
        if update == 4:
            raise OSError("the machine goes down")
        collect(self, update)

    monkeypatch.setattr(Learner, "collect", breaks)
    with pytest.raises(OSError, match="goes down"):
        run_main(tmp_path / "broken", subtasks, **flags)
    monkeypatch.setattr(Learner, "collect", collect)
    resumed = run_main(tmp_path / "broken", subtasks, **flags)
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"]["metrics"] == whole["result"]["metrics"]
    assert resumed["result"]["objective"]["count"] > 3
    assert checkpoints.load(tmp_path / "whole").stage == "sub-tasks of nlm2"


@pytest.mark.parametrize(
    ("flags", "message"),
    [({}, "--pretrained"), ({"pretrained": "x", "env": "BabyAI-GoToObj-v0"}, "--env")],
)
def test_wrong_flags_are_named(flags: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    if "pretrained" in flags:
        flags = flags | {"pretrained": str(tmp_path)}
    with pytest.raises(record.UserError, match=message):
        subtasks.Config(**flags)
