"""What carries out sub-tasks, step by step."""

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
        """Environment n has another sub-task. `level`: all that there is, for those that need not look."""

    @abstractmethod
    def act(self, step: Step, withheld: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the actions, int64 [N]; none that is withheld, bool [N, ACTIONS]."""

    def stuck(self, n: int) -> bool:
        """Whether it knows that it cannot go on in environment n."""
        return False


class AgentExecutor(Executor):
    """A trained agent, told each sub-task as the mission that it learned.

    Args:
        agent: Acts.
        count: Environments.
        uniform: Draws the actions; None: the likeliest is taken each time.
        forgets: Whether its memory is emptied at each sub-task, as at the beginning of an episode. It was trained on
            episodes of one mission.
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
        told = step._replace(mission=self._missions)
        outputs, self._memory = self._agent.policy(told, self._memory)
        outputs[:, :ACTIONS][withheld] = -np.inf
        return sample_actions(outputs, self._uniform)
