"""The environments of a training run in two groups: while one is simulated, the policy acts in the other.

With a barrier after every decision the cores would wait for the policy and for the slowest environment. Two groups in
two threads wait for one another only at the end of a rollout (double-buffered sampling; Petrenko et al. 2020, "Sample
Factory", section 3.2). The groups, and so the bits, do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from door.env.door_env import DoorVecEnv, Seeds

GROUPS = 2


class DoorGroups:
    """``num_envs`` doors as ``GROUPS`` environments, equivalent to one ``DoorVecEnv``.

    Attributes:
        groups: The environments, in order, as ``rl.rollout.collect`` takes them.
        num_envs: Total number of doors.
        parallel: Whether the groups run in threads.
    """

    def __init__(
        self, task: str, robot: str, num_envs: int, *, seeds: Seeds, threads: int, **more: Any
    ) -> None:
        """Take the arguments of ``DoorVecEnv``; ``threads`` is the total of all groups."""
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
                members=part,
                **more,
            )
            for part in members
        ]
        self.obs_size, self.action_size = self.groups[0].obs_size, self.groups[0].action_size

    def new_worlds(self) -> np.ndarray:
        """Draw a new world for every environment; return observations [n, obs_size]."""
        with ThreadPoolExecutor(len(self.groups) if self.parallel else 1) as threads:
            return np.concatenate(list(threads.map(DoorVecEnv.new_worlds, self.groups)))

    def state(self) -> dict[str, Any]:
        """Return the state of one ``DoorVecEnv`` with all environments."""
        states = [group.state() for group in self.groups]
        return {
            name: np.concatenate([state[name] for state in states]) if np.ndim(value) else value
            for name, value in states[0].items()
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore ``state()``."""
        first = 0
        for group in self.groups:
            part = slice(first, first + group.num_envs)
            group.set_state({k: np.asarray(v)[part] if np.ndim(v) else v for k, v in state.items()})
            first = part.stop

    def close(self) -> None:
        """Stop all threads; a second call does nothing."""
        for group in self.groups:
            group.close()
