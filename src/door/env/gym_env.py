"""The door as a gymnasium environment, ``catalog/Door-v0``.

    import door, gymnasium
    env = gymnasium.make("catalog/Door-v0", task="lever")

It is ``DoorVecEnv`` with one environment, so it gives the same bits.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from door.env.door_env import HORIZON, DoorVecEnv
from door.env.reward import RewardConfig
from door.env.worlds import DECISION
from runcatalog.record import Seeds


class DoorEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One door; episodes are truncated and never terminate.

    ``reset(seed=s)`` restarts the streams of ``record.Seeds(s)``. ``info`` holds ``success``,
    ``opened``, ``hinge`` (rad), ``handle`` (rad), ``bolt`` (m), ``contact`` and ``penetration`` (m).

    Args:
        task: Name in ``door.env.tasks.TASKS``.
        robot: ``floatinghook`` or ``floatinggripper``.
        reward: "shaped" or "original".
        start: "near" (about 0.46 m from the handle) or "original" (about 1 m).
        horizon: Decisions of 0.08 s an episode.
        episodes_per_world: Number of episodes per world; 0: always the same world.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1 / DECISION}  # noqa: RUF012

    def __init__(
        self,
        task: str = "pull",
        robot: str = "floatinghook",
        reward: str = "shaped",
        start: str = "near",
        horizon: int = HORIZON,
        episodes_per_world: int = 1,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"unknown render_mode {render_mode!r}: choose from None, 'rgb_array'")
        self.render_mode = render_mode
        self._arguments: dict[str, Any] = {
            "task": task,
            "robot": robot,
            "reward": RewardConfig.of(reward),
            "start": start,
            "horizon": horizon,
        }
        self._episodes_per_world = episodes_per_world
        self._painter: Any = None
        self._begin(Seeds(0))
        actions, sizes = self._vec.action_size, self._vec.obs_size
        self.action_space = spaces.Box(-1.0, 1.0, (actions,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (sizes,), np.float32)
        self._seeded = False

    def _begin(self, seeds: Seeds) -> None:
        self._vec = DoorVecEnv(num_envs=1, seeds=seeds, threads=0, stagger=False, **self._arguments)
        self._fresh, self._episode = True, 0
        self._final: np.ndarray | None = None  # joint positions at an episode's end, until reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; return obs [obs_size] float32 and an empty info."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.close()
            self._begin(Seeds(int(self.np_random.integers(2**31)) if seed is None else seed))
            self._seeded = True
        else:
            self._episode += 1
            if self._episodes_per_world and self._episode % self._episodes_per_world == 0:
                self._vec.new_worlds()
                self._drop_painter()
            elif not self._fresh:
                self._vec.reset()
        self._fresh, self._final = False, None
        return self._vec.observation[0].copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Simulate one decision of 0.08 s."""
        _, reward, truncated, info = self._vec.step(np.asarray(action)[None])
        self._fresh = bool(truncated[0])  # the vectorised environment has started the next episode
        self._final = self._vec.final_qpos[0] if self._fresh else None
        rest = {key: value[0].item() for key, value in info.items() if key != "final_obs"}
        return info["final_obs"][0].copy(), float(reward[0]), False, bool(truncated[0]), rest

    def render(self) -> np.ndarray | None:
        """Return the scene as an image [height, width, 3] uint8, with render_mode "rgb_array"."""
        if self.render_mode is None:
            return None
        if self._painter is None:
            from door.env.render import Painter

            settings, robot = self._vec.settings, self._arguments["robot"]
            self._painter = Painter(self._vec.worlds[0], robot, settings)
        return self._painter.draw(self.qpos)

    @property
    def qpos(self) -> np.ndarray:
        """Joint positions in `render`, [nq], robot first; after an episode its last ones, until `reset`."""
        return self._vec.qpos[0] if self._final is None else self._final

    def close(self) -> None:
        """Stop the simulator."""
        self._drop_painter()
        self._vec.close()

    def _drop_painter(self) -> None:
        if self._painter is not None:
            self._painter.close()
            self._painter = None
