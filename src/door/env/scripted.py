"""Scripted controllers of hook and gripper with the observations of a policy: what is feasible.

They open 94-100 % of the doors of every task. Their phases have fixed times: move in front of the handle, move behind
or around it, turn it, pull or push the door.
"""

import numpy as np

from door.env.robots import SLIDE_DAMPING, SLIDE_FORCE, TURN_DAMPING, TURN_TORQUE
from door.env.tasks import Task, get_task
from door.env.worlds import STARTS

_PHASES = np.array([24, 36, 72])  # decisions at which the next phase starts
_HOOK = np.array([-0.25, 0.0, 0.03])  # the site ``finger`` in the tool's frame
_GRIPPER = np.array([-0.235, 0.0, 0.0])


def rotation(turn: np.ndarray) -> np.ndarray:
    """Return Rz(a) Ry(b) Rx(c), [n, 3, 3], for turn [n, 3] = (a, b, c)."""
    (a, b, c), unit = turn.T, np.ones(len(turn))
    zero = 0 * unit
    z = np.array([[np.cos(a), -np.sin(a), zero], [np.sin(a), np.cos(a), zero], [zero, zero, unit]])
    y = np.array([[np.cos(b), zero, np.sin(b)], [zero, unit, zero], [-np.sin(b), zero, np.cos(b)]])
    x = np.array([[unit, zero, zero], [zero, np.cos(c), -np.sin(c)], [zero, np.sin(c), np.cos(c)]])
    return np.einsum("ijn,jkn,kln->nil", z, y, x)


class _Scripted:
    """What both controllers know of a task, and when they follow which phase."""

    def __init__(self, task: str) -> None:
        self.task: Task = get_task(task)
        self.base = np.array(STARTS["near"][0])
        self.decision = 0
        self.rest = np.zeros((0, 3))  # initial position of the handle

    def _next_phase(self, knob: np.ndarray) -> int:
        """Return the phase of a decision, where the handle is at `knob` [n, 3], and count the decision."""
        phase = int(np.searchsorted(_PHASES, self.decision, side="right"))
        self.decision += 1
        if phase < 2:
            self.rest = knob
        return phase


class ScriptedHook(_Scripted):
    """Opens doors with the hook: policy obs [n, 15] -> action [n, 6]."""

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the actions of one decision."""
        obs = obs.astype(np.float64)
        position, velocity, reach = obs[:, :6], obs[:, 6:12], obs[:, 12:]
        finger = self.base + position[:, :3] + rotation(position[:, 3:]) @ _HOOK
        knob = finger - reach
        target, roll = self._target(self._next_phase(knob), knob)
        error = np.zeros_like(position)
        error[:, :3] = target - (self.base + position[:, :3] + np.array([-0.25, 0, 0]))
        error[:, 3:5] = -position[:, 3:5]
        error[:, 5] = roll - position[:, 5]
        return command(error, velocity)

    def _target(self, phase: int, knob: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the target of the corner of shaft and tip, and the roll."""
        out = 0.6 * self.task.opening_sign * self.task.side
        if self.task.family == "pull":  # a vertical bar: pass it sideways, tip pointing to -y
            steps = [(0.12, 0.09, 0), (-0.022, 0.09, 0), (-0.022, 0.028, 0), (out, 0.015, 0)]
            return knob + np.array(steps[phase]), np.pi / 2
        behind, lateral = (-0.024, 0.0) if self.task.family == "lever" else (-0.032, 0.032)
        depth = -0.09
        steps = [
            (0.12, lateral, 0.10),
            (behind, lateral, 0.10),
            (behind, lateral, depth),
            (out, lateral, depth),
        ]
        target = knob + np.array(steps[phase])
        if phase >= 2:
            target[:, 2] = self.rest[:, 2] + depth
        return target, 3.13


class ScriptedGripper(_Scripted):
    """Opens doors with the gripper: policy obs [n, 17] -> action [n, 7]."""

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the actions of one decision."""
        obs = obs.astype(np.float64)
        position, velocity, reach = obs[:, :6], obs[:, 7:13], obs[:, 14:]
        finger = self.base + position[:, :3] + rotation(position[:, 3:]) @ _GRIPPER
        phase = self._next_phase(finger - reach)
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
    """Return the commands of a PD controller of six joints, in units of full command."""
    gain = np.array([300.0, 300.0, 300.0, 20.0, 20.0, 20.0])
    full = np.array([SLIDE_FORCE] * 3 + [TURN_TORQUE] * 3)
    brake = 0.2 * np.array([SLIDE_DAMPING] * 3 + [TURN_DAMPING] * 3)
    return np.clip((gain * error - brake * velocity) / full, -1, 1)
