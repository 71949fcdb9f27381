"""The sub-tasks from which a planner chooses, in words and as missions of an agent.

All of them are this project's choice: the source says that a language model and an agent shared the work, not how.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skills.levels.codes import (
    DOOR,
    GOAL,
    GTG,
    GTO,
    KEY,
    OPEN,
    PKP,
    TGL,
    mission_code,
    mission_text,
)
from skills.planner.scene import Scenes, Thing

EXPLORE = "explore"
HISTORY = 6  # earlier sub-tasks in a prompt


def words(verb: int, colour: int = 0, kind: int = 0) -> str:
    """Return a sub-task in words."""
    return mission_text(np.array((verb, colour, kind, 0), np.uint8))


GO_TO_GOAL = words(GTG)


def code(subtask: str) -> NDArray[np.uint8]:
    """Return a sub-task as the mission of an agent, uint8 [4].

    No verb means to explore, so an agent explores with the mission to go to the goal, which has taught it to search.
    """
    return mission_code(GO_TO_GOAL if subtask == EXPLORE else subtask)


def options(scenes: Scenes, n: int, things: list[Thing]) -> list[str]:
    """Return the sub-tasks that the observations allow, without those that are fulfilled.

    The only sub-task with balls and boxes is to go there: picking one up or opening it ends the composite task.
    """
    subtasks = [EXPLORE]
    if any(thing.kind == GOAL for thing in things):
        subtasks.append(GO_TO_GOAL)
    subtasks += [
        words(TGL, thing.colour, DOOR)
        for thing in things
        if thing.kind == DOOR and thing.state != OPEN
    ]
    subtasks += [words(PKP, thing.colour, KEY) for thing in things if thing.kind == KEY]
    subtasks += [words(GTO, thing.colour, thing.kind) for thing in things if thing.kind != GOAL]
    return [subtask for subtask in dict.fromkeys(subtasks) if not done(subtask, scenes, n, None)]


def done(subtask: str, scenes: Scenes, n: int, observed: int | None) -> bool:
    """Return whether a sub-task is fulfilled according to the observations.

    Args:
        subtask: In words.
        scenes, n: Observations, and the environment.
        observed: `scenes.observed(n)` when the sub-task began; None for one that has not begun.
    """
    if subtask == EXPLORE:
        return observed is not None and scenes.observed(n) > observed
    verb, colour, kind, _ = map(int, code(subtask))
    if verb == PKP:
        return scenes.carried(n) == (kind, colour)
    if verb == TGL:
        return scenes.door_open(n, colour)
    return verb == GTO and scenes.faced(n) == (kind, colour)  # at the goal the episode ends
