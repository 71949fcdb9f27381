"""Vectorised door environment on ``mujoco.rollout``: one call steps all environments.

Observation, [2 dof + 3]: joint positions (m, rad), joint velocities, finger minus knob (m, world
frame; as a sensor reads it, one physics step before the end of the decision). The door's angle is
not observed. Action, [dof]: motor commands, clamped to [-1, 1] by the simulator. One decision is
0.08 s; an episode never terminates, it is truncated after ``horizon`` decisions.

An episode is a success when the hinge reaches 0.2 rad by way of the handle. A latched door must leave
its frame while the bolt is out, withdrawn by a handle that the tool touched; a door without a latch
must be half open within a second of the tool's touching the handle. Any other way is ``opened`` only.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import mujoco
import numpy as np
from mujoco import rollout

from door.env.mujoco_models import BOLT_RELEASE, WorldModels
from door.env.reward import CLOSED, RewardConfig, door_reward
from door.env.robots import ROLL_RANGE, get_robot
from door.env.tasks import Task, get_task
from door.env.worlds import DECISION, STARTS, Settings, World, sample_world

OPEN = 0.2  # rad: success threshold of the source
HORIZON = 128  # decisions an episode (source: 512 env steps, action repeat 4)
MEMORY = (
    12  # decisions: a touch of the handle counts for about 1 s, since a knocked door drifts open
)
START_NOISE = 0.3  # m and rad: joints start at init + U(-0.3, 0.3) (source)

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
_FINGER, _KNOB, _TOUCH, _DEEPEST = slice(0, 3), slice(3, 6), 6, 9


class Seeds(Protocol):
    """The part of ``record.Seeds`` that the environment uses."""

    def generator(self, purpose: str, index: int = 0) -> np.random.Generator:
        """Return a generator that depends only on the run's seed, the purpose and the index."""


