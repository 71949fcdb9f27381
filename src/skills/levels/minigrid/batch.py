"""Batches of gymnasium's minigrid and BabyAI environments with the engine's interface.

Movement, observations, ends and rewards are minigrid's; the mission is parsed from its sentence.
"""

from __future__ import annotations

import os

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium

from runcatalog import record
from skills.levels.codes import mission_code
from skills.levels.engine import Step
from skills.levels.minigrid.babyai import bank, begin


class GymBatch:
    """N registered gymnasium environments for `evaluation.play`; a reset resets all of them.

    Args:
        env_id: For example "BabyAI-GoToLocal-v0" or "catalog/Skills-PKP3-v0".
        count: Number of environments N.
    """

    def __init__(self, env_id: str, count: int) -> None:
        self._envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(count)]
        self._now = Step.buffers(count)
        self._ended = np.ones(count, bool)

    def reset(self, seeds: np.ndarray) -> Step:
        """Begin episodes with minigrid's seeds, int [N]."""
        self._ended[:] = False
        self._now.reward[:], self._now.terminated[:], self._now.truncated[:] = 0, False, False
        for n, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            self._show(n, begin(env, int(seed)))
        return self._now

    def step(self, actions: np.ndarray) -> Step:
        """Apply actions, int64 [N], in the unfinished episodes."""
        for n in np.flatnonzero(~self._ended):
            observation, reward, terminated, truncated, _ = self._envs[n].step(int(actions[n]))
            self._show(n, observation)
            self._now.reward[n], self._now.terminated[n] = reward, terminated
            self._now.truncated[n], self._ended[n] = truncated, terminated or truncated
        return self._now

    def _show(self, n: int, observation: dict) -> None:
        self._now.image[n], self._now.direction[n] = observation["image"], observation["direction"]
        self._now.mission[n] = mission_code(observation["mission"])


def check_environment(env_id: str) -> None:
    """Check an environment by making one level of it, for the engine and as the test plays it.

    Raises:
        UserError: It does not exist, or the engine does not support it.
    """
    try:
        bank(env_id, range(1))
        GymBatch(env_id, 1).reset(np.zeros(1, np.int64))  # reads the mission's sentence
    except (gymnasium.error.Error, ValueError) as error:
        raise record.UserError(f"--env {env_id}: {error}") from None
