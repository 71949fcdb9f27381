"""Many CartPole-v1 at once: NumPy arrays in place of a loop, bit for bit what gymnasium computes.

Constants and equations are those of gymnasium's `CartPoleEnv` (Barto, Sutton & Anderson, "Neuronlike
adaptive elements that can solve difficult learning control problems", 1983; corrected equations of
Florian, "Correct equations for the dynamics of the cart-pole system", 2007). Every product and sum is
taken in gymnasium's order, so that rounding is the same.
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
TAU = 0.02  # s between two decisions
MAX_POSITION = 2.4  # m
MAX_ANGLE = 12 * 2 * math.pi / 360  # rad
START = 0.05  # each component of a start state is uniform in [-START, START]


def random_starts(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns start states [count, 4], drawn as gymnasium's `reset` draws them one after another."""
    return rng.uniform(low=-START, high=START, size=(count, STATE))


class CartPoleBatch:
    """Poles that are stepped together. The reward is 1 for every step, the last one included.

    A pole that has ended stays as it is until it is reset. All begin ended.

    Args:
        count: Number of poles.

    Attributes:
        steps: int [n], steps since the reset.
        alive: bool [n], whether the episode goes on.
    """

    def __init__(self, count: int) -> None:
        self._states = np.zeros((STATE, count))  # one row a component: contiguous arithmetic
        self.steps = np.zeros(count, np.int64)
        self.alive = np.zeros(count, bool)
        self._all_alive = False  # saves looking at each pole in each step

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def states(self) -> np.ndarray:
        """States, float64 [n, 4] (a view)."""
        return self._states.T

    @property
    def observations(self) -> np.ndarray:
        """States as an agent sees them, float32 [n, 4]."""
        return self._states.T.astype(np.float32, order="C")

    def reset(self, states: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Begins new episodes.

        Args:
            states: float64 [k, 4].
            rows: int [k], which poles; None for all.

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
        """Pushes every cart for one decision.

        Args:
            actions: int or bool [n], 0 pushes to the left and 1 to the right.

        Returns:
            Observations float32 [n, 4]; terminated bool [n] and truncated bool [n], which are true in the
            step that ends an episode.
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
        """Forgets all other poles.

        Args:
            rows: int [k] or bool [n].
        """
        self._states = self._states[:, rows]
        self.steps, self.alive = self.steps[rows], self.alive[rows]
        self._all_alive = bool(self.alive.all())


def _advanced(states: np.ndarray, force: np.ndarray) -> np.ndarray:
    """States [4, n] one explicit Euler step later, under forces [n]."""
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
