"""Levels that begin where a planner gives a sub-task, to train and test agents that carry out sub-tasks.

In the levels of a single verb an agent begins with an empty hand. Within the composite task a sub-task may begin with a
key in the hand, in an open door, or beside a key that was laid down. An object laid down where it cuts the level in two
blocks the rest of the task, so a sub-task fails by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label

from skills.agents.policy import Agent
from skills.levels.codes import BALL, BOX, CLEAR, EMPTY, TYPE_MASK, WALL
from skills.levels.engine import Step
from skills.levels.state import Levels
from skills.planner.episodes import EpisodeRunner
from skills.planner.executors import AgentExecutor, Executor
from skills.planner.oracle import Oracle, aimed
from skills.planner.planners import OraclePlanner
from skills.planner.subtasks import EXPLORE, code

BATCH = 250  # levels that are played together
PATIENCE = 20  # steps after which a sub-task is given up, as in `skill:llm`


class Recorder(Executor):
    """Carries out sub-tasks with another executor, and notes the level in which each begins; exploring has none.

    Attributes:
        levels: The levels so far, one each.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.levels: list[Levels] = []

    def begin(self, n: int, subtask: str, level: Levels) -> None:
        """See `Executor`."""
        if subtask != EXPLORE:
            self.levels.append(level_of(level, subtask))
        self._executor.begin(n, subtask, level)

    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """See `Executor`."""
        return self._executor.act(step, withheld)


def level_of(level: Levels, subtask: str) -> Levels:
    """Return a level of the composite task, in any of its states, as one whose mission is a sub-task."""
    goal = aimed(level, subtask)
    cells = np.where(bottlenecks(goal.cells[0]), goal.cells | CLEAR, goal.cells)
    steps = np.zeros_like(level.steps)
    return replace(goal, cells=cells, mission=code(subtask)[None], steps=steps)


def bottlenecks(cells: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Return the empty cells that alone connect parts of a level, bool [height, width]; cells: uint16 [height, width].

    Doors count as open, and keys as free cells: they can be lifted.
    """
    kinds = cells & TYPE_MASK
    free = ~np.isin(kinds, (WALL, BALL, BOX))
    _, parts = label(free)
    cut = np.zeros_like(free)
    for place in zip(*np.nonzero(kinds == EMPTY), strict=True):
        free[place] = False
        cut[place] = label(free)[1] > parts
        free[place] = True
    return cut


def subtask_levels(
    stage: str,
    seeds: NDArray[np.int64],
    agent: Agent,
    uniform: np.random.Generator,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Levels:
    """Return the levels in which the oracle's sub-tasks begin while an agent carries them out.

    Args:
        stage: Stage of the composite task.
        seeds: Seeds of its levels.
        agent: The agent, whose memory is empty at every sub-task.
        uniform: Draws its actions.
        on_progress: Called with the number of episodes done.
    """
    parts: list[Levels] = []
    done = 0
    for part in np.split(seeds, range(BATCH, len(seeds), BATCH)):
        recorder = Recorder(AgentExecutor(agent, len(part), uniform, forgets=True))
        planner = OraclePlanner(Oracle(unblocks=True))
        EpisodeRunner(stage, part, planner, recorder, PATIENCE, careful=True).play()
        parts += recorder.levels
        done += len(part)
        on_progress(done)
    return Levels.join(parts)
