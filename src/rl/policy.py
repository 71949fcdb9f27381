"""A policy that acts: a frozen copy of an actor with its observation normaliser."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.actor_critic import actor_mean, log_prob
from rl.normalise import ObservationNormaliser


class Policy:
    """A frozen copy of an actor, for rollouts and evaluations.

    Attributes:
        tensors: Weights, shaped as `rl.actor_critic.NetworkShape.actor`.
        squash: Whether the mean action passes through tanh.
        normaliser: Of the observations; not copied.
    """

    def __init__(
        self, tensors: Sequence[Tensor], normaliser: ObservationNormaliser, *, squash: bool
    ) -> None:
        self.tensors = [tensor.detach().clone() for tensor in tensors]
        self.squash = squash
        self._log_std = self.tensors[-1]
        self._std = torch.exp(self._log_std)
        self.normaliser = normaliser

    @property
    def action_size(self) -> int:
        """Components of an action."""
        return len(self._log_std)

    def __call__(self, observations: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the deterministic actions, the means [N, A], for raw observations [N, O]."""
        inputs = torch.from_numpy(self.normaliser(observations))
        return actor_mean(self.tensors, inputs, squash=self.squash).numpy()

    def act(
        self, observations: NDArray[np.float32], noise: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return actions [N, A]: the means for normalised observations [N, O], plus scaled noise [N, A]."""
        mean = actor_mean(self.tensors, torch.from_numpy(observations), squash=self.squash)
        return mean.add_(torch.from_numpy(noise)).numpy()

    def scale_noise(
        self, standard_noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scale standard normal noise [..., A] to the policy's standard deviation.

        Returns:
            The scaled noise [..., A], and the log-probabilities [...] of the actions that it gives: they depend on
            the distance of an action from the mean alone, so they are known before the rollout.
        """
        scaled = torch.from_numpy(standard_noise) * self._std
        zero = torch.zeros(())
        return scaled.numpy(), log_prob(scaled, zero, self._log_std).numpy()
