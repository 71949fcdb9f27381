"""Runs a series of door tasks: each step is a Guild run of its own, started from the one before."""

from __future__ import annotations

import argparse
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import ChildRun
from runcatalog.record import journal, option

PASSED = ("env_steps", "stop_at", "threads", "video")  # flags that go on to the steps


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `series2:all` and its like."""

    steps: str = option("", "operations in their order, separated by spaces")
    env_steps: int = option(0, "budget of each step [decisions]; 0: the step's own", low=0)
    stop_at: float = option(
        -1.0, "validation opening rate that ends a step; -1: the step's own", low=-1, high=1
    )
    threads: int = option(2, "simulator threads; no result depends on it", low=1, resumable=True)
    video: str = option("own", "of each step's final policy", choices=("own", "yes", "no"))
    chain: bool = option(
        True, "each step starts from the checkpoint of the one before; no: from nothing"
    )
    reuse: bool = option(
        True, "take a finished run of the same seed and flags for a step of another series"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps.split():
            raise record.UserError("--steps: none is named; give operations such as series4:…")

    def passed(self) -> dict[str, str]:
        """The flags that every step gets, as they are typed."""
        given = {name: getattr(self, name) for name in PASSED}
        own = {name: getattr(type(self), name) for name in PASSED}  # what leaves a step as it is
        return {n.replace("_", "-"): v for n, v in given.items() if v != own[n] or n == "threads"}


@dataclass
class Step(ChildRun):
    """One step of a series.

    Attributes:
        reused: whether the run was there before.
    """

    reused: bool = False


def main(config: Config) -> dict[str, Any]:
    """Runs the steps that are missing, evaluates, and returns what the record says."""
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise record.UserError("a series runs under Guild: `guild run series4:all`")
    operations = config.steps.split()
    with record.start(config, study="door") as run:
        steps = _known(run.directory)
        for index, operation in enumerate(operations):
            if index == len(steps):
                steps.append(_choose(operation, operations, config))
                # Before it starts: a series that is killed now knows what it has started.
                _write(run.directory, steps, config.seed)
            step = steps[index]
            _complete(run, step, steps[index - 1] if index else None, config)
            run.add_parent(step.run)
            _link(run.directory, index, step)
            run.progress(index + 1, len(operations), "task")
        result = _result(steps, config)
        run.log(result["metrics"], len(steps))
        return run.finish(result)


def _known(directory: Path) -> list[Step]:
    """The steps that an interrupted series has begun."""
    path = directory / "series.json"
    if not path.exists():
        return []
    written = json.loads(path.read_text())["steps"]
    return [Step(each["operation"], each["run"], each["reused"]) for each in written]


def _write(directory: Path, steps: list[Step], seed: int) -> None:
    written = [
        {"operation": s.operation, "run": s.run, "reused": s.reused, "seed": seed} for s in steps
    ]
    journal.write_json(directory / "series.json", {"steps": written})


def _choose(operation: str, operations: list[str], config: Config) -> Step:
    """A new run for a step; for one of another series, a finished run of it if there is one."""
    if config.reuse and _model(operation) != _model(operations[-1]):
        wanted = {"seed": config.seed} | config.passed()
        del wanted["threads"]
        if found := next(child_runs.equivalent_runs(operation, wanted), None):
            return Step(operation, found, reused=True)
    return Step(operation, uuid.uuid4().hex)


def _model(operation: str) -> str:
    return operation.partition(":")[0]


def _complete(run: record.Run, step: Step, before: Step | None, config: Config) -> None:
    """Runs a step to its end: from nothing, from where it was interrupted, or not at all."""
    if step.finished:
        run.event(f"{step.operation}: {'reused, ' if step.reused else ''}run {step.run[:8]}")
        return
    flags = {"seed": config.seed} | config.passed()
    if before is not None and config.chain:
        flags["previous"] = before.run
    run.event(f"{step.operation}: run {step.run[:8]}")
    process = step.start(flags)
    try:
        code = process.wait()
    finally:
        child_runs.stop(process)
    if code != 0:
        raise record.RunFailed(f"{step.operation}, run {step.run[:8]}, ended with status {code}")


def _result(steps: list[Step], config: Config) -> dict[str, Any]:
    from door import continual
    from door.metrics import final_matrix

    results = [step.result_json for step in steps]
    rates = [each["result"]["objective"]["value"] for each in results]
    metrics = {
        f"opening_rate/{i}_{each['result']['task']}": rates[i] for i, each in enumerate(results)
    }
    folders = [step.directory for step in steps]
    matrix = final_matrix(folders, threads=config.threads, reported=True)
    if len(steps) > 1:
        metrics |= {
            "accuracy": continual.accuracy(matrix),
            "remembering": continual.remembering(matrix),
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
        "env_steps": sum(each["result"]["env_steps"] for each in results),
        "variant": results[-1]["result"]["variant"],
    }


def _link(directory: Path, index: int, step: Step) -> None:
    """`steps/<task id>_<task>`, by which the step's files are found from here."""
    link = directory / "steps" / f"{index}_{step.result_json['result']['task']}"
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(step.directory, link.parent))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
