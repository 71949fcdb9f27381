"""The environments of a training run in two groups, so that one simulates while the other thinks.

A barrier after each decision would leave the cores idle while the policy acts for all environments
and while the slowest of them ends its step. Two groups, each with a thread of its own, meet at the end
of a rollout only (double-buffered sampling; Petrenko et al. 2020, "Sample Factory", section 3.2). The
groups are the same for any number of threads, and so are the bits.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from door.env.door_env import DoorVecEnv, Seeds

GROUPS = 2


class DoorGroups:
    """``num_envs`` doors as ``GROUPS`` environments that together are one ``DoorVecEnv``.

    Attributes:
        groups: The environments, in order, as ``rl.rollout.collect`` takes them.
        num_envs: Of all groups.
    """

    def __init__(
        self, task: str, robot: str, num_envs: int, *, seeds: Seeds, threads: int, **more: Any
    ) -> None:
        """Takes what ``DoorVecEnv`` takes; ``threads`` is for all groups together."""
        ends = [index * num_envs // GROUPS for index in range(GROUPS + 1)]
        members = [range(*pair) for pair in itertools.pairwise(ends) if pair[0] < pair[1]]
        self.num_envs, self.parallel = num_envs, threads > 1 and len(members) > 1
        self.groups = [
            DoorVecEnv(
                task,
                robot,
                num_envs,
                seeds=seeds,
                threads=threads // len(members) if self.parallel else threads,
                members=each,
                **more,
            )
            for each in members
        ]
        self.obs_size, self.action_size = self.groups[0].obs_size, self.groups[0].action_size

    def new_worlds(self) -> np.ndarray:
        """A new world for each environment; observations [n, obs_size]."""
        with ThreadPoolExecutor(len(self.groups) if self.parallel else 1) as threads:
            return np.concatenate(list(threads.map(DoorVecEnv.new_worlds, self.groups)))

    def state(self) -> dict[str, Any]:
        """As one ``DoorVecEnv`` with all the environments would give it."""
        states = [group.state() for group in self.groups]
        return {
            name: np.concatenate([state[name] for state in states]) if np.ndim(value) else value
            for name, value in states[0].items()
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from ``state()``."""
        first = 0
        for group in self.groups:
            part = slice(first, first + group.num_envs)
            group.set_state({k: np.asarray(v)[part] if np.ndim(v) else v for k, v in state.items()})
            first = part.stop

    def close(self) -> None:
        """Ends all threads; calling it again does nothing."""
        for group in self.groups:
            group.close()
