"""Scripted explorers in every task of some rooms: what an agent reaches that explores without detours and remembers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from darkroom.distillation import figures, scores
from darkroom.distillation.ad_options import LARGEST_SIDE
from darkroom.distillation.scores import PartScores
from darkroom.rooms import grid
from darkroom.rooms.key_tasks import draw_key_tasks
from darkroom.rooms.play import Tasks
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:explore`."""

    sizes: str = option("9 13", "sides of the rooms [cells]")
    limit: int = option(20, "steps of an episode", low=1, high=255)
    terminating: bool = option(False, "the goal ends an episode")
    key_tasks: int = option(
        0,
        "Key-To-Door: number of tasks of every room, drawn by the seed as in a2c; 0: all without a key",
        low=0,
    )
    episodes: int = option(80, "episodes of an agent", low=5, high=10_000)
    copies: int = option(20, "agents per task", low=1, high=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.sizes.split() or [""]:
            if not (word.isdecimal() and 2 <= int(word) <= LARGEST_SIDE):
                raise record.UserError(
                    f'--sizes: {word!r} is no side from 2 to {LARGEST_SIDE}; say "9 13"'
                )
            if problem := grid.reach_problem(int(word), self.limit, self.tasks_of(int(word))):
                raise record.UserError(f"--limit: {problem}")

    @property
    def sides(self) -> list[int]:
        """Sides of the rooms, each once."""
        return list(dict.fromkeys(map(int, self.sizes.split())))

    def tasks_of(self, side: int) -> list[int]:
        """Return the tasks in rooms of a side."""
        if self.key_tasks:
            return draw_key_tasks(self.key_tasks, side, self.seed)
        return grid.tasks(side).tolist()


def main(config: Config) -> dict[str, Any]:
    """Let explorers act in all tasks and return the result."""
    with record.start(config, study="darkroom") as run:
        parts = []
        for index, side in enumerate(config.sides):
            tasks = Tasks.of_rooms(
                [(side, config.tasks_of(side))], config.limit, config.terminating
            )
            rng = run.seeds.generator("explorers", side)
            parts.append(scores.of_explorers(tasks, config.episodes, config.copies, rng))
            _log(run, parts[-1])
            run.progress(index + 1, len(config.sides), "size")
        with record.optional(run, "figure"):
            curves = [part.learning_curve() for part in parts]
            figures.in_context(run.artifact("in_context.svg"), curves)
        return run.finish(_result(config, parts))


def _log(run: record.Run, part: PartScores) -> None:
    """Log return and environment steps by episode."""
    for index, (value, steps) in enumerate(zip(part.curve(), part.steps(), strict=True)):
        run.log({f"{part.name}/return": value, f"{part.name}/steps": steps}, index + 1)


def _result(config: Config, parts: list[PartScores]) -> dict[str, Any]:
    """Return the result, whose objective is the first size's first block."""
    first = parts[0]
    metrics = {name: value for part in parts for name, value in scores.metrics(part).items()}
    blocks = scores.blocks(config.episodes)
    block = next(iter(blocks))
    return {
        "objective": {
            "name": f"{first.name}/{block}", "value": metrics[f"{first.name}/{block}"],
            "kind": "mean", "goal": "max", "at": blocks[block], "axis": "episode",
        },
        "summary": (
            f"{metrics[f'{first.name}/{block}']:.3f} of the best return in the first {blocks[block]} episodes, "
            f"{len(first.goals)} tasks x {config.copies} agents, {first.size} x {first.size}"
        ),
        "metrics": metrics,
        "table": scores.table(parts),
        "env_steps": sum(int(part.lengths.sum()) for part in parts),
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
