"""Stress tests of the simulator: wild commands, and full speed at the handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from door.env.door_env import DoorVecEnv
from door.env.scripted import ScriptedGripper, ScriptedHook

KINDS = ("random", "held", "slam", "scripted")


@dataclass(frozen=True)
class Outcome:
    """Result of a stress test.

    Attributes:
        decisions: Of all environments.
        deepest: Deepest contact of any two solids, m; 0 without contact.
        overrun: Largest excess of a joint beyond its range, relative to the range [1].
        finite: Whether all observations, rewards and joint positions were finite.
        opened: Fraction of the environments whose door was opened by its handle [1].
    """

    decisions: int
    deepest: float
    overrun: float
    finite: bool
    opened: float


def player(kind: str, env: DoorVecEnv, rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """Return a policy obs [n, obs_size] -> action [n, action_size] for an environment.

    ``random`` draws all commands anew from a normal distribution; ``held`` keeps full commands in random directions
    for 10 decisions; ``slam`` moves to a point near the handle at full speed, turning, and back, repeatedly;
    ``scripted`` opens the door from the start ``near``.

    Raises:
        ValueError: Unknown kind.
    """
    shape = (env.num_envs, env.action_size)
    if kind == "random":
        return lambda obs: rng.standard_normal(shape)
    if kind == "held":
        return _Held(shape, rng)
    if kind == "slam":
        return _Slam(shape, rng)
    if kind == "scripted":
        scripted = ScriptedHook if env.robot.name == "floatinghook" else ScriptedGripper
        return scripted(env.task.name)
    raise ValueError(f"unknown play {kind!r}: choose from {', '.join(KINDS)}")


def play(env: DoorVecEnv, kind: str, decisions: int, rng: np.random.Generator) -> Outcome:
    """Run ``decisions`` decisions in every environment; ``scripted`` needs environments just reset."""
    act, obs = player(kind, env, rng), env.observation
    joints = env.models[0].jnt_limited.astype(bool)
    low, high = (np.array([m.jnt_range[:, k] for m in env.models])[:, joints] for k in (0, 1))
    deepest, overrun, finite = 0.0, 0.0, True
    opened = np.zeros(env.num_envs, bool)
    for _ in range(decisions):
        obs, reward, _, info = env.step(act(obs))
        qpos = env.qpos
        finite &= all(np.isfinite(array).all() for array in (obs, reward, qpos))
        deepest = max(deepest, float(info["penetration"].max()))
        limited = qpos[:, joints]
        beyond = np.maximum(low - limited, limited - high) / (high - low)
        overrun = max(overrun, float(beyond.max()))
        opened |= info["success"]
    return Outcome(decisions * env.num_envs, deepest, overrun, finite, float(opened.mean()))


class _Held:
    def __init__(self, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self.shape, self.rng, self.decision = shape, rng, 0
        self.action = np.zeros(shape)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        if self.decision % 10 == 0:
            self.action = self.rng.choice([-1.0, 1.0], self.shape)
        self.decision += 1
        return self.action


class _Slam:
    """Cycles of 18 decisions: six away from the handle, twelve to a point within 8 cm of it."""

    def __init__(self, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self.shape, self.rng, self.decision = shape, rng, 0
        self.turn, self.aim = np.zeros((shape[0], 3)), np.zeros((shape[0], 3))

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        phase, reach = self.decision % 18, obs[:, -3:].astype(np.float64)
        if phase == 0:
            self.turn = self.rng.choice([-1.0, 1.0], self.turn.shape)
            self.aim = self.rng.uniform(-0.08, 0.08, self.aim.shape)
        action = np.zeros(self.shape)
        action[:, :3] = np.sign(reach) if phase < 6 else np.clip(-40 * (reach + self.aim), -1, 1)
        action[:, 3:6] = self.turn
        action[:, 6:] = 1.0 if self.decision // 9 % 2 else -1.0
        self.decision += 1
        return action
