"""A planner and an executor that know the whole level: what others are measured against, and learn from."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from skills.levels.codes import (
    COLOUR_SHIFT,
    DONE,
    DOOR,
    KEY,
    OPEN,
    PKP,
    STATE_SHIFT,
    TARGET,
    TGL,
    THREE_BITS,
    TWO_BITS,
    TYPE_MASK,
)  # fmt: skip
from skills.levels.engine import Engine, Step
from skills.levels.solver import solutions
from skills.levels.state import Levels
from skills.planner.executors import Executor
from skills.planner.subtasks import EXPLORE, GO_TO_GOAL, code, words

_KEPT = 20_000  # moments of which the way on is remembered


class Oracle:
    """Shortest solutions of the composite task from any moment of it."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[NDArray[np.int8] | None, str]] = OrderedDict()

    def actions(self, level: Levels) -> NDArray[np.int8] | None:
        """The actions from here on, int8 [n]; None: there is no way. `level`: one."""
        return self._solved(level)[0]

    def subtask(self, level: Levels) -> str:
        """What the solution does first, in words: it picks up a key, opens a door, or goes to the goal; "": no way."""
        return self._solved(level)[1]

    def _solved(self, level: Levels) -> tuple[NDArray[np.int8] | None, str]:
        key = _moment(level)
        if key not in self._known:
            (path,) = solutions(level)
            if path is None:
                self._known[key] = None, ""
            else:
                self._follow(level, path)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[key]

    def _follow(self, level: Levels, path: NDArray[np.int8]) -> None:
        """Walks the solution and writes down the way on from each of its moments."""
        engine = Engine(level, 1, auto_reset=False)
        engine.load(level)
        moments, events = [level], []
        for action in path:
            engine.step(np.full(1, action, np.int64))
            moments.append(engine.state())
            events.append(_event(moments[-2], moments[-1]))
        following = GO_TO_GOAL
        for i in range(len(path) - 1, -1, -1):
            following = events[i] or following
            self._known[_moment(moments[i])] = path[i:], following


def _moment(level: Levels) -> bytes:
    return b"".join(
        each.tobytes() for each in (level.cells, level.agent, level.carried, level.mission)
    )


def _event(before: Levels, after: Levels) -> str:
    """The sub-task that a step fulfilled."""
    hand = int(after.carried[0, 0])
    if hand and not before.carried[0, 0]:
        return words(PKP, hand >> COLOUR_SHIFT & THREE_BITS, KEY)
    for cell in after.cells[before.cells != after.cells].tolist():
        if cell & TYPE_MASK == DOOR and cell >> STATE_SHIFT & TWO_BITS == OPEN:
            return words(TGL, cell >> COLOUR_SHIFT & THREE_BITS, DOOR)
    return ""


def aimed(level: Levels, subtask: str) -> Levels:
    """Returns a level with a sub-task as its mission, for the search; its target may be in one of several cells."""
    verb, colour, kind, _ = (int(each) for each in code(subtask))
    cells = level.cells & ~np.uint16(TARGET)
    same = ((cells & TYPE_MASK) == kind) & ((cells >> COLOUR_SHIFT & THREE_BITS) == colour)
    # The search lets a mission to open a door spoil by opening another one, by the kind that it names.
    mission = np.array([[verb, colour, 0, 0]], np.uint8)
    return replace(level, cells=np.where(same, cells | TARGET, cells), mission=mission)


class SearchExecutor(Executor):
    """Carries out sub-tasks on shortest ways. What the solution of the whole would do next, it does as the solution
    does: of two equally short ways to a second key, one may lay the first into the only way on.

    Args:
        count: Environments.
        oracle: Knows that solution. To explore is to follow it.
    """

    def __init__(self, count: int, oracle: Oracle) -> None:
        self._oracle = oracle
        self._paths: list[list[int]] = [[] for _ in range(count)]

    def begin(self, n: int, subtask: str, level: Levels) -> None:
        """See `Executor`."""
        if subtask in (EXPLORE, self._oracle.subtask(level)):
            path = self._oracle.actions(level)
        else:
            (path,) = solutions(aimed(level, subtask))
        self._paths[n] = [] if path is None else path.tolist()[::-1]

    def stuck(self, n: int) -> bool:
        """See `Executor`."""
        return not self._paths[n]

    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """See `Executor`."""
        return np.array([path.pop() if path else DONE for path in self._paths], np.int64)
