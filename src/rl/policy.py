"""Actor and critic as functions of their weights, so that a hypernetwork can supply the weights.

Both are multilayer perceptrons with tanh between the layers. The actor gives the mean of a
Gaussian whose log standard deviation is a free vector, independent of the observation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from rl.normalise import ObservationNormaliser

LOG_2PI = math.log(2 * math.pi)
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of actor and critic; `hidden` are the widths of the layers between."""

    observation_size: int
    action_size: int
    hidden: tuple[int, ...] = (64, 64)

    @property
    def actor(self) -> Shapes:
        """Weight and bias per layer, then the log standard deviation [action_size]."""
        return [*self._layers(self.action_size), (self.action_size,)]

    @property
    def critic(self) -> Shapes:
        """Weight and bias per layer."""
        return self._layers(1)

    def _layers(self, outputs: int) -> Shapes:
        widths = (self.observation_size, *self.hidden, outputs)
        shapes: Shapes = []
        for inputs, width in itertools.pairwise(widths):
            shapes += [(width, inputs), (width,)]
        return shapes


def count(shapes: Shapes) -> int:
    """Number of weights in tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def unflatten(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Views of a vector [count(shapes)] as tensors of these shapes, in order."""
    pieces = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _tanh_(inputs: Tensor) -> Tensor:
    """In place. For many numbers as 2 / (1 + exp(-2 x)) - 1, which differs by 1e-7 at most and takes
    a third of the time of torch's own; for few the three calls more would cost more."""
    if inputs.numel() < 1 << 14:
        return inputs.tanh_()
    return inputs.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def perceptron(tensors: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """Inputs, activations and output of a tanh perceptron, [B, n] each.

    Args:
        tensors: weight [n, m] and bias [n] of each layer in turn; no autograd.
        inputs: [B, m].
    """
    activations = [inputs]
    last = len(tensors) - 2
    for layer in range(0, len(tensors), 2):
        output = linear(activations[-1], tensors[layer], tensors[layer + 1])
        activations.append(output if layer == last else _tanh_(output))
    return activations


def actor_mean(tensors: Sequence[Tensor], observations: Tensor, *, squash: bool) -> Tensor:
    """Mean action [B, action_size] for observations [B, observation_size].

    `squash` passes the mean through tanh, so that it stays where the motors can follow.
    """
    mean = perceptron(tensors[:-1], observations)[-1]
    return torch.tanh(mean) if squash else mean


def critic_value(tensors: Sequence[Tensor], observations: Tensor) -> Tensor:
    """Value [B] of observations [B, observation_size]."""
    return perceptron(tensors, observations)[-1].squeeze(-1)


def log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density [B] of actions [B, A] under a diagonal Gaussian."""
    standard = (actions - mean) * torch.exp(-log_std)
    return -0.5 * standard.square().sum(-1) - log_std.sum() - 0.5 * actions.shape[-1] * LOG_2PI


def entropy(log_std: Tensor) -> Tensor:
    """Entropy of the Gaussian in nats, a scalar: it does not depend on the observation."""
    return log_std.sum() + 0.5 * log_std.numel() * (1 + LOG_2PI)


def initial_weights(
    shapes: Shapes, generator: torch.Generator, *, output_gain: float, log_std: float | None = None
) -> Tensor:
    """A vector [count(shapes)] of orthogonal weights, relu gain between layers, biases 0.

    Args:
        shapes: `NetworkShape.actor` or `.critic`.
        generator: source of the randomness.
        output_gain: gain of the last layer.
        log_std: start of the actor's log standard deviation; None for a critic.
    """
    flat = torch.zeros(count(shapes))
    tensors = unflatten(flat, shapes)
    weights = [tensor for tensor in tensors if tensor.dim() == 2]
    for weight in weights:
        gain = output_gain if weight is weights[-1] else math.sqrt(2.0)
        torch.nn.init.orthogonal_(weight, gain, generator=generator)
    if log_std is not None:
        tensors[-1].fill_(log_std)
    return flat


class Policy:
    """A frozen copy of an actor with its observation scaling: what rollouts and evaluations use.

    Attributes:
        tensors: of the actor, see `NetworkShape.actor`.
        squash: tanh around the mean action.
        normaliser: of the observations.
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
        """Number of motors."""
        return len(self._log_std)

    def __call__(self, observations: NDArray[np.floating]) -> NDArray[np.float32]:
        """The deterministic action, the mean [N, A], for raw observations [N, O]."""
        inputs = torch.from_numpy(self.normaliser(observations))
        return actor_mean(self.tensors, inputs, squash=self.squash).numpy()

    def act(
        self, observations: NDArray[np.float32], disturbance: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Actions [N, A]: the mean for normalised observations [N, O], plus the disturbance."""
        mean = actor_mean(self.tensors, torch.from_numpy(observations), squash=self.squash)
        return mean.add_(torch.from_numpy(disturbance)).numpy()

    def disturbances(
        self, noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Standard normal noise [..., A] at the policy's scale, and the log-probabilities [...].

        The density of an action depends on its distance from the mean alone, so that those of a
        whole rollout are known before it is played.
        """
        scaled = torch.from_numpy(noise) * self._std
        zero = torch.zeros(())
        return scaled.numpy(), log_prob(scaled, zero, self._log_std).numpy()
