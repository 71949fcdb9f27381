"""Episodes of the composite task in which a planner names sub-tasks and something carries them out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from skills.agents.evaluation import play
from skills.agents.policy import Agent
from skills.levels.codes import mission_text
from skills.levels.engine import Engine, Step
from skills.levels.state import Levels
from skills.planner.executors import Executor
from skills.planner.planners import Planner
from skills.planner.prompts import Situation
from skills.planner.scene import Scenes
from skills.planner.subtasks import HISTORY, code, done, options


@dataclass
class Course:
    """Where an episode stands.

    Attributes:
        subtask: The present one; empty: none yet.
        begun: The step in which it began.
        met: How many things were seen then.
        calls: How often the planner was asked.
        before: Sub-tasks so far, each with what became of it.
    """

    subtask: str = ""
    begun: int = 0
    met: int = 0
    calls: int = 0
    before: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Planned:
    """Episodes in the order of their seeds.

    Attributes:
        success: bool [E].
        reward: float32 [E].
        steps, calls: int64 [E].
        outcomes: How often each verb of a sub-task had which outcome; "ended": with the episode.
    """

    success: NDArray[np.bool_]
    reward: NDArray[np.float32]
    steps: NDArray[np.int64]
    calls: NDArray[np.int64]
    outcomes: Counter[tuple[str, str]]

    def __getitem__(self, part: slice) -> Planned:
        """Some of them; outcomes are those of all."""
        arrays = (self.success, self.reward, self.steps, self.calls)
        return Planned(*(each[part] for each in arrays), self.outcomes)


class Episodes:
    """Episodes beside each other.

    Args:
        stage: Whose levels are played.
        seeds: One level each.
        planner: Names sub-tasks.
        executor: Carries them out.
        patience: Steps after which a sub-task is given up.
        guarded: Whether the executor is kept from what is known to end the task (`Scenes.forbidden`). Who learned
            single verbs did not learn that.
    """

    def __init__(
        self,
        stage: str,
        seeds: range,
        planner: Planner,
        executor: Executor,
        patience: int,
        *,
        guarded: bool = True,
    ) -> None:
        count = len(seeds)
        self._engine = Engine(stage, count, auto_reset=False)
        self._now = self._engine.reset(np.asarray(seeds, np.int64))
        self._seeds, self._planner, self._executor = list(seeds), planner, executor
        self._patience, self._guarded = patience, guarded
        self._missions = [mission_text(each) for each in self._now.mission]
        self._courses = [Course() for _ in range(count)]
        self._state = self._engine.state()
        self._scenes = Scenes(count, self._state.size, self._now.mission[:, 1])
        self._wanted = np.zeros((count, 4), np.uint8)
        self.going = np.ones(count, bool)
        self.played = Planned(
            np.zeros(count, bool), np.zeros(count, np.float32), np.zeros(count, np.int64),
            np.zeros(count, np.int64), Counter(),
        )  # fmt: skip

    def play(self) -> Planned:
        """Plays all to their end."""
        while self.going.any():
            self.step()
        return self.played

    def step(self) -> None:
        """Asks the planner where a sub-task has come to its end, and acts once everywhere."""
        self._state = self._engine.state()
        self._scenes.look(self._now, self._state.agent)
        asked = [n for n in np.flatnonzero(self.going).tolist() if self._ended(n)]
        situations = [self.situation(n) for n in asked]
        if asked:
            for n, subtask in zip(asked, self._planner.choose(situations), strict=True):
                self._begin(n, subtask)
        withheld = self._scenes.forbidden(self._wanted)
        if not self._guarded:
            withheld[:] = False
        self._now = self._engine.step(self._executor.act(self._now, withheld))
        self._count(self._now)

    def situation(self, n: int) -> Situation:
        """What is known in environment n."""
        course, things = self._courses[n], self._scenes.things(n)
        level: Levels = self._state[n : n + 1]
        return Situation(
            self._seeds[n], course.calls, int(level.steps[0]), int(level.max_steps[0]), self._missions[n],
            self._scenes.carried(n), things, course.before[-HISTORY:], options(self._scenes, n, things), level,
        )  # fmt: skip

    def _ended(self, n: int) -> bool:
        """Whether environment n needs another sub-task; what became of the last one is written down."""
        course = self._courses[n]
        if not course.subtask:
            return True
        steps = int(self._state.steps[n]) - course.begun
        if done(course.subtask, self._scenes, n, course.met):
            self._close(n, "done")
        elif self._executor.stuck(n):
            self._close(n, "no way found")
        elif steps >= self._patience:
            self._close(n, f"given up after {steps} steps")
        else:
            return False
        return True

    def _close(self, n: int, outcome: str) -> None:
        course = self._courses[n]
        course.before.append((course.subtask, outcome))
        self.played.outcomes[_verb(course.subtask), outcome.split(" after")[0]] += 1
        course.subtask = ""

    def _begin(self, n: int, subtask: str) -> None:
        course = self._courses[n]
        course.subtask, course.begun = subtask, int(self._state.steps[n])
        course.met, course.calls = self._scenes.met(n), course.calls + 1
        self._wanted[n] = code(subtask)
        self._executor.begin(n, subtask, self._state[n : n + 1])

    def _count(self, step: Step) -> None:
        """Writes down what a step gave, and which episodes it ended."""
        played = self.played
        ended = self.going & (step.terminated | step.truncated)
        played.steps[self.going] += 1
        played.reward[ended] = step.reward[ended]
        played.success[ended] = step.reward[ended] > 0
        for n in np.flatnonzero(ended).tolist():
            played.calls[n] = self._courses[n].calls
            how = "goal" if played.success[n] else "time" if step.truncated[n] else "forbidden"
            played.outcomes[_verb(self._courses[n].subtask), f"ended: {how}"] += 1
        self.going &= ~ended


def _verb(subtask: str) -> str:
    """The sub-task without what it is about: "go to", "pick up", "open", "explore"."""
    return subtask.split(" the ")[0]


def alone(agent: Agent, stage: str, seeds: range, uniform: np.random.Generator | None) -> Planned:
    """The same for an agent that is told the whole task; nobody is asked."""
    found = play(agent, stage, seeds, uniform)
    calls = np.zeros(len(seeds), np.int64)
    return Planned(found.success, found.reward, found.steps, calls, Counter())
