"""Distillation (Rusu et al. 2016): a student imitates frozen specialists in the states that the student visits.

As in DAgger (Ross et al. 2011), the student acts and teachers label its states, with memories that have followed the
whole episode. In a share beta of the environments the teacher acts; beta falls linearly to 0.

    L = mean over visited states of [ KL(pi_teacher || pi_student) + c_1 (V_student - V_teacher)^2 / 2 ]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runcatalog import record
from skills.agents import checkpoints, kernels, mixture_kernels
from skills.agents.evaluation import TEST_SEEDS, Episodes, play_sampled_and_greedy
from skills.agents.network import Array, Network
from skills.agents.policy import Agent, NetworkAgent
from skills.agents.rollout import Rollout
from skills.learning.options import DistillationConfig
from skills.learning.ppo import Learner, LearnerSettings, Worker
from skills.learning.trainer import Trainer
from skills.levels.codes import ACTIONS
from skills.levels.engine import Engine
from skills.levels.stages import stages_by_verb

STATISTICS = ("kl", "value_loss", "agreement")


class LabelledRollout(Rollout):
    """Rollouts of a student with the labels of a teacher.

    Args:
        engine, network, steps, seeds: See `Rollout`.
        teacher: Specialist of the environments' verb.

    Attributes:
        labels: The teacher's logits and value in every state, float32 [T, N, ACTIONS + 1].
        led: Number of environments in which the teacher acts.
    """

    def __init__(
        self,
        engine: Any,
        network: Network,
        steps: int,
        seeds: NDArray[np.int64],
        teacher: NetworkAgent,
    ) -> None:
        super().__init__(engine, network, steps, seeds, shaping=False)
        self.teacher, self.led = teacher, 0
        self.labels = np.zeros((steps, len(seeds), ACTIONS + 1), np.float32)
        self._teacher_memory = teacher.start(len(seeds))

    def _act(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        super()._act(t, outputs, draws)
        kernels.reset_memory(self._teacher_memory, self.begins[t])
        observed = self.steps.at(t)
        self.labels[t], self._teacher_memory = self.teacher.policy(observed, self._teacher_memory)
        led = slice(self.led)
        kernels.sample_actions(
            self.labels[t, led], draws[led], False, self.actions[t, led], self.log_probs[t, led]
        )

    def state(self) -> dict[str, Any]:
        """See `Rollout`."""
        return super().state() | {"other": self._teacher_memory}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Rollout`."""
        super().restore(state)
        self._teacher_memory = np.ascontiguousarray(state["other"])


class Distillation(Learner):
    """A student that learns from teachers, with the same number of environments per teacher.

    Args:
        teachers: Specialists by verb.
        stages: Stage of every verb.
        value_coef: Weight c_1 of the value's error.
        settings, seeds, make: See `Learner`; the number of workers is a multiple of the number of teachers.
    """

    statistics = STATISTICS

    def __init__(
        self,
        teachers: Mapping[str, NetworkAgent],
        stages: Mapping[str, str],
        value_coef: float,
        settings: LearnerSettings,
        seeds: record.Seeds,
        make: Callable[..., Any] = Engine,
    ) -> None:
        self._teachers, self._stages, self._value_coef = teachers, stages, value_coef
        super().__init__(settings, "", seeds, make)  # the levels depend on the worker

    def make_rollout(self, index: int, seeds: NDArray[np.int64]) -> LabelledRollout:
        """See `Learner`."""
        verb = list(self._teachers)[index % len(self._teachers)]
        engine = self._make(self._stages[verb], len(seeds))
        teacher = self._teachers[verb].copy()
        return LabelledRollout(engine, self.network(), self.settings.rollout, seeds, teacher)

    def set_teacher_share(self, share: float) -> None:
        """Let teachers act in a share beta of the environments."""
        for worker in self.workers:
            worker.rollout.led = round(share * worker.rollout.actions.shape[1])

    def loss_gradient(self, worker: Worker, columns: NDArray[np.int64]) -> torch.Tensor:
        """See `Learner`; returns `STATISTICS`."""
        outputs, statistics = worker.forward(columns), np.zeros(len(STATISTICS), np.float32)
        mixture_kernels.distillation_loss(
            outputs, worker.rollout.labels, columns, self._value_coef, statistics
        )
        worker.backward(outputs)
        return torch.from_numpy(statistics)


class DistillationTrainer(Trainer[Distillation, DistillationConfig]):
    """Trainer of `skill:distill`."""

    def make_learner(self) -> Distillation:
        """See `Trainer`."""
        config = self.config
        self.test_seeds = TEST_SEEDS[: config.episodes]
        self.teachers = checkpoints.load_specialists(config.specialists())
        for teacher in self.teachers.values():
            self.run.add_parent(teacher.run_id)
        stages = stages_by_verb(config.stage)
        settings = config.learner_settings()
        return Distillation(
            self.teachers, stages, config.value_coef, settings, self.run.seeds, self.training_engine
        )  # fmt: skip

    def initialise(self) -> None:
        """See `Trainer`; the student begins with random weights."""

    def teacher_share(self) -> float:
        """The share beta of the current update."""
        done = (self.update - 1) / self.config.updates
        return self.config.teacher_share * (1 - done)

    def test_by_verb(self, agent: Agent | None = None) -> dict[str, dict[str, Episodes]]:
        """Play the test episodes of every verb with an agent, or with the verb's teacher."""
        return {
            verb: play_sampled_and_greedy(
                agent or self.teachers[verb],
                stage,
                self.test_seeds,
                self.run.seeds.generator("test", i),
            )
            for i, (verb, stage) in enumerate(stages_by_verb(self.config.stage).items(), 1)
        }
