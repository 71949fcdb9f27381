"""CartPole-v1 for many poles at once: NumPy arrays in place of a loop, bit-equal to gymnasium.

Constants and equations are those of gymnasium's `CartPoleEnv` (Barto, Sutton & Anderson, "Neuronlike
adaptive elements that can solve difficult learning control problems", 1983; corrected equations of
Florian, "Correct equations for the dynamics of the cart-pole system", 2007). Products and sums are
computed in gymnasium's order, so that rounding is the same.
"""

from __future__ import annotations

import math

import numpy as np

STATE = 4  # cart position [m], cart velocity [m/s], pole angle [rad], angular velocity [rad/s]
ACTIONS = 2  # push to the left, push to the right
MAX_STEPS = 500  # CartPole-v1 truncates here
GRAVITY = 9.8  # m/s^2
POLE_MASS, TOTAL_MASS = 0.1, 0.1 + 1.0  # kg; their sum in gymnasium's order
HALF_LENGTH = 0.5  # m
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0  # N
TAU = 0.02  # s between two actions
MAX_POSITION = 2.4  # m
MAX_ANGLE = 12 * 2 * math.pi / 360  # rad
START = 0.05  # all components of a start state are uniform in [-START, START]


def random_starts(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return start states [count, 4], drawn in the order of gymnasium's `reset`."""
    return rng.uniform(low=-START, high=START, size=(count, STATE))


class CartPoleBatch:
    """Poles that are stepped together. The reward is 1 for every step, including the last.

    The state of a pole whose episode has ended is frozen until its reset; initially all are frozen.

    Args:
        count: Number of poles.

    Attributes:
        steps: int [n], steps since the reset.
        alive: bool [n], whether the episode has not ended.
    """

    def __init__(self, count: int) -> None:
        self._states = np.zeros((STATE, count))  # one row per component: contiguous arithmetic
        self.steps = np.zeros(count, np.int64)
        self.alive = np.zeros(count, bool)
        self._all_alive = False  # skips the masking of ended poles

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def states(self) -> np.ndarray:
        """States, float64 [n, 4] (a view)."""
        return self._states.T

    @property
    def observations(self) -> np.ndarray:
        """States in an agent's precision, float32 [n, 4]."""
        return self._states.T.astype(np.float32, order="C")

    def reset(self, states: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Begin new episodes.

        Args:
            states: float64 [k, 4].
            rows: int [k], indices of the poles; None for all.

        Returns:
            The observations of all poles, float32 [n, 4].
        """
        where = slice(None) if rows is None else rows
        self._states[:, where] = np.asarray(states, np.float64).T
        self.steps[where] = 0
        self.alive[where] = True
        self._all_alive = bool(self.alive.all())
        return self.observations

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Push all carts for one time step.

        Args:
            actions: int or bool [n], 0 pushes to the left and 1 to the right.

        Returns:
            Observations float32 [n, 4]; terminated bool [n] and truncated bool [n], true only in the step
            that ends an episode.
        """
        after = _advanced(self._states, np.where(actions, FORCE, -FORCE))
        alive = self.alive
        if not self._all_alive:
            after = np.where(alive, after, self._states)
        self._states = after
        self.steps += alive
        fallen = np.abs(after[0]) > MAX_POSITION
        fallen |= np.abs(after[2]) > MAX_ANGLE
        terminated, truncated = fallen & alive, (self.steps == MAX_STEPS) & alive
        ended = terminated | truncated
        if ended.any():
            self.alive = alive & ~ended
            self._all_alive = False
        return self.observations, terminated, truncated

    def keep(self, rows: np.ndarray) -> None:
        """Remove all other poles.

        Args:
            rows: int [k] or bool [n].
        """
        self._states = self._states[:, rows]
        self.steps, self.alive = self.steps[rows], self.alive[rows]
        self._all_alive = bool(self.alive.all())


def _advanced(states: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Return states [4, n] after one explicit Euler step under forces [n]."""
    _, velocity, angle, spin = states
    cos, sin = np.cos(angle), np.sin(angle)
    temp = (force + POLE_MASS_LENGTH * np.square(spin) * sin) / TOTAL_MASS
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * np.square(cos) / TOTAL_MASS)
    derivative = np.empty_like(states)
    derivative[0], derivative[2] = velocity, spin
    derivative[3] = (GRAVITY * sin - cos * temp) / inertia
    derivative[1] = temp - POLE_MASS_LENGTH * derivative[3] * cos / TOTAL_MASS
    derivative *= TAU
    derivative += states
    return derivative
