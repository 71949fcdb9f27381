"""Executors, which carry out sub-tasks step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from skills.agents.policy import Agent, sample_actions
from skills.levels.codes import ACTIONS, BALL, BOX
from skills.levels.engine import Step
from skills.levels.state import Levels
from skills.planner.subtasks import code


class Executor(ABC):
    """Acts in N environments."""

    @abstractmethod
    def begin(self, n: int, subtask: str, level: Levels) -> None:
        """Begin a sub-task in environment n. `level`: the complete level, for executors that know it."""

    @abstractmethod
    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the actions, int64 [N], without those masked in `withheld`, bool [N, ACTIONS]."""

    def stuck(self, n: int) -> bool:
        """Return whether the sub-task of environment n is known to be impossible."""
        return False


class AgentExecutor(Executor):
    """A trained agent that gets every sub-task as a mission of its training.

    Args:
        agent: The agent.
        count: Number of environments N.
        uniform: Draws the actions; None: the most probable ones.
        forgets: Whether to reset its memory at every sub-task, as at the beginning of an episode; in its training an
            episode had one mission.
        replays: Whether its memory then is made anew from all observations of the episode with the sub-task as
            mission, instead of being empty.
        boxes_as_balls: Whether the agent sees boxes that the sub-task does not name as balls, which cannot be opened.
            In its training it opens boxes in its way, and where that is masked it stays before them.
    """

    def __init__(
        self,
        agent: Agent,
        count: int,
        uniform: np.random.Generator | None,
        *,
        forgets: bool,
        replays: bool = False,
        boxes_as_balls: bool = False,
    ) -> None:
        self._agent, self._uniform, self._boxes_as_balls = agent, uniform, boxes_as_balls
        self._forgets, self._replays = forgets, replays
        self._missions, self._memory = np.zeros((count, 4), np.uint8), agent.start(count)
        self._begins, self._seen = np.zeros(count, bool), list[Step]()

    def begin(self, n: int, subtask: str, level: Levels) -> None:
        """See `Executor`."""
        self._missions[n], self._begins[n] = code(subtask), True

    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """See `Executor`."""
        if self._boxes_as_balls:
            step = self._without_boxes(step)
        if self._forgets:
            self._memory[self._begins] = 0
        if self._replays:
            self._replay()
            self._seen.append(
                step._replace(image=step.image.copy(), direction=step.direction.copy())
            )
        self._begins[:] = False
        with_mission = step._replace(mission=self._missions)
        outputs, self._memory = self._agent.policy(with_mission, self._memory)
        outputs[:, :ACTIONS][withheld] = -np.inf
        return sample_actions(outputs, self._uniform)

    def _without_boxes(self, step: Step) -> Step:
        image = step.image.copy()
        named = self._missions[:, None, None, 2] == BOX
        image[..., 0][(image[..., 0] == BOX) & ~named] = BALL
        return step._replace(image=image)

    def _replay(self) -> None:
        """Make the memory anew, from the observations so far, where a sub-task begins."""
        rows = np.flatnonzero(self._begins)
        memory = self._agent.start(len(rows))
        for seen in self._seen if len(rows) else ():
            again = seen._replace(
                image=seen.image[rows], direction=seen.direction[rows], mission=self._missions[rows]
            )
            _, memory = self._agent.policy(again, memory)
        self._memory[rows] = memory
