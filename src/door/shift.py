"""A trained policy in worlds unlike all that it trained in.

Each parameter of a world has a range [a, b]. Outside it means uniformly in what a range 1.5 times as
wide about the same middle adds, a quarter of the width at either end. The worlds are the 100 test
worlds of the run, so that success inside is the run's own number and any difference is made by what
was moved: each parameter alone, and all together. All at once and not "at least one", because of
worlds drawn from the wider ranges all but 1 in 100 have one parameter or more outside, most of them
few; here none of a world's parameters is one that training could have shown. Starts of the robot and
looks stay as they are.
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
    """Flags of `door:shift`; task, robot, start and worlds are those of the run that it looks at."""

    run: str = option("run", "directory of a finished training run: of what it learned last")
    worlds: int = option(100, "test worlds, of 100", low=1, high=100)
    threads: int = option(2, "simulator threads; no result depends on it", low=1, resumable=True)


def main(config: Config) -> dict[str, Any]:
    """Evaluates the run's last policy inside and outside of its ranges, and returns the record."""
    from door.continual import steps
    from door.env.tasks import get_task
    from door.env.worlds import parameters
    from door.training import snapshots

    step = steps.read_one(Path(config.run))
    task, policy = snapshots.load(step.snapshots[-1][1])[-1]
    seeds = record.Seeds(step.seed)  # of the training: its test worlds are wanted
    seen: dict[str, Evaluation] = {}

    def look(name: str, outside: Collection[str]) -> None:
        from door.training.evaluation import evaluate

        seen[name] = evaluate(
            policy,
            task,
            step.robot,
            seeds=seeds,
            worlds=config.worlds,
            start=step.start,
            threads=config.threads,
            outside=outside,
        )
        run.log(_metrics({name: seen[name]}), step.updates)
        opened = int(seen[name].successes.sum())
        run.event(f"{name} outside: opened {opened} of {config.worlds} worlds")
        run.progress(len(seen), len(names) + 2, "kind of world")

    names = parameters(get_task(task))
    with record.start(config, study="door") as run:
        run.add_parent(steps.run_of(Path(config.run) / snapshots.FOLDER))
        look(NONE, ())
        look(ALL, names)
        for name in names:
            look(name, (name,))
        return run.finish(_result(seen, task, step))


def _metrics(seen: dict[str, Evaluation]) -> dict[str, float]:
    """Opening rates by what is outside; deepest contact of all of them."""
    metrics = {f"opening_rate/{name}": each.opening_rate for name, each in seen.items()}
    return metrics | {
        f"max_penetration/{name}": each.max_penetration for name, each in seen.items()
    }


def _result(seen: dict[str, Evaluation], task: str, step: Any) -> dict[str, Any]:
    worst = min((name for name in seen if name not in (ALL, NONE)), key=lambda n: _rate(seen[n]))
    return {
        "objective": {
            "name": "opening_rate",
            "value": seen[ALL].opening_rate,
            "kind": "rate",
            "count": len(seen[ALL].successes),
            "goal": "max",
            "at": step.updates,
            "axis": "update",
        },
        "summary": (
            f"opening rate {_text(seen[ALL])} with every parameter outside its training range, "
            f"{_text(seen[NONE])} inside; least with {worst} alone outside: {_text(seen[worst])}"
        ),
        "table": {
            "columns": ["outside", "opening rate", "deepest contact [mm]"],
            "rows": [[n, _text(each), f"{each.max_penetration:.1f}"] for n, each in seen.items()],
        },
        "metrics": _metrics(seen),
        "task": task,
        "variant": {"method": step.method, "robot": step.robot, "start": step.start},
    }


def _rate(seen: Evaluation) -> float:
    return seen.opening_rate


def _text(seen: Evaluation) -> str:
    """A rate with its score interval (Wilson 1927): "98 % [93, 99]"."""
    low, high = wilson(int(seen.successes.sum()), len(seen.successes))
    return f"{100 * _rate(seen):.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
