"""Parts of the training loop around the algorithm: start and resume, step sizes, log, validation and checkpoints."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch

from runcatalog import record
from skills.agents import checkpoints
from skills.agents.evaluation import (
    ENGINE,
    FIRST_TRAINING_SEED,
    TEST_SEEDS,
    VALIDATION_SEEDS,
    Episodes,
    play_sampled_and_greedy,
)
from skills.agents.network import with_two_objects
from skills.agents.policy import NetworkAgent
from skills.learning.level_sets import FIRST_SET, LeftOut, declare_levels, left_out
from skills.learning.options import Common, Config
from skills.learning.ppo import Learner, RecurrentPPO, thread_pool, use_one_torch_thread
from skills.learning.results import level_outcomes, objective_and_metrics
from skills.learning.schedule import Schedule
from skills.levels.codes import PUT
from skills.levels.engine import Engine
from skills.levels.state import Levels

LOG_INTERVAL = 8  # updates in the mean of one logged point
LearnerT = TypeVar("LearnerT", bound=Learner)
ConfigT = TypeVar("ConfigT", bound=Common)


class Trainer(ABC, Generic[LearnerT, ConfigT]):
    """State of a training run.

    Args:
        run: The run, entered.
        config: Flags.

    Attributes:
        learner: The algorithm.
        update: Number of the current update, from 1.
        left_out: Levels that are left out of training and validation.
        validation_rates: Success rates of all validations, with sampled actions.
        stopped: Whether early stopping has ended the training.
        test_seeds: Seeds of the reported episodes.
        outcomes: Their outcomes by level, as the result has them.
    """

    test_seeds = TEST_SEEDS

    def __init__(self, run: record.Run, config: ConfigT) -> None:
        self.run, self.config = run, config
        self.validation_levels: str | Levels = config.stage
        own = config.disjoint_levels and config.task == config.stage
        self.left_out = left_out(config.stage, config.eval_episodes) if own else LeftOut()
        self.learner = self.make_learner()
        self.update = 0
        self.validation_rates: list[float] = []
        self.stopped = False
        self.outcomes: list[dict[str, Any]] = []
        self._statistics: list[dict[str, float]] = []  # of the updates since the last logged point
        self._timed, self._clock = 0, time.perf_counter()  # updates since the clock was set

    @classmethod
    @contextmanager
    def start(cls, config: ConfigT) -> Iterator[Self]:
        """Start a run, or resume it from its newest checkpoint."""
        use_one_torch_thread()
        with record.start(config, study="skills") as run, thread_pool(config.threads) as pool:
            trainer = cls(run, config)
            if config.threads > 1 and config.workers > 1:
                trainer.learner.threads = pool
            trainer.initialise()
            trainer.resume()
            yield trainer

    @property
    def training_engine(self) -> Callable[..., Engine]:
        """Makes the environments of the training."""
        return partial(Engine, left_out=self.left_out.training)

    @abstractmethod
    def make_learner(self) -> LearnerT:
        """Return the learner with random weights."""

    @abstractmethod
    def initialise(self) -> None:
        """Load the initial weights that the flags name."""

    def resume(self) -> None:
        """Continue from the run's newest checkpoint, if there is one."""
        if (checkpoint := self.run.restore()) is None:
            return
        learner, state = self.learner, checkpoint.state
        weights = self.trained_tensors(checkpoint.tensors)
        checkpoints.copy_weights(learner.weights.numpy(), learner.shape, weights)
        learner.restore(state["learner"])
        self.update, self.validation_rates = state["update"], list(state["curve"])
        self.stopped, self._statistics = state["stopped"], list(state["found"])
        self.run.event(f"continued after update {self.update}")

    @property
    def steps(self) -> int:
        """Environment steps so far, over all environments."""
        return self.update * self.config.envs * self.config.rollout

    def updates(self) -> Iterator[int]:
        """Yield the number of every update from the first missing one, until the last or until early stopping."""
        while self.update < self.config.updates and not self.stopped:
            self.update += 1
            yield self.update
            self.run.progress(self.update, self.config.updates, "update")

    def learning_rate(self) -> float:
        """Adam's step size in the current update."""
        done = (self.update - 1) / self.config.updates
        return learning_rate(self.config.schedule, self.config.lr_schedule, done)

    def log(self, statistics: dict[str, float]) -> None:
        """Add an update's statistics; log their means after every `LOG_INTERVAL` updates and the last one."""
        self._statistics.append(statistics | {"lr": self.learner.optimizer.lr})
        self._timed += 1
        if record.is_due(self.update, LOG_INTERVAL, self.config.updates):
            self._log_means()

    def _log_means(self) -> None:
        since = self._statistics
        means = {
            name: math.fsum(values[name] for values in since) / len(since) for name in since[0]
        }
        episodes, successes, reward = (means.pop(n) for n in ("episodes", "successes", "reward"))
        count = self._timed * self.config.envs * self.config.rollout
        now = time.perf_counter()
        means |= {
            "env_steps": float(self.steps),
            "time/steps_per_second": count / (now - self._clock),
        }
        if episodes:
            means |= {"success/training": successes / episodes, "reward": reward / episodes}
        self.run.log(means, self.update)
        self._statistics, self._timed, self._clock = [], 0, now

    def validate(self) -> None:
        """Validate after every `eval_interval` updates, and stop early once the last validations reach `stop_at`."""
        config = self.config
        if not record.is_due(self.update, config.eval_interval, config.updates):
            return
        began = time.perf_counter()
        seeds = VALIDATION_SEEDS[: config.eval_episodes]
        uniform = self.run.seeds.generator("validation", self.update)
        episodes = play_sampled_and_greedy(
            self.learner.agent,
            self.validation_levels,
            seeds,
            uniform,
            partial(ENGINE, left_out=self.left_out.validation),
        )
        rates = {f"validation/{kind}": played.rate for kind, played in episodes.items()}
        self.run.log(rates, self.update)
        self.validation_rates.append(episodes["sampled"].rate)
        counts = ", ".join(f"{kind} {played.success.sum()}" for kind, played in episodes.items())
        self.run.event(
            f"update {self.update} of {config.updates}, {self.steps} steps: successes in "
            f"{len(seeds)} validation episodes: {counts}"
        )
        self.stopped = record.reached_target(self.validation_rates, config.stop_at)
        self._clock += time.perf_counter() - began
        if self.stopped and self._statistics:
            self._log_means()

    def checkpoint(self) -> None:
        """Save a checkpoint after every `save_interval` updates, and after the last."""
        due = self.run.checkpoint_due(self.update, self.config.save_interval, self.config.updates)
        if not (due or self.stopped):
            return
        state = {
            "update": self.update,
            "curve": self.validation_rates,
            "stopped": self.stopped,
            "found": self._statistics,
            "learner": self.learner.state(),
            **self.description(),
        }
        self.run.checkpoint(self.update, self.tensors(), state)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights of a checkpoint by name."""
        return checkpoints.named_tensors(self.learner.network())

    def trained_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights that train, out of a checkpoint's."""
        return tensors

    def description(self) -> dict[str, Any]:
        """Return what `checkpoints.load` needs in addition to the weights."""
        return checkpoints.description(self.learner.shape, self.config.task)

    def test(self) -> dict[str, Episodes]:
        """Play the reported episodes, sampled and greedy; of a BabyAI environment in BabyAI itself."""
        make: Callable[..., Any] = ENGINE
        task = self.config.task
        if task == self.config.stage:
            seeds = {task: np.asarray(self.test_seeds)}
            contents = declare_levels(self.run, FIRST_SET, seeds)[task]
        else:
            from skills.levels.minigrid.babyai import bank
            from skills.levels.minigrid.batch import GymBatch

            make = GymBatch
            contents = bank(task, self.test_seeds).contents()
            self.run.declare_evaluation("test", f"test levels of {task}", contents=contents)
        uniform = self.run.seeds.generator("test", 0)
        agent = self.learner.agent
        episodes = play_sampled_and_greedy(agent, task, self.test_seeds, uniform, make)
        self.outcomes = [level_outcomes(contents, episodes)]
        return episodes


