"""What each stage is like: random actions, shortest solutions, and a picture of its levels."""

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

    episodes: int = option(20_000, "of random actions in each stage", low=100)
    solved: int = option(1000, "levels of each stage that are solved", low=10)


@dataclass(frozen=True)
class Measured:
    """Of one stage.

    Attributes:
        random: Episodes in which random actions succeeded, of `episodes`.
        episodes: See `random`.
        lengths: Of the shortest solutions, those that work in the engine, int [n] [steps].
        levels: How many were to be solved.
    """

    random: int
    episodes: int
    lengths: np.ndarray
    levels: int


def main(config: Config) -> dict[str, Any]:
    """Measures and draws, and returns what the record says."""
    from skills.levels.generate import levels
    from skills.levels.minigrid.pictures import OWN, contact_sheet
    from skills.levels.stages import STAGES

    with record.start(config, study="skills") as run:
        found = {}
        for index, stage in enumerate(STAGES):
            rng = run.seeds.generator("actions", index)
            drawn = levels(stage, rng.integers(2**62, size=config.solved))
            lengths = solve(drawn)
            succeeded = random_play(stage, config.episodes, rng)
            found[stage] = Measured(succeeded, config.episodes, lengths, config.solved)
            run.event("  ".join([stage, *_row(stage, found[stage])[1:]]))
            run.progress(index + 1, len(STAGES), "stage")
        contact_sheet(run.artifact("levels.png"), OWN)
        return run.finish(_result(found))


def random_play(stage: str, episodes: int, rng: np.random.Generator) -> int:
    """Plays whole episodes, each on a level of its own, with uniform actions; how many succeeded."""
    import numpy as np

    from skills.levels.codes import ACTIONS
    from skills.levels.engine import Engine
    from skills.levels.stages import MAX_STEPS

    engine = Engine(stage, episodes, auto_reset=False)
    engine.reset(rng.integers(2**62, size=episodes))
    going, succeeded = np.ones(episodes, bool), 0
    for _ in range(MAX_STEPS):
        step = engine.step(rng.integers(ACTIONS, size=episodes))
        succeeded += int((going & (step.reward > 0)).sum())
        going &= ~(step.terminated | step.truncated)
    return succeeded


def solve(drawn: Levels) -> np.ndarray:
    """Searches a shortest solution of each level and plays it in the engine; lengths of those that work, int [n]."""
    import numpy as np

    from skills.levels.codes import DONE
    from skills.levels.engine import Engine
    from skills.levels.solver import solutions

    found = solutions(drawn)
    lengths = np.array([-1 if each is None else len(each) for each in found])
    engine = Engine(drawn, len(drawn), auto_reset=False)
    engine.load(drawn)
    worked = np.zeros(len(drawn), bool)
    for now in range(lengths.max()):
        actions = [DONE if each is None or now >= len(each) else each[now] for each in found]
        step = engine.step(np.array(actions))
        worked |= (step.reward > 0) & (lengths == now + 1)
    return lengths[worked]


def _row(stage: str, measured: Measured) -> list[str]:
    from skills.levels.stages import STAGES, Stage

    told = STAGES[stage]
    if isinstance(told, Stage):
        doors = f"{told.closed:.0%} closed, {told.opened:.0%} open" if told.closed else "-"
        cells = [_range(told.rooms), doors, _range(told.locks), _range(told.distractors)]
    else:
        cells = ["as " + ", ".join(told), "", "", ""]
    low, high = wilson(measured.random, measured.episodes)
    percent = 100 * measured.random / measured.episodes
    return [
        stage, *cells, f"{percent:.2f} [{100 * low:.2f}, {100 * high:.2f}]",
        f"{100 * len(measured.lengths) / measured.levels:.1f}",
        f"{measured.lengths.mean():.1f}", f"{measured.lengths.max()}",
    ]  # fmt: skip


def _range(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"


def _result(found: dict[str, Measured]) -> dict[str, Any]:
    """The record's numbers and its table."""
    from skills.levels.stages import LAST

    worst = max(LAST, key=lambda stage: found[stage].random)
    random = found[worst].random / found[worst].episodes
    solved = sum(len(each.lengths) for each in found.values())
    levels = sum(each.levels for each in found.values())
    longest = max(int(each.lengths.max()) for each in found.values())
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
            **{f"random/{stage}": each.random / each.episodes for stage, each in found.items()},
            **{f"steps/{stage}": float(each.lengths.mean()) for stage, each in found.items()},
        },
        "table": {
            "columns": [
                "stage", "rooms", "doors", "locks", "distractors", "random [%]", "solved [%]",
                "shortest, mean [steps]", "longest [steps]",
            ],
            "rows": [_row(stage, each) for stage, each in found.items()],
        },
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
