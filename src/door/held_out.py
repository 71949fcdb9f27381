"""Many policies on the same held-out worlds, which are built once."""

from __future__ import annotations

from door.env import DoorVecEnv, Seeds
from door.evaluate import WORLDS, Evaluation, PolicyFn, trials


class HeldOutWorlds:
    """Trials in the same worlds from the same starts for one policy after another, task by task.

    Args:
        robot: Name of the robot.
        seeds: The run's seeds.
        worlds: Number of worlds; of fewer than 100 they are the first of the 100.
        start: ``near`` or ``original``.
        threads: Simulator threads; no result depends on them.
        index: Which set of worlds, as for ``door.evaluate.evaluate``.
    """

    def __init__(
        self,
        robot: str = "floatinghook",
        *,
        seeds: Seeds,
        worlds: int = WORLDS,
        start: str = "near",
        threads: int = 2,
        index: int = 0,
    ) -> None:
        self._about = {"robot": robot, "num_envs": worlds, "seeds": seeds, "start": start}
        self._threads, self._index = threads, index
        self._envs: dict[str, DoorVecEnv] = {}

    def __enter__(self) -> HeldOutWorlds:
        return self

    def __exit__(self, *error: object) -> None:
        for env in self._envs.values():
            env.close()

    def evaluate(self, policy: PolicyFn, task: str) -> Evaluation:
        """What ``door.evaluate.evaluate`` gives for the policy, bit for bit."""
        env = self._envs.get(task)
        if env is None:
            env = DoorVecEnv(
                task, **self._about, threads=self._threads, stagger=False, held_out=True
            )
            self._envs[task] = env
            for _ in range(self._index):
                env.new_worlds()
        else:
            env.replay()
        return trials(env, policy)
