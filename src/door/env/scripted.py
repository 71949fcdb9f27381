"""Scripted controllers of hook and gripper: a yardstick that sees what a policy sees.

They open 94-100 % of the doors of every task, so a policy that does not has not learned yet. Phases
run on time: go in front of the handle, go behind or around it, turn it, pull or push the door.
"""

import numpy as np

from door.env.robots import SLIDE_DAMPING, SLIDE_FORCE, TURN_DAMPING, TURN_TORQUE
from door.env.tasks import Task, get_task
from door.env.worlds import STARTS

_PHASES = np.array([24, 36, 72])  # decisions at which one phase gives way to the next
_HOOK = np.array([-0.25, 0.0, 0.03])  # the site ``finger`` in the tool's frame
_GRIPPER = np.array([-0.235, 0.0, 0.0])


def rotation(turn: np.ndarray) -> np.ndarray:
    """Rz(a) Ry(b) Rx(c) for turn [n, 3] = (a, b, c); [n, 3, 3]."""
    (a, b, c), one = turn.T, np.ones(len(turn))
    zero = 0 * one
    z = np.array([[np.cos(a), -np.sin(a), zero], [np.sin(a), np.cos(a), zero], [zero, zero, one]])
    y = np.array([[np.cos(b), zero, np.sin(b)], [zero, one, zero], [-np.sin(b), zero, np.cos(b)]])
    x = np.array([[one, zero, zero], [zero, np.cos(c), -np.sin(c)], [zero, np.sin(c), np.cos(c)]])
    return np.einsum("ijn,jkn,kln->nil", z, y, x)


class ScriptedHook:
    """Opens doors with the hook: policy obs [n, 15] -> action [n, 6]."""

    def __init__(self, task: str, start: str = "near") -> None:
        self.task: Task = get_task(task)
        self.base = np.array(STARTS[start][0])
        self.decision = 0
        self.rest = np.zeros((0, 3))  # where the handle was at first

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """One decision for all environments."""
        obs = obs.astype(np.float64)
        position, velocity, reach = obs[:, :6], obs[:, 6:12], obs[:, 12:]
        finger = self.base + position[:, :3] + rotation(position[:, 3:]) @ _HOOK
        phase = int(np.searchsorted(_PHASES, self.decision, side="right"))
        self.decision += 1
        if phase < 2:
            self.rest = finger - reach
        target, roll = self._target(phase, finger - reach)
        error = np.zeros_like(position)
        error[:, :3] = target - (self.base + position[:, :3] + np.array([-0.25, 0, 0]))
        error[:, 3:5] = -position[:, 3:5]
        error[:, 5] = roll - position[:, 5]
        return command(error, velocity)

    def _target(self, phase: int, knob: np.ndarray) -> tuple[np.ndarray, float]:
        """Where the corner of shaft and tip should be, and the roll."""
        out = 0.6 * self.task.opening_sign * self.task.side
        if self.task.family == "pull":  # a vertical bar: pass it sideways, tip pointing to -y
            steps = [(0.12, 0.09, 0), (-0.022, 0.09, 0), (-0.022, 0.028, 0), (out, 0.015, 0)]
            return knob + np.array(steps[phase]), np.pi / 2
        behind, beside = (-0.024, 0.0) if self.task.family == "lever" else (-0.032, 0.032)
        depth = -0.09
        steps = [
            (0.12, beside, 0.10),
            (behind, beside, 0.10),
            (behind, beside, depth),
            (out, beside, depth),
        ]
        target = knob + np.array(steps[phase])
        if phase >= 2:
            target[:, 2] = self.rest[:, 2] + depth
        return target, 3.13


class ScriptedGripper:
    """Opens doors with the gripper: policy obs [n, 17] -> action [n, 7]."""

    def __init__(self, task: str, start: str = "near") -> None:
        self.task: Task = get_task(task)
        self.base = np.array(STARTS[start][0])
        self.decision = 0
        self.rest = np.zeros((0, 3))  # where the handle was at first

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """One decision for all environments."""
        obs = obs.astype(np.float64)
        position, velocity, reach = obs[:, :6], obs[:, 7:13], obs[:, 14:]
        finger = self.base + position[:, :3] + rotation(position[:, 3:]) @ _GRIPPER
        phase = int(np.searchsorted(_PHASES, self.decision, side="right"))
        self.decision += 1
        if phase < 2:
            self.rest = finger - reach
        across, out = np.pi / 2, 0.6 * self.task.opening_sign * self.task.side
        family = self.task.family
        down = -0.09 if family == "lever" else 0.0
        steps = [(0.12, 0, 0), (-0.005, 0, 0), (-0.005, 0, down), (out, 0, down)]
        target = self.rest + np.array(steps[phase])
        error = np.zeros_like(position)
        error[:, :3] = target - (self.base + position[:, :3] + _GRIPPER)
        error[:, 3:5] = -position[:, 3:5]
        roll = 0.0 if family == "pull" else across
        if family == "round" and phase >= 2:
            roll += 0.8
        error[:, 5] = roll - position[:, 5]
        grip = np.full((len(obs), 1), 1.0 if phase < 2 else -1.0)
        return np.hstack([command(error, velocity), grip])


def command(error: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """PD control of six joints, in units of full command."""
    gain = np.array([300.0, 300.0, 300.0, 20.0, 20.0, 20.0])
    full = np.array([SLIDE_FORCE] * 3 + [TURN_TORQUE] * 3)
    brake = 0.2 * np.array([SLIDE_DAMPING] * 3 + [TURN_DAMPING] * 3)
    return np.clip((gain * error - brake * velocity) / full, -1, 1)
