"""Trains a chain of stages: each a run of its own that begins with the weights of the one before."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option
from skills import schedule


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:curriculum`."""

    name: str = option("gtg", "the chain", choices=tuple(schedule.CURRICULA))
    train_flags: str = option("", 'flags of every stage, as "stop-at=0.98 entropy-coef=0.02"')
    reuse: bool = option(True, "take finished stages of the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.train_flags.split():
            name, _, value = word.partition("=")
            if not name or not value or name in ("seed", "stage", "pretrained"):
                raise record.UserError(f"--train-flags: {word!r} is no name=value of skill:train")


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing and returns what the record says."""
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise record.UserError("a curriculum runs under Guild: `guild run skill:curriculum`")
    with record.start(config, study="skills") as run:
        links = child_runs.plan(run.directory / "curriculum.json", links_of(config))
        for link in links.values():
            run.add_parent(link.run)
        child_runs.run_all(
            links, 1, run.event, lambda done: run.progress(done, len(links), "stage")
        )
        curves(run, links)
        return run.finish(summary(links))


def links_of(config: Config) -> list[PlannedRun]:
    """The stages' runs; a stage whose predecessor has to be trained anew is trained anew too."""
    flags = {"seed": str(config.seed)}
    flags |= dict(word.split("=", 1) for word in config.train_flags.split())
    links: list[PlannedRun] = []
    for stage in schedule.chain(schedule.CURRICULA[config.name]):
        after = {"previous": links[-1].name} if links else {}
        before = {"previous": links[-1].run} if links else {}  # whose weights it begins with
        known = config.reuse and all(before.values())
        found = (
            next(child_runs.equivalent_runs(f"skill:{stage}", flags | before), "") if known else ""
        )
        links.append(PlannedRun(f"skill:{stage}", found, name=stage, flags=flags, after=after))
    return links


def curves(run: record.Run, links: dict[str, PlannedRun]) -> None:
    """Logs validations and step sizes of all stages by the steps of the whole chain, and draws them."""
    from runcatalog.record import journal
    from skills import drawing

    told = {"validation/sampled": "success", "lr": "lr"}
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in told.values()}
    ends: dict[str, float] = {}
    begun = 0
    for stage, link in links.items():
        points = list(journal.read_points(link.directory / "journal/metrics.jsonl"))
        steps = link.result_json["result"]["env_steps"]
        each = steps / max(max(point.step for point in points), 1)  # of an update
        for point in (point for point in points if point.name in told):
            name, at = told[point.name], begun + round(point.step * each)
            run.log({f"chain/{name}": point.value}, at)
            for axis, value in zip(found[name], (at, point.value), strict=True):
                axis.append(value)
        begun += steps
        ends[stage] = begun
        run.log({f"chain/end/{stage}": begun}, begun)
    shown = drawing.Chain(ends, found["success"], found["lr"])
    drawing.chain(run.artifact("chain.svg"), shown)


def summary(links: dict[str, PlannedRun]) -> dict[str, Any]:
    """The last stage's success, and a line for each stage."""
    rows, steps, seconds, last = [], 0, 0.0, {}
    for name, link in links.items():
        written = link.result_json
        last = written["result"]
        steps += last["env_steps"]
        seconds += written["wall_seconds"]
        metrics = last["metrics"]
        rows.append([
            name, f"{last['env_steps'] / 1e6:.1f}", f"{written['wall_seconds'] / 60:.1f}",
            f"{100 * metrics['success/sampled']:.1f}", f"{100 * metrics['success/greedy']:.1f}", link.run[:8],
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
