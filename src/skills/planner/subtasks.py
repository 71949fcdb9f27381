"""The closed list of sub-tasks, as a planner names them and as an agent is told them.

All that this project decided about it is here. The source tells that a language model and an agent shared the work, and
not how.
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
HISTORY = 6  # sub-tasks before this one that a planner is told


def words(verb: int, colour: int = 0, kind: int = 0) -> str:
    """Returns a sub-task in words."""
    return mission_text(np.array((verb, colour, kind, 0), np.uint8))


GO_TO_GOAL = words(GTG)


def code(subtask: str) -> NDArray[np.uint8]:
    """Returns the mission that an agent is told, uint8 [4].

    To explore is to look for the goal: no verb means it, and whoever learned to find the goal learned to search.
    """
    return mission_code(GO_TO_GOAL if subtask == EXPLORE else subtask)


def options(scenes: Scenes, n: int, things: list[Thing]) -> list[str]:
    """Returns what can be asked for, given what was seen; without what is fulfilled.

    Balls and boxes can be gone to and nothing else: to pick one up or to open it ends the composite task.
    """
    found = [EXPLORE]
    if any(thing.kind == GOAL for thing in things):
        found.append(GO_TO_GOAL)
    found += [
        words(TGL, each.colour, DOOR) for each in things if each.kind == DOOR and each.state != OPEN
    ]
    found += [words(PKP, each.colour, KEY) for each in things if each.kind == KEY]
    found += [words(GTO, each.colour, each.kind) for each in things if each.kind != GOAL]
    return [each for each in dict.fromkeys(found) if not done(each, scenes, n, 0)]


def done(subtask: str, scenes: Scenes, n: int, met: int) -> bool:
    """Whether a sub-task is fulfilled, as far as can be seen.

    Args:
        subtask: In words.
        scenes, n: What was seen by whom.
        met: `scenes.met(n)` when the sub-task began; 0 when nothing did.
    """
    if subtask == EXPLORE:
        return met > 0 and scenes.met(n) > met
    verb, colour, kind, _ = (int(each) for each in code(subtask))
    if verb == PKP:
        return scenes.carried(n) == (kind, colour)
    if verb == TGL:
        return scenes.door_open(n, colour)
    return verb == GTO and scenes.faced(n) == (kind, colour)  # at the goal the episode ends
