"""Measure the stages: success of random actions, shortest solutions, and a picture of the levels."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.model.statistics import wilson
from runcatalog.record import option

if TYPE_CHECKING:
    import numpy as np

    from skills.levels.state import Levels


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:levels`."""

    episodes: int = option(20_000, "episodes of random actions per stage", low=100)
    solved: int = option(1000, "levels per stage for the solver", low=10)
    training: int = option(
        150_000, "random training seeds per stage, in whose levels the test levels are counted", low=100
    )  # fmt: skip


@dataclass(frozen=True)
class StageMeasurements:
    """Measurements of one stage.

    Attributes:
        random: Number of episodes in which random actions succeeded.
        episodes: Number of episodes of random actions.
        lengths: Lengths of the shortest solutions that succeed in the engine, int [n] [steps].
        levels: Number of levels for the solver.
        repeats: Test levels that occur in a training which does not leave them out, see `level_sets.training_repeats`.
    """

    random: int
    episodes: int
    lengths: np.ndarray
    levels: int
    repeats: dict[str, int]


def main(config: Config) -> dict[str, Any]:
    """Measure all stages and return the record's result."""
    from skills.agents.evaluation import FIRST_TRAINING_SEED
    from skills.learning.level_sets import training_repeats
    from skills.levels.generate import levels
    from skills.levels.minigrid.pictures import OWN_STAGES, contact_sheet
    from skills.levels.stages import STAGES

    with record.start(config, study="skills") as run:
        measurements = {}
        for index, stage in enumerate(STAGES):
            rng = run.seeds.generator("actions", index)
            drawn = levels(stage, rng.integers(2**62, size=config.solved))
            lengths = solve(drawn)
            succeeded = random_play(stage, config.episodes, rng)
            seeds = rng.integers(FIRST_TRAINING_SEED, 2**63, size=config.training)
            measurements[stage] = StageMeasurements(
                succeeded, config.episodes, lengths, config.solved, training_repeats(stage, seeds)
            )
            run.event("  ".join([stage, *_row(stage, measurements[stage])[1:]]))
            run.progress(index + 1, len(STAGES), "stage")
        contact_sheet(run.artifact("levels.png"), OWN_STAGES)
        return run.finish(_result(measurements))


def random_play(stage: str, episodes: int, rng: np.random.Generator) -> int:
    """Play episodes on different levels with uniformly random actions; return the number of successes."""
    import numpy as np

    from skills.levels.codes import ACTIONS
    from skills.levels.engine import Engine
    from skills.levels.stages import MAX_STEPS

    engine = Engine(stage, episodes, auto_reset=False)
    engine.reset(rng.integers(2**62, size=episodes))
    unfinished, succeeded = np.ones(episodes, bool), 0
    for _ in range(MAX_STEPS):
        step = engine.step(rng.integers(ACTIONS, size=episodes))
        succeeded += int((unfinished & (step.reward > 0)).sum())
        unfinished &= ~(step.terminated | step.truncated)
    return succeeded


def solve(drawn: Levels) -> np.ndarray:
    """Solve levels and play the solutions in the engine; return the lengths of those that succeed, int [n]."""
    import numpy as np

    from skills.levels.codes import DONE
    from skills.levels.engine import Engine
    from skills.levels.solver import solutions

    paths = solutions(drawn)
    lengths = np.array([-1 if path is None else len(path) for path in paths])
    engine = Engine(drawn, len(drawn), auto_reset=False)
    engine.load(drawn)
    worked = np.zeros(len(drawn), bool)
    for now in range(lengths.max()):
        actions = [DONE if path is None or now >= len(path) else path[now] for path in paths]
        step = engine.step(np.array(actions))
        worked |= (step.reward > 0) & (lengths == now + 1)
    return lengths[worked]


def _row(stage: str, measured: StageMeasurements) -> list[str]:
    from skills.levels.stages import STAGES, Stage

    entry = STAGES[stage]
    if isinstance(entry, Stage):
        doors = f"{entry.closed:.0%} closed, {entry.opened:.0%} open" if entry.closed else "-"
        cells = [_range(entry.rooms), doors, _range(entry.locks), _range(entry.distractors)]
    else:
        cells = ["as " + ", ".join(entry), "", "", ""]
    low, high = wilson(measured.random, measured.episodes)
    percent = 100 * measured.random / measured.episodes
    return [
        stage, *cells, f"{percent:.2f} [{100 * low:.2f}, {100 * high:.2f}]",
        f"{100 * len(measured.lengths) / measured.levels:.1f}",
        f"{measured.lengths.mean():.1f}", f"{measured.lengths.max()}",
        *(str(measured.repeats[name]) for name in ("test_same", "test", "fresh")),
    ]  # fmt: skip


def _range(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"


def _result(measurements: dict[str, StageMeasurements]) -> dict[str, Any]:
    """Return the record's result."""
    from skills.levels.stages import LAST

    worst = max(LAST, key=lambda stage: measurements[stage].random)
    random = measurements[worst].random / measurements[worst].episodes
    solved = sum(len(m.lengths) for m in measurements.values())
    levels = sum(m.levels for m in measurements.values())
    longest = max(int(m.lengths.max()) for m in measurements.values())
    return {
        "objective": {
            "name": "solvable", "value": solved / levels, "kind": "rate", "count": levels, "goal": "max",
        },
        "summary": (
            f"{solved:,} of {levels:,} levels solved, in at most {longest} steps; random actions solve at most "
            f"{100 * random:.2f} % of a chain's last stage ({worst})"
        ),
        "metrics": {
            "solvable": solved / levels, "longest_solution": longest, "random_last_stages": random,
            **{f"random/{stage}": m.random / m.episodes for stage, m in measurements.items()},
            **{
                f"repeats/{stage}/{name}": float(count)
                for stage, m in measurements.items()
                for name, count in m.repeats.items()
            },
            **{f"steps/{stage}": float(m.lengths.mean()) for stage, m in measurements.items()},
        },
        "table": {
            "columns": [
                "stage", "rooms", "doors", "locks", "distractors", "random [%]", "solved [%]",
                "shortest, mean [steps]", "longest [steps]", "test levels in training", "turned or mirrored too",
                "fresh ones",
            ],
            "rows": [_row(stage, m) for stage, m in measurements.items()],
        },
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
