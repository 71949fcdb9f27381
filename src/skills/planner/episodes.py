"""Episodes of the composite task with a planner, which chooses sub-tasks, and an executor, which carries them out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from skills.agents.evaluation import play
from skills.agents.policy import Agent
from skills.levels.codes import DROP, PKP, mission_text
from skills.levels.engine import Engine, Step
from skills.levels.state import Levels
from skills.planner.executors import Executor
from skills.planner.planners import Planner
from skills.planner.prompts import Situation
from skills.planner.scene import Scenes
from skills.planner.subtasks import HISTORY, code, done, options


@dataclass
class EpisodeState:
    """State of an episode.

    Attributes:
        subtask: Current sub-task, or "".
        begun: Step in which it began.
        observed: Number of objects observed then.
        calls: Calls of the planner so far.
        before: Earlier sub-tasks with their outcomes.
    """

    subtask: str = ""
    begun: int = 0
    observed: int = 0
    calls: int = 0
    before: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedEpisodes:
    """Outcomes of E episodes, in the order of their seeds.

    Attributes:
        success: bool [E].
        reward: float32 [E].
        steps, calls: int64 [E].
        outcomes: Counts of (verb of the sub-task, outcome); "ended: ..." is the end of the episode.
    """

    success: NDArray[np.bool_]
    reward: NDArray[np.float32]
    steps: NDArray[np.int64]
    calls: NDArray[np.int64]
    outcomes: Counter[tuple[str, str]]

    def __getitem__(self, part: slice) -> PlannedEpisodes:
        """Return a part of the episodes; outcomes remain those of all."""
        arrays = (self.success, self.reward, self.steps, self.calls)
        return PlannedEpisodes(*(array[part] for array in arrays), self.outcomes)


class EpisodeRunner:
    """E episodes that are played together.

    Args:
        stage: Stage of the levels.
        seeds: Seeds of the levels.
        planner: Chooses sub-tasks.
        executor: Carries them out.
        patience: Steps after which a sub-task is given up.
        guarded: Whether to mask actions that are known to end the task (`Scenes.forbidden`), which agents of single
            verbs did not learn to avoid.
        careful: Whether to mask laying down an object where the sub-task is not to pick up another, and in or next to
            a doorway.
        lays_down: Whether, where the sub-task is to pick up another object, the carried one is laid down by a rule
            (`Scenes.action_to_lay_down`). Agents of single verbs try to pick up with a full hand.
    """

    def __init__(
        self,
        stage: str,
        seeds: range | NDArray[np.int64],
        planner: Planner,
        executor: Executor,
        patience: int,
        *,
        guarded: bool = True,
        careful: bool = False,
        lays_down: bool = False,
    ) -> None:
        count, drawn = len(seeds), np.asarray(seeds, np.int64)
        self._engine = Engine(stage, count, auto_reset=False)
        self._now = self._engine.reset(drawn)
        self._seeds, self._planner, self._executor = drawn.tolist(), planner, executor
        self._patience, self._guarded, self._careful = patience, guarded, careful
        self._lays_down = lays_down
        self._missions = [mission_text(mission) for mission in self._now.mission]
        self._episodes = [EpisodeState() for _ in range(count)]
        self._state = self._engine.state()
        self._scenes = Scenes(count, self._state.size, self._now.mission[:, 1])
        self._wanted = np.zeros((count, 4), np.uint8)
        self.unfinished = np.ones(count, bool)
        self.played = PlannedEpisodes(
            np.zeros(count, bool), np.zeros(count, np.float32), np.zeros(count, np.int64),
            np.zeros(count, np.int64), Counter(),
        )  # fmt: skip

    def play(self) -> PlannedEpisodes:
        """Play all episodes to their end."""
        while self.unfinished.any():
            self.step()
        return self.played

    def step(self) -> None:
        """Call the planner where a sub-task has ended, and act once in every environment."""
        self._state = self._engine.state()
        self._scenes.look(self._now, self._state.agent)
        ended = [n for n in np.flatnonzero(self.unfinished).tolist() if self._ended(n)]
        situations = [self.situation(n) for n in ended]
        if ended:
            for n, subtask in zip(ended, self._planner.choose(situations), strict=True):
                self._begin(n, subtask)
        withheld = self._scenes.forbidden(self._wanted)
        if not self._guarded:
            withheld[:] = False
        if self._careful:
            withheld[:, DROP] |= (self._wanted[:, 0] != PKP) | self._scenes.before_doorway()
        if self._lays_down:
            withheld[:, DROP] = True
        actions = self._executor.act(self._now, withheld)
        if self._lays_down:
            self._lay_down(actions)
        self._now = self._engine.step(actions)
        self._count(self._now)

    def _lay_down(self, actions: NDArray[np.int64]) -> None:
        """Replace actions where another object than the carried one is to be picked up."""
        for n in np.flatnonzero(self.unfinished & (self._wanted[:, 0] == PKP)).tolist():
            carried, (_, colour, kind, _) = self._scenes.carried(n), self._wanted[n].tolist()
            if carried is not None and carried != (kind, colour):
                action = self._scenes.action_to_lay_down(n)
                if action is not None:
                    actions[n] = action

    def situation(self, n: int) -> Situation:
        """Return the planner's input for environment n."""
        episode, things = self._episodes[n], self._scenes.things(n)
        level: Levels = self._state[n : n + 1]
        return Situation(
            self._seeds[n], episode.calls, int(level.steps[0]), int(level.max_steps[0]), self._missions[n],
            self._scenes.carried(n), things, episode.before[-HISTORY:], options(self._scenes, n, things), level,
        )  # fmt: skip

    def _ended(self, n: int) -> bool:
        """Return whether environment n needs a new sub-task, and record the outcome of the last."""
        episode = self._episodes[n]
        if not episode.subtask:
            return True
        steps = int(self._state.steps[n]) - episode.begun
        if done(episode.subtask, self._scenes, n, episode.observed):
            self._close(n, "done")
        elif self._executor.stuck(n):
            self._close(n, "no way found")
        elif steps >= self._patience:
            self._close(n, f"given up after {steps} steps")
        else:
            return False
        return True

    def _close(self, n: int, outcome: str) -> None:
        episode = self._episodes[n]
        episode.before.append((episode.subtask, outcome))
        self.played.outcomes[_verb(episode.subtask), outcome.split(" after")[0]] += 1
        episode.subtask = ""

    def _begin(self, n: int, subtask: str) -> None:
        episode = self._episodes[n]
        episode.subtask, episode.begun = subtask, int(self._state.steps[n])
        episode.observed, episode.calls = self._scenes.observed(n), episode.calls + 1
        self._wanted[n] = code(subtask)
        self._executor.begin(n, subtask, self._state[n : n + 1])

    def _count(self, step: Step) -> None:
        """Record the rewards of a step and the episodes that it ended."""
        played = self.played
        ended = self.unfinished & (step.terminated | step.truncated)
        played.steps[self.unfinished] += 1
        played.reward[ended] = step.reward[ended]
        played.success[ended] = step.reward[ended] > 0
        for n in np.flatnonzero(ended).tolist():
            played.calls[n] = self._episodes[n].calls
            how = "goal" if played.success[n] else "time" if step.truncated[n] else "forbidden"
            played.outcomes[_verb(self._episodes[n].subtask), f"ended: {how}"] += 1
        self.unfinished &= ~ended


def _verb(subtask: str) -> str:
    """Return the verb of a sub-task: "go to", "pick up", "open" or "explore"."""
    return subtask.split(" the ")[0]


def play_without_planner(
    agent: Agent,
    stage: str,
    seeds: range | NDArray[np.int64],
    uniform: np.random.Generator | None,
) -> PlannedEpisodes:
    """Play the episodes with an agent whose mission is the whole task."""
    played = play(agent, stage, seeds, uniform)
    calls = np.zeros(len(seeds), np.int64)
    return PlannedEpisodes(played.success, played.reward, played.steps, calls, Counter())
