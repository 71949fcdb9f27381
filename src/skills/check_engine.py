"""Compare the engine with minigrid on all stages and on levels of BabyAI and MiniGrid, array by array."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from skills.levels.minigrid.comparison import Comparison


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:check`."""

    transitions: int = option(
        1_000_000, "transitions to compare, over all environments", low=10_000
    )
    envs: int = option(32, "environments per stage", low=1, high=1000)


def main(config: Config) -> dict[str, Any]:
    """Compare and return the record's result."""
    from skills.levels.minigrid.comparison import BABYAI, MINIGRID, Comparison
    from skills.levels.stages import STAGES

    names = (*STAGES, *BABYAI, *MINIGRID)
    steps = -(-config.transitions // (len(names) * config.envs))
    with record.start(config, study="skills") as run:
        parts = []
        for index, name in enumerate(names):
            part = Comparison(name, config.envs, run.seeds.generator("actions", index))
            part.play(steps)
            parts.append(part)
            counts = (
                f"{part.transitions} transitions, {part.mismatches} mismatches {dict(part.fields)}"
            )
            run.event(f"{name}: {counts}")
            run.progress(index + 1, len(names), "environment")
        run.artifact("environments.json").write_text(
            json.dumps([_numbers(n, p) for n, p in zip(names, parts, strict=True)], indent=1) + "\n"
        )
        return run.finish(_result(parts))


def _numbers(name: str, part: Comparison) -> dict[str, Any]:
    return {
        "name": name, "transitions": part.transitions, "mismatches": part.mismatches,
        "fields": dict(part.fields), "events": dict(part.events),
    }  # fmt: skip


def _result(parts: list[Comparison]) -> dict[str, Any]:
    """Return the record's result, with a table of events."""
    from skills.levels.minigrid.comparison import EVENTS, totals

    transitions, mismatches, fields, events = totals(parts)
    return {
        "objective": {"name": "mismatches", "value": mismatches, "kind": "mean", "goal": "min"},
        "summary": f"{mismatches} mismatches in {transitions:,} transitions of {len(parts)} environments",
        "metrics": {"mismatches": mismatches, "transitions": transitions},
        "env_steps": transitions,
        "table": {
            "columns": ["event", "times"],
            "rows": [[name, f"{events[name]:,}"] for name in EVENTS]
            + [[f"differs: {name}", f"{count:,}"] for name, count in fields.items()],
        },
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
