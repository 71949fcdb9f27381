"""Evaluate a trained policy in worlds unlike those of its training (domain shift).

Every parameter of a world has a training range [a, b]. Outside means uniformly in the part that a range 1.5 times as
wide about the same middle adds, a quarter of the width on either side. The worlds are the run's 100 test worlds, with
one parameter outside, or with all of them: so a difference to the run's own result is due to these parameters alone. In
worlds drawn from the wider ranges most parameters would be inside, so "all" is the harder test. Starts of the robot and
looks of the worlds do not change.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.model.statistics import wilson
from runcatalog.record import option

if TYPE_CHECKING:
    from door.training.evaluation import Evaluation

ALL, NONE = "all", "none"


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `door:shift`; task, robot, start and worlds are those of the evaluated run."""

    run: str = option("run", "directory of a finished training run; its last task is evaluated")
    worlds: int = option(100, "test worlds, of 100", low=1, high=100)
    threads: int = option(2, "simulator threads; no effect on results", low=1, resumable=True)


def main(config: Config) -> dict[str, Any]:
    """Evaluate the run's last policy inside and outside the training ranges; return the content of `result.json`."""
    from door.continual import steps
    from door.env.tasks import get_task
    from door.env.worlds import parameters
    from door.training import snapshots

    step = steps.read_one(Path(config.run))
    task, policy = snapshots.load(step.snapshots[-1][1])[-1]
    seeds = record.Seeds(step.seed)  # of the training, for its test worlds
    evaluations: dict[str, Evaluation] = {}

    def run_outside(name: str, outside: Collection[str]) -> None:
        from door.training.evaluation import evaluate

        evaluations[name] = evaluate(
            policy,
            task,
            step.robot,
            seeds=seeds,
            worlds=config.worlds,
            start=step.start,
            threads=config.threads,
            outside=outside,
        )
        run.log(_metrics({name: evaluations[name]}), step.updates)
        opened = int(evaluations[name].successes.sum())
        run.event(f"{name} outside: opened {opened} of {config.worlds} worlds")
        run.progress(len(evaluations), len(names) + 2, "kind of world")

    names = parameters(get_task(task))
    with record.start(config, study="door") as run:
        run.add_parent(steps.run_of(Path(config.run) / snapshots.FOLDER))
        run_outside(NONE, ())
        run_outside(ALL, names)
        for name in names:
            run_outside(name, (name,))
        worlds = evaluations[ALL].worlds
        run.declare_evaluation("test", "test worlds outside the training ranges", contents=worlds)
        return run.finish(_result(evaluations, task, step))


def _metrics(evaluations: dict[str, Evaluation]) -> dict[str, float]:
    """Return opening rates and deepest contacts by the parameter outside."""
    metrics = {f"opening_rate/{name}": result.opening_rate for name, result in evaluations.items()}
    return metrics | {
        f"max_penetration/{name}": result.max_penetration for name, result in evaluations.items()
    }


def _result(evaluations: dict[str, Evaluation], task: str, step: Any) -> dict[str, Any]:
    worst = min(
        (name for name in evaluations if name not in (ALL, NONE)),
        key=lambda name: evaluations[name].opening_rate,
    )
    return {
        "objective": evaluations[ALL].objective(step.updates),
        "summary": (
            f"opening rate {_text(evaluations[ALL])} with every parameter outside its training range, "
            f"{_text(evaluations[NONE])} inside; least with {worst} alone outside: {_text(evaluations[worst])}"
        ),
        "table": {
            "columns": ["outside", "opening rate", "deepest contact [mm]"],
            "rows": [
                [name, _text(result), f"{result.max_penetration:.1f}"]
                for name, result in evaluations.items()
            ],
        },
        "metrics": _metrics(evaluations),
        "task": task,
        "variant": {"method": step.method, "robot": step.robot, "start": step.start},
    }


def _text(evaluation: Evaluation) -> str:
    """Return the opening rate with its score interval (Wilson 1927): "98 % [93, 99]"."""
    low, high = wilson(int(evaluation.successes.sum()), len(evaluation.successes))
    return f"{100 * evaluation.opening_rate:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
