"""Distils the specialists of single verbs into one student: it follows what they would do where it gets to."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from skills.options import Common, Specialists
from skills.schedule import COURSES

if TYPE_CHECKING:
    from rl.ppo import PPOSettings
    from skills.distilling import Distilling
    from skills.playing import Played

VERBS = ("gtg", "gto", "pkp", "tgl")
ALL = tuple(stage for stage in COURSES if stage.startswith("all"))


@dataclass(frozen=True)
class Config(Common, Specialists):
    """Flags of `skill:distill`. The source tells of distillation no more than what came out."""

    stage: str = option("all6", "whose levels of each verb are played", choices=ALL)
    epochs: int = option(8, "of epoch-steps; the source does not tell", low=1)
    lr: float = option(1e-3, "Adam's first step size [1]", low=0, high=1)
    lr_end: float = option(3e-5, "the last one", low=0, high=1)
    workers: int = option(
        4, "shares of the environments, each with one teacher: a multiple of 4", low=4, high=64
    )
    minibatches: int = option(8, "of a pass, each of whole sequences", low=1, high=1024)
    teacher_share: float = option(
        0.25, "of the environments in which teachers act, at first; falls to 0 in a line (DAgger's beta)",
        low=0, high=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers % len(VERBS):
            raise record.UserError(f"--workers: {self.workers} is no multiple of {len(VERBS)}")
        self.specialists()

    def settings(self) -> PPOSettings:
        """Of an update, as far as it is one of supervised learning."""
        from rl.ppo import PPOSettings

        return PPOSettings(
            epochs=self.passes,
            minibatch_size=self.envs // self.workers // self.minibatches,
            value_coef=self.value_coef,
        )


def main(config: Config) -> dict[str, Any]:
    """Distils, plays 1,000 episodes that were kept out on each verb and on all, and returns what the record says."""
    from skills.distilling import Distilling
    from skills.training import trained

    with trained(Distilling, config) as training:
        played = {"all": training.test(), **training.by_verb(training.learner.agent)}
        training.run.digest_weights(training.tensors())
        return training.run.finish(result(config, training, played, training.by_verb()))


def result(
    config: Config,
    training: Distilling,
    student: dict[str, dict[str, Played]],
    teachers: dict[str, dict[str, Played]],
) -> dict[str, Any]:
    """Success of the student over all verbs; a line for each verb, its teacher beside it."""
    from skills.benchmark import share
    from skills.train import objective_of

    metrics = {
        f"{who}/{verb}/{kind}": played.rate
        for who, found in (("success", student), ("teacher", teachers))
        for verb, each in found.items()
        for kind, played in each.items()
    }
    told, kept = objective_of(student["all"], training.update)
    training.run.log(metrics | kept, training.update)
    rows = [
        [verb.upper(), kind, share(student[verb][kind]), share(teachers[verb][kind]) if verb in teachers else ""]
        for verb in student
        for kind in ("sampled", "greedy")
    ]  # fmt: skip
    return {
        "objective": told,
        "metrics": metrics | kept,
        "env_steps": training.steps,
        "task": config.stage,
        "variant": {"recurrent": config.recurrent, "teachers": [each.stage for each in training.teachers.values()]},
        "table": {"columns": ["verb", "actions", "student [%]", "its teacher [%]"], "rows": rows},
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