class PPOTrainer(Trainer[RecurrentPPO, Config]):
    """Trainer of `skill:train`."""

    def make_learner(self) -> RecurrentPPO:
        """See `Trainer`."""
        config = self.config
        levels, self.validation_levels = self.training_levels()
        if config.env and (left_out := config.bank - len(levels)):
            self.run.event(
                f"{left_out} of {config.bank} levels are left out: they are validation or test levels"
            )
        settings = config.learner_settings()
        if not isinstance(levels, str) and (levels.mission[:, 0] == PUT).any():
            settings = replace(settings, shape=replace(settings.shape, two_objects=True))
        return RecurrentPPO(
            settings,
            config.ppo_settings(),
            config.shaping,
            levels,
            self.run.seeds,
            self.training_engine,
        )

    def training_levels(self) -> tuple[str | Levels, str | Levels]:
        """Return the levels of training and of validation, see `skills.levels.engine.Engine`."""
        return training_levels(self.config)

    def initialise(self) -> None:
        """See `Trainer`; the flag is `pretrained`."""
        if (path := self.config.pretrained_path()) is None:
            return
        shape = self.learner.shape
        pretrained = checkpoints.load(path)
        if not isinstance(pretrained, NetworkAgent):
            raise record.UserError(
                f"--pretrained {self.config.pretrained}: it is no single network"
            )
        own, flat = pretrained.network.shape, pretrained.network.flat
        widens = shape.two_objects and not own.two_objects
        if (
            replace(own, keep_locks=shape.keep_locks, two_objects=own.two_objects or widens)
            != shape
        ):
            raise record.UserError(
                f"--pretrained {self.config.pretrained}: its network is {own}, not {shape}"
            )
        weights = self.learner.weights.numpy()
        weights[:] = with_two_objects(flat, own, weights) if widens else flat
        self.run.add_parent(pretrained.run_id)

    def result(self, episodes: dict[str, Episodes]) -> dict[str, Any]:
        """Return the record's result, success in the test episodes with sampled actions, and log its metrics."""
        objective, metrics = objective_and_metrics(episodes, self.update)
        self.run.log(metrics, self.update)
        return {
            "objective": objective,
            "metrics": metrics,
            "outcomes": self.outcomes,
            "env_steps": self.steps,
            "task": self.config.task,
        }


