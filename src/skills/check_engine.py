"""Plays every stage, and levels of BabyAI and MiniGrid, in the engine and in minigrid, and compares every array."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from skills.levels.minigrid.comparison import Beside


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:check`."""

    transitions: int = option(1_000_000, "to be compared, over all environments", low=10_000)
    envs: int = option(32, "environments beside each other of each stage", low=1, high=1000)


def main(config: Config) -> dict[str, Any]:
    """Compares, and returns what the record says."""
    from skills.levels.minigrid.comparison import BABYAI, MINIGRID, Beside
    from skills.levels.stages import STAGES

    names = (*STAGES, *BABYAI, *MINIGRID)
    steps = -(-config.transitions // (len(names) * config.envs))
    with record.start(config, study="skills") as run:
        parts = []
        for index, name in enumerate(names):
            part = Beside(name, config.envs, run.seeds.generator("actions", index))
            part.play(steps)
            parts.append(part)
            told = (
                f"{part.transitions} transitions, {part.mismatches} mismatches {dict(part.fields)}"
            )
            run.event(f"{name}: {told}")
            run.progress(index + 1, len(names), "environment")
        run.artifact("environments.json").write_text(
            json.dumps([_numbers(n, p) for n, p in zip(names, parts, strict=True)], indent=1) + "\n"
        )
        return run.finish(_result(parts))


def _numbers(name: str, part: Beside) -> dict[str, Any]:
    return {
        "name": name, "transitions": part.transitions, "mismatches": part.mismatches,
        "fields": dict(part.fields), "events": dict(part.events),
    }  # fmt: skip


def _result(parts: list[Beside]) -> dict[str, Any]:
    """The record's numbers and its table of what occurred."""
    from skills.levels.minigrid.comparison import LOOKED_FOR, together

    transitions, mismatches, fields, events = together(parts)
    return {
        "objective": {"name": "mismatches", "value": mismatches, "kind": "mean", "goal": "min"},
        "summary": f"{mismatches} mismatches in {transitions:,} transitions of {len(parts)} environments",
        "metrics": {"mismatches": mismatches, "transitions": transitions},
        "env_steps": transitions,
        "table": {
            "columns": ["event", "times"],
            "rows": [[name, f"{events[name]:,}"] for name in LOOKED_FOR]
            + [[f"differs: {name}", f"{count:,}"] for name, count in fields.items()],
        },
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
