"""Train a chain of stages, one run per stage, from the weights of the stage before."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs, finished_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option
from skills.learning import schedule


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:curriculum`."""

    name: str = option("gtg", "the chain", choices=tuple(schedule.CURRICULA))
    train_flags: str = option("", 'flags of every stage, as "stop-at=0.98 entropy-coef=0.02"')
    reuse: bool = option(True, "take finished stages of the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stage_flags()  # raises an error where they cannot be used

    def stage_flags(self) -> dict[str, str]:
        """Return `train_flags` by name."""
        own = ("seed", "stage", "pretrained")
        return record.assignments("train-flags", self.train_flags, taken=own, by="the curriculum")


def main(config: Config) -> dict[str, Any]:
    """Train the missing stages and return the record's result."""
    child_runs.require_guild("a curriculum", "guild run skill:curriculum")
    with record.start(config, study="skills") as run:
        stages = child_runs.run_plan(run, "curriculum.json", plan(config), unit="stage")
        log_curves(run, stages)
        name, last = list(stages.items())[-1]
        child_runs.declare_evaluation(run, [last], f"test levels of {name}")
        return run.finish(result(stages))


def plan(config: Config) -> list[PlannedRun]:
    """Return the stages' runs; a stage is trained anew if the one before it is."""
    flags = {"seed": str(config.seed)} | config.stage_flags()
    planned: list[PlannedRun] = []
    for stage in schedule.chain(schedule.CURRICULA[config.name]):
        after = {"previous": planned[-1].name} if planned else {}
        previous = {"previous": planned[-1].run} if planned else {}  # whose weights it begins with
        run_id = ""
        if config.reuse and all(previous.values()):
            run_id = next(finished_runs.equivalent_runs(f"skill:{stage}", flags | previous), "")
        planned.append(PlannedRun(f"skill:{stage}", run_id, name=stage, flags=flags, after=after))
    return planned


def log_curves(run: record.Run, stages: dict[str, PlannedRun]) -> None:
    """Log validations and step sizes of all stages over the steps of the whole chain, and draw them."""
    from runcatalog.record.journal.metrics import read_points
    from skills.figures import plots

    names = {"validation/sampled": "success", "lr": "lr"}
    curves: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names.values()}
    ends: dict[str, float] = {}
    start = 0
    for stage, child in stages.items():
        points = list(read_points(child.directory / "journal/metrics.jsonl"))
        steps = child.result_json["result"]["env_steps"]
        update_steps = steps / max(max(point.step for point in points), 1)
        for point in (point for point in points if point.name in names):
            name, at = names[point.name], start + round(point.step * update_steps)
            run.log({f"chain/{name}": point.value}, at)
            for axis, value in zip(curves[name], (at, point.value), strict=True):
                axis.append(value)
        start += steps
        ends[stage] = start
        run.log({f"chain/end/{stage}": start}, start)
    plots.chain(run.artifact("chain.svg"), plots.Chain(ends, curves["success"], curves["lr"]))


def result(stages: dict[str, PlannedRun]) -> dict[str, Any]:
    """Return the record's result: the last stage's success, and a row per stage."""
    rows, steps, seconds, last = [], 0, 0.0, {}
    for name, child in stages.items():
        written = child.result_json
        last = written["result"]
        steps += last["env_steps"]
        seconds += written["wall_seconds"]
        metrics = last["metrics"]
        rows.append([
            name, f"{last['env_steps'] / 1e6:.1f}", f"{written['wall_seconds'] / 60:.1f}",
            f"{100 * metrics['success/sampled']:.1f}", f"{100 * metrics['success/greedy']:.1f}", child.run[:8],
        ])  # fmt: skip
    return {
        "objective": {**last["objective"], "at": steps, "axis": "step"},
        "metrics": last["metrics"] | {"training_minutes": seconds / 60},
        "env_steps": steps,
        "task": name,
        "table": {
            "columns": ["stage", "steps [M]", "minutes", "sampled [%]", "greedy [%]", "run"],
            "rows": rows,
        },
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