class DoorVecEnv:
    """``num_envs`` doors in different worlds, simulated together.

    All randomness comes from ``seeds`` by purpose and counter: worlds by generation (``new_worlds`` calls), starts by
    environment and episode. So the bits depend on neither ``threads`` nor ``envs_per_call``, and a few counters and
    arrays restore the state.

    Args:
        task: Name in ``door.env.tasks.TASKS``.
        robot: ``floatinghook`` or ``floatinggripper``.
        num_envs: Number of environments n.
        seeds: The run's seeds (``record.Seeds``).
        threads: Simulator threads; 0 or 1 runs on the calling thread.
        envs_per_call: Environments per simulator call; 0 means all.
        reward: Weights of the reward.
        start: ``near`` (about 0.46 m from the handle) or ``original`` (about 1 m).
        horizon: Decisions an episode.
        stagger: Spread the ends of the first episodes of a generation evenly over the horizon.
        held_out: Draw worlds and starts from the streams for evaluation.
        outside: Parameters of the worlds outside their ranges; see ``sample_world``.
        members: The part of the ``num_envs`` environments that this instance simulates, with the same results as
            in an instance with all of them (default: all).

    Raises:
        ValueError: Unknown task, robot or start, or a number out of range.
    """

    def __init__(
        self,
        task: str,
        robot: str = "floatinghook",
        num_envs: int = 32,
        *,
        seeds: Seeds,
        threads: int = 2,
        envs_per_call: int = 0,
        reward: RewardConfig | None = None,
        start: str = "near",
        horizon: int = HORIZON,
        stagger: bool = True,
        held_out: bool = False,
        outside: Collection[str] = (),
        members: range | None = None,
    ) -> None:
        if num_envs < 1 or horizon < 1 or threads < 0 or envs_per_call < 0:
            raise ValueError("num_envs and horizon must be >= 1, threads and envs_per_call >= 0")
        if start not in STARTS:
            raise ValueError(f"unknown start {start!r}: choose from {', '.join(STARTS)}")
        self.task: Task = get_task(task)
        self.robot = get_robot(robot)
        self._total, self._members = num_envs, members or range(num_envs)
        self.num_envs, self.horizon = len(self._members), horizon
        self.obs_size, self.action_size = 2 * self.robot.dof + 3, self.robot.dof
        self.reward_config = reward or RewardConfig()
        base, retreat = STARTS[start]
        self.settings = Settings(base=base, retreat=retreat)
        self._seeds, self._stagger, self._outside = seeds, stagger, outside
        self._stream = "held-out " if held_out else ""
        self._envs_per_call = envs_per_call or self.num_envs
        self._pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._generation = 0
        self.worlds: list[World] = self._draw_worlds()
        self._models = WorldModels(self.worlds, robot, self.settings)
        self._data = [mujoco.MjData(self._models.list[0]) for _ in range(max(threads, 1))]
        self._allocate()
        self._episodes = np.zeros(self.num_envs, np.int64)
        self._starts: dict[int, np.ndarray] = {}
        self.reset()

    @property
    def models(self) -> Sequence[mujoco.MjModel]:
        """The models of the current worlds, one per environment."""
        return self._models.list

    @property
    def observation(self) -> np.ndarray:
        """The observation after the last reset or step, [n, obs_size], float32."""
        return self._obs

    def new_worlds(self) -> np.ndarray:
        """Draw a new world for every environment and reset all; return obs [n, obs_size]."""
        self._generation += 1
        self.worlds = self._draw_worlds()
        self._models.build(self.worlds)
        return self.reset()

    def reset(self) -> np.ndarray:
        """Start a new episode in all environments, in the same worlds; return obs [n, obs_size]."""
        self._obs = np.empty((self.num_envs, self.obs_size), np.float32)
        self._begin(np.arange(self.num_envs))
        if self._stagger:
            ends = np.arange(self._total) * self.horizon // self._total
            rng = self._seeds.generator(f"{self._stream}door stagger", self._generation)
            self._elapsed[:] = rng.permutation(ends)[self._members]
        return self._obs

    def replay(self) -> np.ndarray:
        """Restart the current episodes from the same starts; return obs [n, obs_size]."""
        self._episodes -= 1
        return self.reset()

    def rest(self, envs: np.ndarray) -> None:
        """Simulate environments no further until their next reset: they stay as they are, with rewards of 0.

        Args:
            envs: [n] bool.
        """
        self._resting |= envs

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Simulate one decision; environments at the horizon are reset immediately.

        Args:
            action: [n, action_size].

        Returns:
            obs [n, obs_size] (of the new episode after a reset), reward [n], truncated [n], and
            info, arrays over environments that describe the decision before any reset:
            ``final_obs`` [n, obs_size], ``success`` and ``opened`` (so far in the episode),
            ``hinge`` and ``handle`` (rad), ``bolt`` (m), ``contact`` (of tool and handle, during
            the decision), ``penetration`` (m, deepest of the decision), ``episode_return`` and
            ``episode_length`` (so far).
        """
        action = np.asarray(action, np.float64)
        if action.shape != (self.num_envs, self.action_size):
            wanted = (self.num_envs, self.action_size)
            raise ValueError(f"actions have shape {action.shape}, not {wanted}")
        self._simulate(action)
        hinge, bolt = self._judge()
        reward = np.where(self._resting, 0.0, self._reward(action))
        self._return += reward
        self._elapsed += 1
        self._length += 1
        obs = np.empty((self.num_envs, self.obs_size), np.float32)
        self._observe(obs, slice(None), self._next, self._tip(-1))
        truncated = self._elapsed >= self.horizon
        info = {
            "final_obs": obs,
            "success": self._success.copy(),
            "opened": self._opened.copy(),
            "hinge": hinge,
            "handle": self._handle(-1),
            "bolt": bolt,
            "contact": self._touched.copy(),
            "penetration": -self._sensors[:, :, _DEEPEST].min(1),
            "episode_return": self._return.copy(),
            "episode_length": self._length.copy(),
        }
        self._obs = obs
        if truncated.any():
            self._obs = obs.copy()
            self._begin(np.flatnonzero(truncated))
        return self._obs, reward, truncated, info

    @property
    def qpos(self) -> np.ndarray:
        """Joint positions now, [n, nq], robot first."""
        return self._next[:, 1 : self._velocity].copy()

    @property
    def final_qpos(self) -> np.ndarray:
        """Joint positions at the last decision's end, before any reset, [n, nq], robot first."""
        return self._states[:, -1, 1 : self._velocity].copy()

    def state(self) -> dict[str, Any]:
        """Return a copy of the state, as integers and arrays, for a bit-equal continuation."""
        arrays = {name: getattr(self, f"_{name}").copy() for name in _STATE_ARRAYS}
        return {"generation": self._generation, **arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore ``state()`` of an environment with the same arguments and seeds."""
        self._generation = int(state["generation"])
        self.worlds = self._draw_worlds()
        self._models.build(self.worlds)
        for name in _STATE_ARRAYS:
            current = getattr(self, f"_{name}")
            value = np.asarray(state[name])
            if value.shape != current.shape:
                raise ValueError(f"state {name!r} has shape {value.shape}, not {current.shape}")
            setattr(self, f"_{name}", value.astype(current.dtype))

    def close(self) -> None:
        """Stop the simulator's threads; a second call does nothing."""
        if self._pool.rollout_ is not None:
            self._pool.close()

    def _allocate(self) -> None:
        model, n = self.models[0], self.num_envs
        self._steps = round(DECISION / self.settings.timestep)
        size = mujoco.mj_stateSize(model, _FULL)
        if size != 1 + model.nq + model.nv:
            raise RuntimeError("the physics state is not (time, qpos, qvel)")
        self._next = np.zeros((n, size))
        self._states = np.zeros((n, self._steps, size))
        self._sensors = np.zeros((n, self._steps, model.nsensordata))
        self._control = np.zeros((n, self._steps, model.nu))
        self._velocity = 1 + model.nq
        self._sites = [model.site(name).id for name in ("finger", "knob")]
        self._hinge = 1 + int(model.joint("hinge").qposadr[0])
        for name in ("elapsed", "length", "untouched"):
            setattr(self, f"_{name}", np.zeros(n, np.int64))
        self._return = np.zeros(n)
        for name in ("success", "opened", "touched", "by_handle", "resting"):
            setattr(self, f"_{name}", np.zeros(n, bool))

    def _draw_worlds(self) -> list[World]:
        rng = self._seeds.generator(f"{self._stream}door worlds", self._generation)
        drawn = range(self._members.stop)
        worlds = [sample_world(self.task, rng, self._outside) for _ in drawn]
        return worlds[self._members.start :]

    def _begin(self, envs: np.ndarray) -> None:
        """Reset ``envs`` (indices) and write their first observations to ``self._obs``."""
        dof = self.robot.dof
        start = np.zeros((len(envs), self._next.shape[1]))
        for row, env in enumerate(envs.tolist()):
            start[row, 1 : 1 + dof] = self._starts_of(int(self._episodes[env]))[env]
        if dof > 6:  # fingers: about half open, since the source's noise would exceed their range
            start[:, 7:9] = 0.02 + start[:, 7:8] / START_NOISE * 0.015
        self._next[envs] = start
        self._episodes[envs] += 1
        for array in (self._elapsed, self._length, self._return, self._success, self._opened):
            array[envs] = 0
        self._touched[envs] = self._by_handle[envs] = self._resting[envs] = False
        self._untouched[envs] = MEMORY
        self._observe(self._obs, envs, start, self._reach(envs, start))

    def _starts_of(self, episode: int) -> np.ndarray:
        """Return the robot's joints at the start of an episode of all environments, [n, dof]."""
        starts = self._starts.get(episode)
        if starts is None:
            dof = self.robot.dof
            low, high = np.full(dof, -START_NOISE), np.full(dof, START_NOISE)
            low[5], high[5] = ROLL_RANGE
            rng = self._seeds.generator(f"{self._stream}door starts", episode)
            starts = rng.uniform(low, high, (self._members.stop, dof))[self._members.start :]
            if len(self._starts) > 8:  # the environments' episode numbers differ little
                self._starts.clear()
            self._starts[episode] = starts
        return starts

    def _reach(self, envs: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return finger minus knob at the starts, [k, 3]; the same bits as the sensors."""
        reach, data = np.empty((len(envs), 3)), self._data[0]
        for row, env in enumerate(envs.tolist()):
            data.qpos[:] = start[row, 1 : self._velocity]
            mujoco.mj_kinematics(self.models[env], data)
            np.subtract(*data.site_xpos[self._sites], out=reach[row])
        return reach

    def _simulate(self, action: np.ndarray) -> None:
        self._control[:] = action[:, None]
        envs = np.flatnonzero(~self._resting)
        for first in range(0, len(envs), self._envs_per_call):
            part = envs[first : first + self._envs_per_call]
            states, sensors = self._states[part], self._sensors[part]
            # Without initial_warmstart the solver starts from zero at every decision: the result does not depend on
            # what the thread's MjData simulated before.
            self._pool.rollout(
                [self.models[env] for env in part], self._data, self._next[part], self._control[part],
                nstep=self._steps, skip_checks=True, state=states, sensordata=sensors,
                chunk_size=max(1, len(part) // (4 * len(self._data))),
            )  # fmt: skip
            self._states[part], self._sensors[part] = states, sensors
        self._next[:] = self._states[:, -1]

    def _judge(self) -> tuple[np.ndarray, np.ndarray]:
        """Update how the door was opened; return hinge (rad) and bolt (m) at the end."""
        opening = np.abs(self._states[:, :, self._hinge])
        # How the door was opened is decided below this angle: a bolt acts in the frame; a door without bolt may
        # drift when it is pulled.
        gate = CLOSED if self.task.latched else OPEN / 2
        self._touched = self._sensors[:, :, _TOUCH].max(1) > 0
        self._untouched += 1
        self._untouched[self._touched] = 0
        by_handle = self._untouched <= MEMORY
        if self.task.latched:
            # The bolt is out because the handle is turned, or has been out since it was.
            travel = self._states[:, :, self._hinge + 2]
            by_handle |= self._by_handle
            by_handle &= ((travel >= BOLT_RELEASE) & (opening < gate)).any(1)
            bolt = travel[:, -1].copy()
        else:
            bolt = np.zeros(self.num_envs)
        self._by_handle = np.where(opening.min(1) < gate, by_handle, self._by_handle)
        reached = opening.max(1) >= OPEN
        self._opened |= reached
        reached &= self._by_handle
        self._success |= reached
        return self._states[:, -1, self._hinge].copy(), bolt

    def _handle(self, step: int) -> np.ndarray:
        if not self.task.latched:
            return np.zeros(self.num_envs)
        return self._states[:, step, self._hinge + 1].copy()

    def _reward(self, action: np.ndarray) -> np.ndarray:
        # The source pays for the state before the last of its four env steps.
        step = -1 if self.reward_config.kind == "shaped" else 3 * self._steps // 4 - 1
        state = self._states[:, step]
        return door_reward(
            self.reward_config,
            self._tip(step if step == -1 else step + 1),
            state[:, 4],
            state[:, 5],
            state[:, self._hinge],
            self._handle(step) if self.task.latched else None,
            action[:, : self.robot.cost_actions],
        )

    def _tip(self, step: int) -> np.ndarray:
        return self._sensors[:, step, _FINGER] - self._sensors[:, step, _KNOB]

    def _observe(self, obs: np.ndarray, rows: Any, state: np.ndarray, reach: np.ndarray) -> None:
        dof, velocity = self.robot.dof, self._velocity
        obs[rows, :dof] = state[:, 1 : 1 + dof]
        obs[rows, dof : 2 * dof] = state[:, velocity : velocity + dof]
        obs[rows, 2 * dof :] = reach


_STATE_ARRAYS = (
    "next", "obs", "elapsed", "length", "episodes", "return", "success", "opened", "touched", "untouched", "by_handle",
)  # fmt: skip
