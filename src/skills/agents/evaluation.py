"""Evaluation: whole episodes of an agent on levels of given seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skills.agents.policy import Agent
from skills.levels.engine import Engine, Step
from skills.levels.state import Levels

TEST_SEEDS = range(1_000)
"""Seeds of the levels of reported results."""
VALIDATION_SEEDS = range(1 << 20, (1 << 20) + 100_000)
"""Seeds of the levels of validations during training."""
FIRST_TRAINING_SEED = 1 << 32  # training levels have this seed or a higher one
Watch = Callable[[Step, NDArray[np.bool_]], None]
CHUNK = 256  # environments that step together
ENGINE = partial(Engine, auto_reset=False)


@dataclass(frozen=True)
class Episodes:
    """Outcomes of E episodes, in the order of their seeds.

    Attributes:
        success: bool [E].
        reward: float32 [E].
        steps: Length, int64 [E].
        mission: uint8 [E, 4].
    """

    success: NDArray[np.bool_]
    reward: NDArray[np.float32]
    steps: NDArray[np.int64]
    mission: NDArray[np.uint8]

    @property
    def rate(self) -> float:
        """Success rate."""
        return float(self.success.mean())


def play(
    agent: Agent,
    levels: str | Levels,
    seeds: NDArray[np.int64] | range,
    uniform: np.random.Generator | None,
    make: Callable[..., Any] = ENGINE,
    watch: Watch | None = None,
) -> Episodes:
    """Play one episode per seed.

    Args:
        agent: The agent.
        levels: Stage or levels, see `skills.levels.engine.Engine`.
        seeds: Seeds of the levels, [E].
        uniform: Draws the actions; None: the most probable action at every step.
        make: Makes environments with `Engine`'s `reset` and `step`; `minigrid.batch.GymBatch` is minigrid itself.
        watch: Called at every step after the agent has acted, with the observation and the mask of unfinished episodes.
    """
    seeds = np.asarray(seeds, np.int64)
    parts = [
        _play(agent, make(levels, len(chunk)), chunk, uniform, watch)
        for chunk in np.split(seeds, range(CHUNK, len(seeds), CHUNK))
    ]
    names = Episodes.__annotations__
    return Episodes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def play_sampled_and_greedy(
    agent: Agent,
    levels: str | Levels,
    seeds: NDArray[np.int64] | range,
    uniform: np.random.Generator,
    make: Callable[..., Any] = ENGINE,
    watch: Watch | None = None,
) -> dict[str, Episodes]:
    """Play every seed twice: `sampled` with actions drawn from the policy, `greedy` with the most probable ones.

    `watch` is called in the sampled episodes only. See `play`.
    """
    return {
        "sampled": play(agent, levels, seeds, uniform, make, watch),
        "greedy": play(agent, levels, seeds, None, make),
    }


def _play(
    agent: Agent,
    engine: Any,
    seeds: NDArray[np.int64],
    uniform: np.random.Generator | None,
    watch: Watch | None,
) -> Episodes:
    count = len(seeds)
    now = engine.reset(seeds)
    mission, memory = now.mission.copy(), agent.start(count)
    success, reward = np.zeros(count, bool), np.zeros(count, np.float32)
    steps, unfinished = np.zeros(count, np.int64), np.ones(count, bool)
    while unfinished.any():
        actions, memory = agent.act(now, memory, uniform)
        if watch is not None:
            watch(now, unfinished)
        now = engine.step(actions)
        steps += unfinished
        ended = unfinished & (now.terminated | now.truncated)
        reward[ended] = now.reward[ended]
        success[ended] = now.reward[ended] > 0
        unfinished &= ~ended
    return Episodes(success, reward, steps, mission)