def training_levels(config: Config) -> tuple[str | Levels, str | Levels]:
    """Return the levels of training and of validation, see `skills.levels.engine.Engine`.

    Training levels of a BabyAI environment that equal a validation or test level are left out: in small rooms other
    seeds often give the same level.

    Raises:
        UserError: The engine does not support one of the levels, or no training level is left.
    """
    if config.task == config.stage:
        return config.stage, config.stage
    from skills.levels.minigrid.babyai import bank

    try:
        test = bank(config.env, TEST_SEEDS)
        validation = bank(config.env, VALIDATION_SEEDS[: config.eval_episodes])
        training = bank(config.env, range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + config.bank))
    except ValueError as error:  # only some of its missions have one verb
        raise record.UserError(f"--env {config.env}: {error}") from None
    evaluated = np.concatenate([validation.contents(), test.contents()])
    training = training[np.flatnonzero(~np.isin(training.contents(), evaluated))]
    if not len(training):
        raise record.UserError(
            f"--env {config.env}: all of the {config.bank} training levels are validation or test levels; "
            "take an environment with more levels, or a larger bank"
        )
    return training, validation


def learning_rate(schedule: Schedule, kind: str, done: float) -> float:
    """Return Adam's step size after a share `done` of the training; `kind`: linear or cosine."""
    left = 1 - done if kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return schedule.lr_end + (schedule.lr - schedule.lr_end) * left
