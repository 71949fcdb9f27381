"""Distil the specialists of single verbs into one student."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.learning.options import DistillationConfig
from skills.learning.results import objective_and_metrics, success_with_interval

if TYPE_CHECKING:
    from skills.agents.evaluation import Episodes
    from skills.learning.distillation import DistillationTrainer


@dataclass(frozen=True)
class Config(DistillationConfig):
    """Flags of `skill:distill`."""


def main(config: Config) -> dict[str, Any]:
    """Train, play the test episodes of all verbs together and of every verb, and return the record's result."""
    from skills.learning.distillation import DistillationTrainer

    with DistillationTrainer.start(config) as trainer:
        student = trainer.learner
        for update in trainer.updates():
            student.set_teacher_share(trainer.teacher_share())
            student.collect(update)  # with the teachers' labels
            statistics = student.optimise(update, trainer.learning_rate())
            trainer.log(statistics)
            trainer.validate()  # every eval_interval updates; ends the loop at stop_at
            trainer.checkpoint()  # every save_interval updates
        episodes = {"all": trainer.test(), **trainer.test_by_verb(student.agent)}
        trainer.run.digest_weights(trainer.tensors())
        return trainer.run.finish(result(config, trainer, episodes, trainer.test_by_verb()))


def result(
    config: Config,
    trainer: DistillationTrainer,
    student: dict[str, dict[str, Episodes]],
    teachers: dict[str, dict[str, Episodes]],
) -> dict[str, Any]:
    """Return the record's result: the student's success over all verbs, and a table by verb with the teachers'."""
    by_verb = {
        f"{prefix}/{verb}/{kind}": played.rate
        for prefix, episodes in (("success", student), ("teacher", teachers))
        for verb, both in episodes.items()
        for kind, played in both.items()
    }
    objective, metrics = objective_and_metrics(student["all"], trainer.update)
    metrics = by_verb | metrics
    trainer.run.log(metrics, trainer.update)
    rows = [
        [
            verb.upper(), kind, success_with_interval(student[verb][kind]),
            success_with_interval(teachers[verb][kind]) if verb in teachers else "",
        ]
        for verb in student
        for kind in ("sampled", "greedy")
    ]  # fmt: skip
    return {
        "objective": objective,
        "metrics": metrics,
        "outcomes": trainer.outcomes,
        "env_steps": trainer.steps,
        "task": config.stage,
        "variant": {
            "recurrent": config.recurrent,
            "teachers": [teacher.stage for teacher in trainer.teachers.values()],
        },
        "table": {"columns": ["verb", "actions", "student [%]", "its teacher [%]"], "rows": rows},
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
