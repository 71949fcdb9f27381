"""Running statistics: observations to unit scale, rewards divided by the spread of the return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class RunningMoments:
    """Mean and variance of a stream, batch by batch (Chan, Golub and LeVeque 1979).

    Starts as `count` imagined samples of mean 0 and variance 1, so that it is usable at once.
    """

    def __init__(self, shape: tuple[int, ...] = (), count: float = 1e-4) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.variance = np.ones(shape, np.float64)
        self.count = count

    def update(self, batch: Array) -> None:
        """Takes in `batch` [n, *shape]."""
        size = len(batch)
        batch = np.asarray(batch, np.float64)
        mean, variance = batch.mean(axis=0), batch.var(axis=0)
        total = self.count + size
        delta = mean - self.mean
        spread = self.variance * self.count + variance * size
        self.mean = self.mean + delta * (size / total)
        self.variance = (spread + delta**2 * (self.count * size / total)) / total
        self.count = total

    def state(self) -> dict[str, Any]:
        """Everything as lists and numbers, exact in float64."""
        return {
            "mean": self.mean.tolist(),
            "variance": self.variance.tolist(),
            "count": self.count,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.mean = np.asarray(state["mean"], np.float64)
        self.variance = np.asarray(state["variance"], np.float64)
        self.count = float(state["count"])


class ObservationNormaliser:
    """Shifts and scales each component of an observation; off, it passes them through.

    The statistics take in whole rollouts, between updates: within an update the observations of
    the rollout, of its log-probabilities and of its values are then scaled alike.
    """

    def __init__(self, size: int, *, enabled: bool = True, clip: float = 10.0) -> None:
        self.moments = RunningMoments((size,))
        self.enabled = enabled
        self.clip = clip
        self._refresh()

    def _refresh(self) -> None:
        self._mean = self.moments.mean.astype(np.float32)
        self._scale = (1.0 / np.sqrt(self.moments.variance + 1e-8)).astype(np.float32)

    def __call__(self, observations: Array) -> NDArray[np.float32]:
        """`observations` [..., size] in units of their running spread, float32."""
        observations = np.asarray(observations, np.float32)
        if not self.enabled:
            return observations
        scaled = (observations - self._mean) * self._scale
        return np.clip(scaled, -self.clip, self.clip, out=scaled)

    def update(self, observations: Array) -> None:
        """Takes in raw observations [..., size]; nothing when off."""
        if self.enabled:
            self.moments.update(observations.reshape(-1, observations.shape[-1]))
            self._refresh()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"enabled": self.enabled, "clip": self.clip, **self.moments.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.enabled, self.clip = bool(state["enabled"]), float(state["clip"])
        self.moments.set_state(state)
        self._refresh()


class ReturnScaler:
    """Divides rewards by the running spread of the discounted return (baselines' VecNormalize).

    Each step first takes its discounted returns into the statistics and is then divided by
    their spread; the sign and the zero of a reward are kept.
    """

    def __init__(
        self, num_envs: int, gamma: float, *, enabled: bool = True, clip: float = 10.0
    ) -> None:
        self.gamma = gamma
        self.enabled = enabled
        self.clip = clip
        self.moments = RunningMoments()
        self.returns = np.zeros(num_envs, np.float64)

    def restart(self, *, statistics: bool) -> None:
        """New episodes everywhere; with `statistics` the spread is forgotten as well."""
        self.returns[:] = 0.0
        if statistics:
            self.moments = RunningMoments()

    def __call__(self, rewards: Array, ends: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Scaled rewards [T, N] of one rollout; `ends` [T, N] marks the last step of episodes."""
        if not self.enabled:
            return np.asarray(rewards, np.float32)
        scaled = np.empty(rewards.shape, np.float32)
        for t, reward in enumerate(np.asarray(rewards, np.float64)):
            self.returns = self.returns * self.gamma + reward
            self.moments.update(self.returns)
            scaled[t] = np.clip(
                reward / np.sqrt(self.moments.variance + 1e-8), -self.clip, self.clip
            )
            self.returns[ends[t]] = 0.0
        return scaled

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"returns": self.returns.tolist(), **self.moments.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.returns = np.asarray(state["returns"], np.float64)
        self.moments.set_state(state)
