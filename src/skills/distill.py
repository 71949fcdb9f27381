"""Distils the specialists of single verbs into one student: it follows what they would do where it gets to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.options import DistillationConfig as Config

if TYPE_CHECKING:
    from skills.distilling import Distilling
    from skills.playing import Played


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
