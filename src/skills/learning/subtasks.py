"""Training on a planner's sub-tasks: levels in which the oracle's sub-tasks begin while an agent carries them out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skills.agents import checkpoints
from skills.agents.evaluation import FIRST_TRAINING_SEED, Episodes, play_sampled_and_greedy
from skills.learning.level_sets import FIRST_SET, VALIDATION_SET, level_seeds, without_evaluated
from skills.learning.options import SubtaskConfig
from skills.learning.results import level_outcomes
from skills.learning.trainer import PPOTrainer
from skills.levels.engine import Engine, Step
from skills.levels.state import Levels
from skills.planner.subtask_levels import subtask_levels

VALIDATED, TESTED = 100, 200
"""Levels of the composite task whose sub-tasks are those of a validation, and of the test."""


class ListedLevels:
    """N environments for `evaluation.play`, whose seeds are the indices of levels.

    Args:
        levels: The levels.
        count: Number of environments N.
    """

    def __init__(self, levels: Levels, count: int) -> None:
        self._levels, self._engine = levels, Engine(levels, count, auto_reset=False)

    def reset(self, seeds: NDArray[np.int64]) -> Step:
        """Begin episodes on levels, int [N]."""
        return self._engine.load(self._levels[seeds])

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Act in every environment, int64 [N]."""
        return self._engine.step(actions)


class SubtaskTrainer(PPOTrainer):
    """Trainer of `skill:subtasks`.

    The levels come from episodes of the pretrained agent on training, validation and test levels of the composite task.
    """

    config: SubtaskConfig

    def training_levels(self) -> tuple[Levels, Levels]:
        """See `PPOTrainer`."""
        stage = self.config.stage
        seeds = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + self.config.levels)
        training = self._levels("training", without_evaluated(stage, seeds))
        validation = level_seeds(stage, VALIDATION_SET, VALIDATED)
        return training, self._levels("validation", validation)

    def test(self) -> dict[str, Episodes]:
        """See `Trainer`; every sub-task of the test levels once."""
        levels = self._levels("test", level_seeds(self.config.stage, FIRST_SET, TESTED))
        contents = levels.contents()
        self.run.declare_evaluation("test", f"test levels of {self.config.task}", contents=contents)
        uniform = self.run.seeds.generator("test", 0)
        everyone = range(len(levels))
        episodes = play_sampled_and_greedy(
            self.learner.agent, levels, everyone, uniform, ListedLevels
        )
        self.outcomes = [level_outcomes(contents, episodes)]
        return episodes

    def _levels(self, name: str, seeds: NDArray[np.int64]) -> Levels:
        """Return the levels of a set; saved, so that a resumed run has the same ones at once."""
        path = self.run.directory / f"{name}_levels.npz"
        if not path.exists():
            made = subtask_levels(
                self.config.stage, seeds, checkpoints.load(self.config.pretrained_path()),
                self.run.seeds.generator(f"{name} levels"),
                lambda done: self.run.progress(done, len(seeds), "level"),
            )  # fmt: skip
            part = path.with_suffix(".part.npz")
            np.savez_compressed(part, **vars(made))
            part.rename(path)
        with np.load(path) as arrays:
            levels = Levels(**arrays)
        self.run.event(f"{len(levels)} {name} levels, from {len(seeds)} of {self.config.stage}")
        return levels
