"""A run's course round PPO: step sizes, log, validation, checkpoints, and where it stands."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from rl.rollout import NonFiniteError
from runcatalog import record
from skills import agents
from skills.acting import NetworkAgent
from skills.learning import Learner, one_thread, thread_pool
from skills.options import Common, Config
from skills.playing import FIRST_TRAINING_SEED, IN_ENGINE, Played
from skills.schedule import Course
from skills.state import Levels

TOGETHER = 3  # validations whose mean decides on a stop: one high reading among many is often luck
LOGGED = 8  # updates whose mean is a point of a curve
_T = TypeVar("_T", bound="Training")


class Training:
    """One run.

    Args:
        run: Has been entered.
        config: Flags.

    Attributes:
        update: Number of the present update, from 1.
        steps: Of all environments together so far.
        curve: Sampled success rate of each validation.
        tested: Seeds of the episodes that are reported.
    """

    tested = agents.TEST

    def __init__(self, run: record.Run, config: Config) -> None:
        self.run, self.config = run, config
        self._learned, self._looked_at = levels_of(config)
        if not isinstance(self._learned, str) and (out := config.bank - len(self._learned)):
            run.event(f"{out} of {config.bank} levels are left out: the agent is judged by them")
        self.learner = self.make()
        self.update = 0
        self.curve: list[float] = []
        self.stopped = False
        self._found: list[dict[str, float]] = []
        self._clock = time.perf_counter()

    def make(self) -> Learner:
        """What learns."""
        config = self.config
        return Learner(
            levels=self._learned,
            frozen=config.frozen,
            shaping=config.shaping,
            **self.of_learner(),
        )

    def of_learner(self) -> dict[str, Any]:
        """Arguments that each kind of learner takes."""
        config = self.config
        return {
            "shape": config.shape(),
            "envs": config.envs,
            "workers": config.workers,
            "rollout": config.rollout,
            "settings": config.settings(),
            "max_grad_norm": config.max_grad_norm,
            "seeds": self.run.seeds,
        }

    @property
    def steps(self) -> int:
        """See the class."""
        return self.update * self.config.envs * self.config.rollout

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps: the weights by name."""
        return agents.tensors_of(self.learner.network())

    def own(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those of them that learn."""
        return tensors

    def begin(self) -> None:
        """Takes over the weights that the flags name, and goes on from the run's own newest checkpoint."""
        self.take_over()
        if (checkpoint := self.run.restore()) is not None:
            state = checkpoint.state
            learner = self.learner
            agents.put(learner.weights.numpy(), learner.shape, self.own(checkpoint.tensors))
            self.learner.restore(state["learner"])
            self.update, self.curve = state["update"], list(state["curve"])
            self.stopped, self._found = state["stopped"], list(state["found"])
            self.run.event(f"continued after update {self.update}")

    def take_over(self) -> None:
        """Begins with the weights that the flags name."""
        shape, weights = self.learner.shape, self.learner.weights.numpy()
        if (path := self.config.pretrained_path()) is not None:
            pretrained = agents.load(path)
            if not isinstance(pretrained, NetworkAgent):
                raise record.UserError(
                    f"--pretrained {self.config.pretrained}: it is no single network"
                )
            if replace(pretrained.network.shape, keep_locks=shape.keep_locks) != shape:
                raise record.UserError(
                    f"--pretrained {self.config.pretrained}: its network is {pretrained.network.shape}, not {shape}"
                )
            weights[:] = pretrained.network.flat
            self.run.add_parent(pretrained.run_id)

    def updates(self) -> Iterator[int]:
        """Counts the updates; after each, a point, a validation and a checkpoint where they are due."""
        config, total = self.config, self.config.updates
        while self.update < total and not self.stopped:
            self.update += 1
            yield self.update
            last = self.update == total
            if self.update % LOGGED == 0 or last:
                self._log()
            if config.eval_interval and (self.update % config.eval_interval == 0 or last):
                self._validate()
            if self.update % config.save_interval == 0 or last or self.stopped:
                self._checkpoint()
            self.run.progress(self.update, total, "update")

    def learn(self, threads: ThreadPoolExecutor | None) -> None:
        """Makes an update."""
        lr = step_size(
            self.config.course, self.config.lr_schedule, (self.update - 1) / self.config.updates
        )
        try:
            found = self.learner.update(self.update, lr, threads)
        except NonFiniteError as error:
            raise record.NumericalError(self.update, error.tensor) from error
        self._found.append(found | {"lr": lr})

    def about(self) -> dict[str, Any]:
        """What a checkpoint has to tell, for `agents.load`."""
        return agents.about(self.learner.shape, self.config.task)

    def test(self) -> dict[str, Played]:
        """The episodes that are reported; of an environment of BabyAI, there."""
        make = IN_ENGINE
        if self.config.task != self.config.stage:
            from skills.outside import Outside

            make = Outside
        uniform = self.run.seeds.generator("test", 0)
        return agents.both(self.learner.agent, self.config.task, self.tested, uniform, make)

    def _log(self) -> None:
        """Means since the last point; of episodes, those that ended since then."""
        means = {
            name: math.fsum(each[name] for each in self._found) / len(self._found)
            for name in self._found[0]
        }
        episodes, successes = means.pop("episodes"), means.pop("successes")
        count = len(self._found) * self.config.envs * self.config.rollout
        now = time.perf_counter()
        means |= {
            "env_steps": float(self.steps),
            "time/steps_per_second": count / (now - self._clock),
        }
        if episodes:
            means["success/training"] = successes / episodes
        self.run.log(means, self.update)
        self._found, self._clock = [], now

    def _validate(self) -> None:
        began = time.perf_counter()
        seeds = agents.VALIDATION[: self.config.eval_episodes]
        uniform = self.run.seeds.generator("validation", self.update)
        seen = agents.both(self.learner.agent, self._looked_at, seeds, uniform)
        self.run.log({f"validation/{kind}": each.rate for kind, each in seen.items()}, self.update)
        self.curve.append(seen["sampled"].rate)
        told = ", ".join(f"{kind} {each.success.sum()}" for kind, each in seen.items())
        self.run.event(
            f"update {self.update} of {self.config.updates}, {self.steps} steps: successes in "
            f"{len(seeds)} validation episodes: {told}"
        )
        latest = self.curve[-TOGETHER:]
        enough = len(latest) == TOGETHER and np.mean(latest) >= self.config.stop_at - 1e-9
        self.stopped = bool(self.config.stop_at) and bool(enough)
        self._clock += time.perf_counter() - began

    def _checkpoint(self) -> None:
        state = {
            "update": self.update,
            "curve": self.curve,
            "stopped": self.stopped,
            "found": self._found,
            "learner": self.learner.state(),
            **self.about(),
        }
        self.run.checkpoint(self.update, self.tensors(), state)


@contextmanager
def trained(kind: type[_T], config: Common) -> Iterator[_T]:
    """A run at the end of its updates, from its own newest checkpoint on; the caller tests and finishes it."""
    one_thread()
    with record.start(config, study="skills") as run, thread_pool(config.threads) as pool:
        threads = pool if config.threads > 1 and config.workers > 1 else None
        training = kind(run, config)
        training.begin()
        for _ in training.updates():
            training.learn(threads)
        yield training


def levels_of(config: Config) -> tuple[str | Levels, str | Levels]:
    """What is learned on, and what validations look at, see `skills.engine.Engine`.

    Of an environment's levels those that are the same as one that the agent is judged by, now or in the end, are not
    learned on: where rooms are small, other seeds often have the same level.

    Raises:
        UserError: None are left.
    """
    if config.task == config.stage:
        return config.stage, config.stage
    from skills.loading import bank

    made = bank(config.env, range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + config.bank))
    looked_at = bank(config.env, agents.VALIDATION[: config.eval_episodes])
    judged = np.concatenate([looked_at.contents(), bank(config.env, agents.TEST).contents()])
    learned = made[np.flatnonzero(~np.isin(made.contents(), judged))]
    if not len(learned):
        raise record.UserError(
            f"--env {config.env}: of {config.bank} levels made to learn on each is one that the agent is judged by; "
            "take an environment with more levels, or a larger bank"
        )
    return learned, looked_at


def step_size(course: Course, schedule: str, done: float) -> float:
    """Adam's step size when a share of the training is done."""
    left = 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return course.lr_end + (course.lr - course.lr_end) * left
