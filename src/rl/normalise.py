"""Running normalisation of observations and rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class RunningMoments:
    """Mean and variance of a stream of samples, batch by batch (Chan, Golub and LeVeque 1979).

    The initial mean 0 and variance 1 have the weight of `count` samples.
    """

    def __init__(self, shape: tuple[int, ...] = (), count: float = 1e-4) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.variance = np.ones(shape, np.float64)
        self.count = count

    def update(self, batch: Array) -> None:
        """Add a batch [n, *shape]."""
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
        """Return the statistics as lists and numbers, exact in float64."""
        return {
            "mean": self.mean.tolist(),
            "variance": self.variance.tolist(),
            "count": self.count,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics from `state`."""
        self.mean = np.asarray(state["mean"], np.float64)
        self.variance = np.asarray(state["variance"], np.float64)
        self.count = float(state["count"])


class ObservationNormaliser:
    """Shift and scale every component of an observation by its running mean and standard deviation.

    Disabled, it changes nothing. The statistics change between updates only, so that rollout, log-probabilities and
    values of one update use the same scale.
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
        """Return normalised observations [..., size], float32."""
        observations = np.asarray(observations, np.float32)
        if not self.enabled:
            return observations
        scaled = (observations - self._mean) * self._scale
        return np.clip(scaled, -self.clip, self.clip, out=scaled)

    def update(self, observations: Array) -> None:
        """Add raw observations [..., size] to the statistics, unless disabled."""
        if self.enabled:
            self.moments.update(observations.reshape(-1, observations.shape[-1]))
            self._refresh()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"enabled": self.enabled, "clip": self.clip, **self.moments.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from `state`."""
        self.enabled, self.clip = bool(state["enabled"]), float(state["clip"])
        self.moments.set_state(state)
        self._refresh()


class ReturnScaler:
    """Divide rewards by the running standard deviation of the discounted return (VecNormalize of OpenAI baselines).

    The returns of a step enter the statistics before its rewards are divided. No mean is subtracted.
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
        """Start new episodes in all environments; with `statistics`, reset the running variance too."""
        self.returns[:] = 0.0
        if statistics:
            self.moments = RunningMoments()

    def __call__(self, rewards: Array, ends: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the scaled rewards [T, N] of a rollout; `ends` [T, N] marks the last steps of episodes."""
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
        """Return the state for a checkpoint."""
        return {"returns": self.returns.tolist(), **self.moments.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from `state`."""
        self.returns = np.asarray(state["returns"], np.float64)
        self.moments.set_state(state)
