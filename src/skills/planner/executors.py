"""Executors, which carry out sub-tasks step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from skills.agents.policy import Agent, sample_actions
from skills.levels.codes import ACTIONS
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
    """

    def __init__(
        self, agent: Agent, count: int, uniform: np.random.Generator | None, *, forgets: bool
    ) -> None:
        self._agent, self._uniform, self._forgets = agent, uniform, forgets
        self._missions, self._memory = np.zeros((count, 4), np.uint8), agent.start(count)

    def begin(self, n: int, subtask: str, level: Levels) -> None:
        """See `Executor`."""
        self._missions[n] = code(subtask)
        if self._forgets:
            self._memory[n] = 0

    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """See `Executor`."""
        with_mission = step._replace(mission=self._missions)
        outputs, self._memory = self._agent.policy(with_mission, self._memory)
        outputs[:, :ACTIONS][withheld] = -np.inf
        return sample_actions(outputs, self._uniform)
