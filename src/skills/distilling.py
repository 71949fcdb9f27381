"""Distillation (Rusu et al. 2016): a student follows what specialists would do where the student itself gets to.

As in DAgger (Ross et al. 2011), states are the student's own, and teachers say what they would have done there, each
with a memory of its own that has seen the whole episode. The loss is the divergence of their distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl.ppo import PPOSettings
from skills import agents, blends, gates
from skills.acting import Agent, NetworkAgent
from skills.codes import ACTIONS
from skills.learning import Learner, Worker
from skills.levels import levels_of
from skills.network import Array
from skills.options import DistillationConfig
from skills.playing import Played, Player
from skills.training import Training

STATISTICS = ("kl", "value_loss", "agreement")


class Pupil(Player):
    """Environments in which a student acts and a teacher looks on.

    Args:
        player: Arguments of `Player`.
        teacher: Of the verb that is wanted there.

    Attributes:
        labels: What the teacher gives in each step, float32 [T, N, ACTIONS + 1].
        led: In this many of the environments the teacher acts.
    """

    def __init__(self, *player: Any, teacher: NetworkAgent) -> None:
        super().__init__(*player)
        self.teacher, self.led = teacher, 0
        self.labels = np.zeros((*self.actions.shape, ACTIONS + 1), np.float32)
        self._other = teacher.start(self.actions.shape[1])

    def _decide(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        super()._decide(t, outputs, draws)
        gates.keep(self._other, self.begins[t])
        self.labels[t], self._other = self.teacher.policy(self.steps.at(t), self._other)
        led = slice(self.led)
        gates.choose(
            self.labels[t, led], draws[led], False, self.actions[t, led], self.log_probs[t, led]
        )

    def state(self) -> dict[str, Any]:
        """See `Player`."""
        return super().state() | {"other": self._other}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Player`."""
        super().restore(state)
        self._other = np.ascontiguousarray(state["other"])


class Follower(Worker):
    """A share of the environments, all with the same teacher."""

    player: Pupil

    def gradients(self, which: NDArray[np.int64], settings: PPOSettings) -> torch.Tensor:
        """Writes the gradient of the loss on some columns of the rollout; returns `STATISTICS`."""
        outputs, statistics = self.forward(which), np.zeros(len(STATISTICS), np.float32)
        blends.divergence(outputs, self.player.labels, which, settings.value_coef, statistics)
        self.backward(outputs)
        return torch.from_numpy(statistics)


class Student(Learner):
    """Learns from teachers. Each has the same number of environments, with levels of its verb.

    Args:
        teachers: By verb.
        levels: Stage by verb.
        more: Arguments of `Learner`; the number of workers is a multiple of that of the teachers.
    """

    statistics = STATISTICS

    def __init__(
        self, teachers: Mapping[str, NetworkAgent], levels: Mapping[str, str], **more: Any
    ) -> None:
        self._teachers, self._stages = teachers, levels
        super().__init__(levels="", frozen="nothing", **more)  # each worker has those of its verb

    def worker(self, index: int, seeds: NDArray[np.int64]) -> Worker:
        """See `Learner`."""
        verb = list(self._teachers)[index % len(self._teachers)]
        teacher = self._teachers[verb].copy()
        player = Pupil(*self.of_player(self._stages[verb], seeds), teacher=teacher)
        return Follower(player, self.network(), np.zeros_like(self.weights.numpy()))

    def collect(self, number: int, run: Callable[..., Iterable[Any]]) -> None:
        """See `Learner`; the teachers have told the rest while it was played."""
        self.play(number, run)

    def lead(self, share: float) -> None:
        """Lets teachers act in a share of the environments."""
        for worker in self.workers:
            worker.player.led = round(share * worker.player.actions.shape[1])


class Distilling(Training):
    """A run of `skill:distill`.

    Attributes:
        teachers: By verb.
    """

    config: DistillationConfig
    learner: Student

    def make(self) -> Student:
        """See `Training`."""
        self.tested = agents.TEST[: self.config.episodes]
        self.teachers = agents.specialists(self.config.specialists())
        for teacher in self.teachers.values():
            self.run.add_parent(teacher.run_id)
        return Student(self.teachers, levels_of(self.config.stage), **self.of_learner())

    def take_over(self) -> None:
        """A student begins with nothing."""

    def learn(self, threads: Any) -> None:
        """See `Training`."""
        done = (self.update - 1) / self.config.updates
        self.learner.lead(self.config.teacher_share * (1 - done))
        super().learn(threads)

    def by_verb(self, agent: Agent | None = None) -> dict[str, dict[str, Played]]:
        """The reported episodes on each verb's levels: of an agent, or of each verb's teacher."""
        return {
            verb: agents.both(
                agent or self.teachers[verb],
                stage,
                self.tested,
                self.run.seeds.generator("test", i),
            )
            for i, (verb, stage) in enumerate(levels_of(self.config.stage).items(), 1)
        }
