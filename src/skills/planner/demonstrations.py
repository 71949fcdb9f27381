"""Demonstrations of planning: prompts with the oracle's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runcatalog import record
from runcatalog.record.journal.files import sync_directory
from skills.levels.codes import COLOURS, KEY, LOCKED, PKP
from skills.planner import prompts
from skills.planner.episodes import EpisodeRunner
from skills.planner.oracle import Oracle, SearchExecutor
from skills.planner.planners import OraclePlanner, Planner, RandomPlanner
from skills.planner.prompts import Situation
from skills.planner.subtasks import EXPLORE, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 100  # levels that are played together
# One after the other for the batches, so that prompts contain sub-tasks that were given up
PATIENCE = (8, 16, 40)


class Demonstration(NamedTuple):
    """A prompt and its answer.

    Attributes:
        prompt: Text of `prompts.describe`.
        subtask: The oracle's next sub-task.
    """

    prompt: str
    subtask: str


class Teacher(Planner):
    """The oracle with random sub-tasks in between, so that it demonstrates how to recover; records its own choices.

    Where the oracle would take a key whose lock is still unobserved, it explores instead.

    Args:
        oracle: The oracle.
        seeds: Streams of the run.
        astray: Share of random sub-tasks.

    Attributes:
        demonstrations: The demonstrations so far.
    """

    def __init__(self, oracle: Oracle, seeds: record.Seeds, astray: float) -> None:
        self._oracle, self._random = OraclePlanner(oracle), RandomPlanner(seeds)
        self._seeds, self._astray = seeds, astray
        self.demonstrations: list[Demonstration] = []

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self._subtask(situation) for situation in situations]

    def _subtask(self, situation: Situation) -> str:
        best = self._oracle.subtask(situation)
        if best not in [EXPLORE, *knowable(situation)]:
            best = EXPLORE
        self.demonstrations.append(Demonstration(prompts.describe(situation), best))
        index = situation.episode << 10 | situation.call
        if self._seeds.generator("astray", index).random() < self._astray:
            return self._random.subtask(situation)
        return best


def knowable(situation: Situation) -> list[str]:
    """Return the options without keys whose locked door is unobserved; the mission's door counts as observed."""
    colours = {thing.colour for thing in situation.things if thing.state == LOCKED}
    locks = {COLOURS[colour] for colour in colours} | set(situation.mission.split()[2:3])
    others = {words(PKP, colour, KEY) for colour, name in enumerate(COLOURS) if name not in locks}
    return [option for option in situation.options if option not in others]


def demonstrate(
    stage: str,
    levels: NDArray[np.int64],
    seeds: record.Seeds,
    astray: float,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Demonstration]:
    """Return the demonstrations of levels.

    Args:
        stage: Stage of the composite task.
        levels: Seeds of the levels.
        seeds: Streams of the random sub-tasks.
        astray: See `Teacher`.
        on_progress: Called with the number of levels done.
    """
    demonstrations: list[Demonstration] = []
    for index, start in enumerate(range(0, len(levels), BATCH)):
        part, oracle = levels[start : start + BATCH], Oracle()
        teacher = Teacher(oracle, seeds, astray)
        executor = SearchExecutor(len(part), oracle)
        EpisodeRunner(stage, part, teacher, executor, PATIENCE[index % len(PATIENCE)]).play()
        demonstrations += teacher.demonstrations
        on_progress(start + len(part))
    return demonstrations


def load_or_make(path: Path, make: Callable[[], list[Demonstration]]) -> list[Demonstration]:
    """Return the demonstrations of a file, a JSON array per line; make and save them if it does not exist."""
    if not path.exists():
        lines = [json.dumps(demonstration) + "\n" for demonstration in make()]
        part = path.with_suffix(".part")
        part.write_text("".join(lines), encoding="utf-8")
        part.rename(path)
        sync_directory(path.parent)
    with path.open(encoding="utf-8") as file:
        return [Demonstration(*json.loads(line)) for line in file]
