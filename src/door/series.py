"""Run a series of door tasks: every task is a Guild run, which starts from the checkpoint of the previous one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs, finished_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option
from runcatalog.record.journal.files import read_json

PASSED = ("env_steps", "stop_at", "threads", "video")  # flags that are passed to the steps
PLAN = "series.json"  # in the run's directory: ids of the steps


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `series2:all` and the other series."""

    steps: str = option("", "operations in order, separated by spaces")
    env_steps: int = option(
        0, "budget of every step [decisions]; 0: the default of the step", low=0
    )
    stop_at: float = option(
        -1.0,
        "validation opening rate that ends a step; -1: the default of the step",
        low=-1,
        high=1,
    )
    threads: int = option(2, "simulator threads; no effect on results", low=1, resumable=True)
    video: str = option(
        "own",
        "a video of every step's final policy; own: the default of the step",
        choices=("own", "yes", "no"),
    )
    chain: bool = option(
        True, "every step starts from the checkpoint of the previous one; no: from scratch"
    )
    reuse: bool = option(
        True, "use a finished run of the same seed and flags for a step of another series"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps.split():
            raise record.UserError("--steps: empty; give operations such as series4:hnppo_pull_0")

    def passed(self) -> dict[str, str]:
        """Return the flags for every step: those that differ from the default, and `threads`."""
        values = {name: getattr(self, name) for name in PASSED}
        return {
            record.config.flag_name(name): str(value)
            for name, value in values.items()
            if value != getattr(type(self), name) or name == "threads"
        }


@dataclass(kw_only=True)
class Step(PlannedRun):
    """One step of a series.

    Attributes:
        reused: Whether it is a finished run of another series.
    """

    reused: bool = False


def main(config: Config) -> dict[str, Any]:
    """Run the steps that are not finished, evaluate the series, and return the content of `result.json`."""
    child_runs.require_guild("a series", "guild run series4:all")
    with record.start(config, study="door") as run:
        steps = plan(config, run.directory / PLAN)
        for step in steps:
            if step.reused:
                run.event(f"{step.name}: {step.operation}, finished run {step.run[:8]} reused")
        try:
            child_runs.run_plan(run, PLAN, steps, unit="task")
        finally:
            _link(run.directory, steps)
        result = _result(steps, config)
        run.log(result["metrics"], len(steps))
        child_runs.declare_evaluation(run, steps, "test worlds of all tasks")
        return run.finish(result)


def plan(config: Config, file: Path) -> list[Step]:
    """Return the steps in order; their ids are those of the file, or of finished runs that are reused.

    Args:
        config: Flags.
        file: Plan of an interrupted series, {name: run id}, in older series {"steps": [{"run": id}]}; may be missing.
    """
    operations = config.steps.split()
    names = [f"task {index}" for index in range(len(operations))]
    saved = read_json(file) or {}  # `run_plan` names a file that is damaged
    if "steps" in saved:
        saved = {name: step["run"] for name, step in zip(names, saved["steps"], strict=False)}
    flags = {"seed": str(config.seed)} | config.passed()
    steps: list[Step] = []
    for name, operation in zip(names, operations, strict=True):
        step = Step(operation=operation, name=name, flags=flags, run=saved.get(name, ""))
        if not step.run and config.reuse and _model(operation) != _model(operations[-1]):
            step.run = next(finished_runs.equivalent_runs(operation, _results_flags(flags)), "")
            step.reused = bool(step.run)
        if steps and config.chain:
            step.after = {"previous": steps[-1].name}
        steps.append(step)
    return steps


def _model(operation: str) -> str:
    return operation.partition(":")[0]


def _results_flags(flags: dict[str, str]) -> dict[str, str]:
    """Return the flags without `threads`, which has no effect on results."""
    return {name: value for name, value in flags.items() if name != "threads"}


def _result(steps: Sequence[Step], config: Config) -> dict[str, Any]:
    from door.continual import formulas
    from door.continual.evaluations import final_matrix

    results = [step.result_json for step in steps]
    rates = [result["result"]["objective"]["value"] for result in results]
    metrics = {
        f"opening_rate/{i}_{result['result']['task']}": rates[i] for i, result in enumerate(results)
    }
    matrix = final_matrix([step.directory for step in steps], threads=config.threads, reported=True)
    if len(steps) > 1:
        metrics |= {
            "accuracy": formulas.accuracy(matrix),
            "remembering": formulas.remembering(matrix),
        }
    return {
        "objective": {
            "name": "opening_rate",
            "value": sum(rates) / len(rates),
            "kind": "rate",
            "count": results[0]["result"]["objective"]["count"] * len(rates),
            "goal": "max",
            "at": len(steps),
            "axis": "task",
        },
        "metrics": metrics,
        "matrix": matrix.tolist(),
        "env_steps": sum(result["result"]["env_steps"] for result in results),
        "variant": results[-1]["result"]["variant"],
    }


def _link(directory: Path, steps: Sequence[Step]) -> None:
    """Create links `steps/<place>_<task>` to the directories of the finished steps."""
    for index, step in enumerate(steps):
        if not step.finished:
            continue
        link = directory / "steps" / f"{index}_{step.result_json['result']['task']}"
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(step.directory, link.parent))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
