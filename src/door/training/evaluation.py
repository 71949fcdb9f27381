"""Evaluation of policies on held-out worlds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from door.env.door_env import DoorVecEnv, Seeds
from door.env.reward import RewardConfig
from door.env.worlds import DECISION, World

# Indices of the sets of held-out worlds: for reporting, for use during training, and for the choice of a start.
TEST, VALIDATION, TRIAL = 0, 1, 2
WORLDS = 100
# Validation worlds that are tried before the others. A policy that opens a tenth of all doors opens none of these with
# probability 0.12, one that opens a third with 0.0003. Learning rate and early stopping do not depend on such rates.
FIRST_WORLDS = 20
DECISIONS = 127  # per trial, as in the source

PolicyFn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """Results of a policy on held-out worlds, one trial per world.

    Attributes:
        opening_rate: Fraction of successes [1].
        successes: [worlds] bool: the door was opened by its handle.
        opened: [worlds] bool: the door was opened in any way.
        opening_time: Mean time to success over the successes, s; -1 without success.
        episode_return: Mean over worlds of the sum of rewards.
        max_penetration: Deepest contact of all trials, mm.
        contact_rate: Fraction of trials in which the tool touched the handle [1].
        worlds: The worlds.
    """

    opening_rate: float
    successes: np.ndarray
    opened: np.ndarray
    opening_time: float
    episode_return: float
    max_penetration: float
    contact_rate: float
    worlds: Sequence[World] = ()

    def objective(self, update: int) -> dict[str, Any]:
        """Return the opening rate after an update as the entry `objective` of a result."""
        return {
            "name": "opening_rate",
            "value": self.opening_rate,
            "kind": "rate",
            "count": len(self.successes),
            "goal": "max",
            "at": update,
            "axis": "update",
        }


def evaluate(
    policy: PolicyFn,
    task: str,
    robot: str = "floatinghook",
    *,
    seeds: Seeds,
    worlds: int = WORLDS,
    start: str = "near",
    reward: RewardConfig | None = None,
    threads: int = 2,
    index: int = 0,
    outside: Collection[str] = (),
) -> Evaluation:
    """Run a deterministic policy for one trial in every held-out world, all worlds at once.

    Args:
        policy: obs [worlds, obs_size] float32 -> action [worlds, action_size]; draws no random numbers.
        task: Name of the task.
        robot: Name of the robot.
        seeds: The run's seeds. Worlds and starts come from streams that training does not use, and are the same at
            every call.
        worlds: Number of worlds; reported results use 100.
        start: ``near`` or ``original``.
        reward: Weights of the reward for ``episode_return``.
        threads: Simulator threads; no effect on the result.
        index: Set of worlds; 0 is the reported one.
        outside: Parameters outside their training ranges, in otherwise equal worlds; see ``worlds.sample_world``.

    Returns:
        The evaluation; the same bits for the same policy and seeds.
    """
    held_out = HeldOutWorlds(
        robot, seeds=seeds, worlds=worlds, start=start, reward=reward, threads=threads, index=index,
        outside=outside,
    )  # fmt: skip
    with held_out:
        return held_out.evaluate(policy, task)


class HeldOutWorlds:
    """Held-out worlds for the evaluation of many policies; the worlds of a task are built once.

    Args:
        robot: Name of the robot.
        seeds: The run's seeds.
        worlds: Number of worlds; fewer than 100 are the first of the 100.
        start: ``near`` or ``original``.
        reward: Weights of the reward for ``episode_return``.
        threads: Simulator threads; no effect on the results.
        index: Set of worlds, as for ``evaluate``.
        outside: Parameters outside their training ranges, as for ``evaluate``.
        first: Number of worlds that ``opening_rate`` tries before the others; 0: all at once.
    """

    def __init__(
        self,
        robot: str = "floatinghook",
        *,
        seeds: Seeds,
        worlds: int = WORLDS,
        start: str = "near",
        reward: RewardConfig | None = None,
        threads: int = 2,
        index: int = 0,
        outside: Collection[str] = (),
        first: int = 0,
    ) -> None:
        self._robot, self._seeds, self._worlds, self._start = robot, seeds, worlds, start
        self._reward, self._threads, self._index = reward, threads, index
        self._outside = outside
        self._envs: dict[str, DoorVecEnv] = {}
        self._first: HeldOutWorlds | None = None
        if 0 < first < worlds:
            self._first = HeldOutWorlds(
                robot, seeds=seeds, worlds=first, start=start, reward=reward, threads=threads, index=index,
                outside=outside,
            )  # fmt: skip

    def __enter__(self) -> HeldOutWorlds:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments."""
        if self._first is not None:
            self._first.close()
        for env in self._envs.values():
            env.close()

    def opening_rate(self, policy: PolicyFn, task: str) -> float:
        """Return the same opening rate as :meth:`evaluate`, to the bit; every trial ends with its success.

        With `first`, a policy that succeeds in none of the first worlds is not tried in the others; its rate is 0.
        """
        if self._first is not None and not self._first.opening_rate(policy, task):
            return 0.0
        return run_trials(self._replayed(task), policy, until_success=True).opening_rate

    def evaluate(self, policy: PolicyFn, task: str) -> Evaluation:
        """Return the same evaluation as the function ``evaluate``, to the bit."""
        return run_trials(self._replayed(task), policy)

    def _replayed(self, task: str) -> DoorVecEnv:
        """Return the task's worlds at the start of their trials."""
        env = self._envs.get(task)
        if env is None:
            env = self._envs[task] = DoorVecEnv(
                task,
                self._robot,
                self._worlds,
                seeds=self._seeds,
                threads=self._threads,
                reward=self._reward,
                start=self._start,
                stagger=False,
                held_out=True,
                outside=self._outside,
            )
            for _ in range(self._index):
                env.new_worlds()
        else:
            env.replay()
        return env


def run_trials(env: DoorVecEnv, policy: PolicyFn, *, until_success: bool = False) -> Evaluation:
    """Run one trial in every world of an environment, from the start of an episode.

    Args:
        env: The environment.
        policy: See ``evaluate``.
        until_success: End a trial with its success; sums and extremes are then of the decisions until there.
    """
    count = env.num_envs
    first_success = np.full(count, -1)
    contact = np.zeros(count, bool)
    deepest = 0.0
    obs = env.observation
    for decision in range(DECISIONS):
        obs, _, _, info = env.step(policy(obs))
        first_success[info["success"] & (first_success < 0)] = decision + 1
        contact |= info["contact"]
        deepest = max(deepest, float(info["penetration"].max()))
        if until_success:
            env.rest(info["success"])
            if info["success"].all():
                break
    successes = info["success"]
    time = float(first_success[successes].mean() * DECISION) if successes.any() else -1.0
    return Evaluation(
        opening_rate=float(successes.mean()),
        successes=successes,
        opened=info["opened"],
        opening_time=time,
        episode_return=float(info["episode_return"].mean()),
        max_penetration=1000.0 * deepest,
        contact_rate=float(contact.mean()),
        worlds=env.worlds,
    )


def validation_area(rates: Sequence[float], validations: int) -> float:
    """Return the area under the curve of validations [1]: 1 if all doors opened from the first one on.

    Args:
        rates: Opening rates of the validations before early stopping or the end.
        validations: How many the whole budget has; after an early stop the last rate stays.
    """
    return float(np.mean([*rates, *[rates[-1]] * (validations - len(rates))]))
