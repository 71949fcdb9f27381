"""What a planner is asked, and what the search would answer: demonstrations to learn planning from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from runcatalog import record
from runcatalog.record import journal
from skills.levels.codes import COLOURS, KEY, LOCKED, PKP
from skills.planner import prompts
from skills.planner.episodes import Episodes
from skills.planner.oracle import Oracle, SearchExecutor
from skills.planner.planners import OraclePlanner, Planner, RandomPlanner
from skills.planner.prompts import Situation
from skills.planner.subtasks import EXPLORE, words

BATCH = 100  # levels beside each other
PATIENCE = (8, 16, 40)  # in turn, so that sub-tasks that were given up are among what is told


class Demonstration(NamedTuple):
    """A question and its answer.

    Attributes:
        prompt: `prompts.describe`.
        subtask: What the search does next.
    """

    prompt: str
    subtask: str


class Teacher(Planner):
    """The search, which now and then lets chance decide, so that it has something to put right; writes down what it
    would have done itself. Where that takes a key of which nobody can know yet that it is the right one, it explores.

    Args:
        oracle: The search.
        seeds: Of the run.
        astray: Share of sub-tasks that chance decides.

    Attributes:
        said: The demonstrations so far.
    """

    def __init__(self, oracle: Oracle, seeds: record.Seeds, astray: float) -> None:
        self._right, self._wrong = OraclePlanner(oracle), RandomPlanner(seeds)
        self._seeds, self._astray = seeds, astray
        self.said: list[Demonstration] = []

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self._subtask(each) for each in situations]

    def _subtask(self, situation: Situation) -> str:
        right = self._right.subtask(situation)
        if right not in [EXPLORE, *knowable(situation)]:
            right = EXPLORE
        self.said.append(Demonstration(prompts.describe(situation), right))
        index = situation.episode << 10 | situation.call
        if self._seeds.generator("astray", index).random() < self._astray:
            return self._wrong.subtask(situation)
        return right


def knowable(situation: Situation) -> list[str]:
    """The options without keys whose locked door was not seen; the mission's door counts as seen."""
    kinds_of_lock = {each.colour for each in situation.things if each.state == LOCKED}
    locks = {COLOURS[each] for each in kinds_of_lock} | set(situation.mission.split()[2:3])
    others = {words(PKP, colour, KEY) for colour, name in enumerate(COLOURS) if name not in locks}
    return [each for each in situation.options if each not in others]


def demonstrate(
    stage: str,
    levels: range,
    seeds: record.Seeds,
    astray: float,
    told: Callable[[int], None] = lambda done: None,
) -> list[Demonstration]:
    """Returns the demonstrations of levels.

    Args:
        stage: Of the composite task.
        levels: Their seeds.
        seeds: Of what chance decides.
        astray: See `Teacher`.
        told: Is told how many levels are done.
    """
    found: list[Demonstration] = []
    for index, start in enumerate(range(0, len(levels), BATCH)):
        part, oracle = levels[start : start + BATCH], Oracle()
        teacher = Teacher(oracle, seeds, astray)
        executor = SearchExecutor(len(part), oracle)
        Episodes(stage, part, teacher, executor, PATIENCE[index % len(PATIENCE)]).play()
        found += teacher.said
        told(start + len(part))
    return found


def kept(path: Path, make: Callable[[], list[Demonstration]]) -> list[Demonstration]:
    """Returns the demonstrations of a file, a JSON array a line; makes and writes them if it is not there."""
    if not path.exists():
        lines = [json.dumps(each) + "\n" for each in make()]
        part = path.with_suffix(".part")
        part.write_text("".join(lines), encoding="utf-8")
        part.rename(path)
        journal.sync_directory(path.parent)
    with path.open(encoding="utf-8") as file:
        return [Demonstration(*json.loads(line)) for line in file]
