"""Evaluates a policy on 100 held-out worlds."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from door.env import HORIZON, DoorVecEnv, Seeds
from door.reward import RewardConfig
from door.worlds import DECISION

WORLDS = 100
DECISIONS = 127  # of each trial, as in the source

PolicyFn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """What 100 held-out worlds say about a policy; each world has one trial.

    Attributes:
        opening_rate: Share of successes [1].
        successes: [worlds] bool: the door was opened by way of the handle.
        opened: [worlds] bool: the door was opened in any way.
        opening_time: Mean time to success over the successes, s; -1 if there is none.
        episode_return: Mean over worlds of the sum of rewards.
        max_penetration: Deepest contact of all trials, mm.
        contact_rate: Share of trials in which the tool touched the handle [1].
    """

    opening_rate: float
    successes: np.ndarray
    opened: np.ndarray
    opening_time: float
    episode_return: float
    max_penetration: float
    contact_rate: float


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
    """Runs a deterministic policy for one trial in each held-out world, all worlds at once.

    Args:
        policy: obs [worlds, obs_size] float32 -> action [worlds, action_size]; must not draw random
            numbers.
        task: Name of the task.
        robot: Name of the robot.
        seeds: The run's seeds; worlds and starts come from streams that training never uses, the
            same each time.
        worlds: Number of worlds; results that are reported use 100.
        start: ``near`` or ``original``.
        reward: Weights of the reward for ``episode_return``.
        threads: Simulator threads; the result does not depend on them.
        index: Which set of worlds; 0 is the one that is reported.
        outside: Parameters that lie outside their ranges, in the same worlds otherwise; see
            ``worlds.sample_world``.

    Returns:
        The evaluation; the same bits for the same policy and seeds.
    """
    env = DoorVecEnv(
        task, robot, worlds, seeds=seeds, threads=threads, reward=reward, start=start,
        horizon=HORIZON, stagger=False, held_out=True, outside=outside,
    )  # fmt: skip
    try:
        for _ in range(index):
            env.new_worlds()
        return trials(env, policy)
    finally:
        env.close()


def trials(env: DoorVecEnv, policy: PolicyFn) -> Evaluation:
    """One trial in each of an environment's worlds, from the start of an episode."""
    count = env.num_envs
    first = np.full(count, -1)
    contact = np.zeros(count, bool)
    deepest = 0.0
    obs = env.observation
    for decision in range(DECISIONS):
        obs, _, _, info = env.step(policy(obs))
        first[info["success"] & (first < 0)] = decision + 1
        contact |= info["contact"]
        deepest = max(deepest, float(info["penetration"].max()))
    successes = info["success"]
    time = float(first[successes].mean() * DECISION) if successes.any() else -1.0
    return Evaluation(
        opening_rate=float(successes.mean()),
        successes=successes,
        opened=info["opened"],
        opening_time=time,
        episode_return=float(info["episode_return"].mean()),
        max_penetration=1000.0 * deepest,
        contact_rate=float(contact.mean()),
    )
