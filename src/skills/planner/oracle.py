"""Shortest solutions of the composite task and an executor of shortest paths: upper bound and teacher of planners."""

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

_CACHED = 20_000  # states whose solution is cached


class Oracle:
    """Shortest solutions of the composite task from any state of it, cached.

    Args:
        unblocks: Whether to look for a solution that lays down the key in the hand to lift another that is in the way,
            where there is no other solution.
    """

    def __init__(self, *, unblocks: bool = False) -> None:
        self._unblocks = unblocks
        self._cache: OrderedDict[bytes, tuple[NDArray[np.int8] | None, str]] = OrderedDict()

    def actions(self, level: Levels) -> NDArray[np.int8] | None:
        """Return the actions of a shortest solution of one level, int8 [n]; None without a solution."""
        return self._solved(level)[0]

    def subtask(self, level: Levels) -> str:
        """Return the first sub-task of the solution: a key, a door, or the goal; "" without a solution."""
        return self._solved(level)[1]

    def _solved(self, level: Levels) -> tuple[NDArray[np.int8] | None, str]:
        key = _state_key(level)
        if key not in self._cache:
            (path,) = solutions(level)
            if path is None and self._unblocks:
                (path,) = solutions(level, drops_any=True)
            if path is None:
                self._cache[key] = None, ""
            else:
                self._follow(level, path)
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return self._cache[key]

    def _follow(self, level: Levels, path: NDArray[np.int8]) -> None:
        """Follow a solution and cache the remaining solution of all states on it."""
        engine = Engine(level, 1, auto_reset=False)
        engine.load(level)
        states, events = [level], []
        for action in path:
            engine.step(np.full(1, action, np.int64))
            states.append(engine.state())
            events.append(_event(states[-2], states[-1]))
        following = GO_TO_GOAL
        for i in range(len(path) - 1, -1, -1):
            following = events[i] or following
            self._cache[_state_key(states[i])] = path[i:], following


def _state_key(level: Levels) -> bytes:
    return b"".join(
        array.tobytes() for array in (level.cells, level.agent, level.carried, level.mission)
    )


def _event(before: Levels, after: Levels) -> str:
    """Return the sub-task that a step fulfilled, or ""."""
    hand = int(after.carried[0, 0])
    if hand and not before.carried[0, 0]:
        return words(PKP, hand >> COLOUR_SHIFT & THREE_BITS, KEY)
    for cell in after.cells[before.cells != after.cells].tolist():
        if cell & TYPE_MASK == DOOR and cell >> STATE_SHIFT & TWO_BITS == OPEN:
            return words(TGL, cell >> COLOUR_SHIFT & THREE_BITS, DOOR)
    return ""


def aimed(level: Levels, subtask: str) -> Levels:
    """Return a level with a sub-task as its mission, for the solver; several cells may hold its target."""
    verb, colour, kind, _ = map(int, code(subtask))
    cells = level.cells & ~np.uint16(TARGET)
    same = ((cells & TYPE_MASK) == kind) & ((cells >> COLOUR_SHIFT & THREE_BITS) == colour)
    # Kind 0: with the kind door, the solver would forbid the opening of other doors.
    mission = np.array([[verb, colour, 0, 0]], np.uint8)
    return replace(level, cells=np.where(same, cells | TARGET, cells), mission=mission)


class SearchExecutor(Executor):
    """Carries out sub-tasks on shortest paths. The next sub-task of the whole solution is done as the solution does it:
    of two equally short paths to a second key, one may drop the first key onto the only path to the goal.

    Args:
        count: Number of environments N.
        oracle: The solution of the whole task, which it follows to explore.
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
