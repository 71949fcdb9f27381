"""Actor and critic as functions of their weights, so that a hypernetwork can supply the weights.

Both are multilayer perceptrons (MLPs) with tanh between the layers. The actor gives the mean of a Gaussian; its log
standard deviation is a free vector, independent of the observation. The backward pass is written out: for networks this
small autograd's bookkeeping costs more than the arithmetic, and the gradients go into memory that stays allocated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

LOG_2PI = math.log(2 * math.pi)
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of actor and critic.

    Attributes:
        observation_size, action_size: Inputs and outputs of the actor.
        hidden: Widths of the hidden layers.
    """

    observation_size: int
    action_size: int
    hidden: tuple[int, ...]

    @property
    def actor(self) -> Shapes:
        """Shapes of the actor's tensors: weight and bias per layer, then the log standard deviation [action_size]."""
        return [*self._layers(self.action_size), (self.action_size,)]

    @property
    def critic(self) -> Shapes:
        """Shapes of the critic's tensors: weight and bias per layer."""
        return self._layers(1)

    def _layers(self, outputs: int) -> Shapes:
        widths = (self.observation_size, *self.hidden, outputs)
        shapes: Shapes = []
        for inputs, width in itertools.pairwise(widths):
            shapes += [(width, inputs), (width,)]
        return shapes


@dataclass(frozen=True)
class Forward:
    """Outputs of actor and critic for a minibatch, with the intermediate values that `backward` needs.

    Attributes:
        log_probs: [B], of the actions.
        entropy: Scalar, of the policy.
        values: [B].
        actor, critic: The weights.
        actor_activations, critic_activations: Inputs and outputs of the layers, see `mlp`.
        mean: [B, A], mean of the policy.
        deviation: [B, A], actions minus the mean.
        squash: Whether the mean is a tanh of the actor's last output.
    """

    log_probs: Tensor
    entropy: Tensor
    values: Tensor
    actor: Sequence[Tensor]
    critic: Sequence[Tensor]
    actor_activations: list[Tensor]
    critic_activations: list[Tensor]
    mean: Tensor
    deviation: Tensor
    squash: bool


def forward(
    actor: Sequence[Tensor],
    critic: Sequence[Tensor],
    observations: Tensor,
    actions: Tensor,
    *,
    squash: bool,
) -> Forward:
    """Evaluate actor and critic on a minibatch, without autograd.

    Args:
        actor: Tensors shaped as `NetworkShape.actor`.
        critic: Tensors shaped as `NetworkShape.critic`.
        observations: [B, O], normalised.
        actions: [B, A].
        squash: Pass the mean action through tanh.
    """
    actor_activations = mlp(actor[:-1], observations)
    critic_activations = mlp(critic, observations)
    mean, log_std = actor_activations[-1], actor[-1]
    if squash:
        mean = torch.tanh(mean)
    return Forward(
        log_probs=log_prob(actions, mean, log_std),
        entropy=entropy(log_std),
        values=critic_activations[-1].squeeze(-1),
        actor=actor,
        critic=critic,
        actor_activations=actor_activations,
        critic_activations=critic_activations,
        mean=mean,
        deviation=actions - mean,
        squash=squash,
    )


def backward(
    forward: Forward,
    d_log_probs: Tensor,
    d_entropy: float,
    d_values: Tensor,
    actor_gradients: Sequence[Tensor],
    critic_gradients: Sequence[Tensor],
) -> None:
    """Write the gradients of a loss with respect to the weights.

    Args:
        forward: The forward pass.
        d_log_probs: [B], derivative of the loss with respect to the log-probabilities.
        d_entropy: Derivative with respect to the entropy.
        d_values: [B], derivative with respect to the values.
        actor_gradients, critic_gradients: Where to write; shaped as the weights.
    """
    precision = torch.exp(-2.0 * forward.actor[-1])
    # d log p / d mean = deviation / variance; d log p / d log std = deviation^2 / variance - 1
    d_mean = forward.deviation * precision * d_log_probs[:, None]
    d_log_std = actor_gradients[-1]
    torch.sum(d_mean * forward.deviation, 0, out=d_log_std)
    d_log_std.sub_(d_log_probs.sum()).add_(d_entropy)
    if forward.squash:
        d_mean = torch.ops.aten.tanh_backward(d_mean, forward.mean)
    mlp_backward(forward.actor[:-1], forward.actor_activations, d_mean, actor_gradients[:-1])
    mlp_backward(forward.critic, forward.critic_activations, d_values[:, None], critic_gradients)


def mlp(tensors: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """Return inputs, hidden activations and output of a tanh MLP, [B, width of the layer].

    Args:
        tensors: Weight [n, m] and bias [n] per layer; no autograd.
        inputs: [B, m].
    """
    activations = [inputs]
    last = len(tensors) - 2
    for layer in range(0, len(tensors), 2):
        output = linear(activations[-1], tensors[layer], tensors[layer + 1])
        activations.append(output if layer == last else _tanh_(output))
    return activations


def mlp_backward(
    tensors: Sequence[Tensor],
    activations: Sequence[Tensor],
    delta: Tensor,
    gradients: Sequence[Tensor],
) -> None:
    """Write the gradients of a tanh MLP's weights.

    Args:
        tensors: Weight [n, m] and bias [n] per layer.
        activations: The result of `mlp`.
        delta: [B, outputs], derivative of the loss with respect to the output.
        gradients: Where to write; shaped as `tensors`.
    """
    for layer in range(len(tensors) // 2 - 1, -1, -1):
        inputs = activations[layer]
        torch.mm(delta.T, inputs, out=gradients[2 * layer])
        torch.sum(delta, 0, out=gradients[2 * layer + 1])
        if layer:
            delta = torch.ops.aten.tanh_backward(delta @ tensors[2 * layer], inputs)


def actor_mean(tensors: Sequence[Tensor], observations: Tensor, *, squash: bool) -> Tensor:
    """Return the mean action [B, A] for observations [B, O].

    Args:
        tensors: Shaped as `NetworkShape.actor`.
        observations: Normalised.
        squash: Pass the mean through tanh, which keeps it in the range of the motors.
    """
    mean = mlp(tensors[:-1], observations)[-1]
    return torch.tanh(mean) if squash else mean


def critic_value(tensors: Sequence[Tensor], observations: Tensor) -> Tensor:
    """Return the values [B] of observations [B, O]."""
    return mlp(tensors, observations)[-1].squeeze(-1)


def log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log density [B] of actions [B, A] under a diagonal Gaussian."""
    standard = (actions - mean) * torch.exp(-log_std)
    return -0.5 * standard.square().sum(-1) - log_std.sum() - 0.5 * actions.shape[-1] * LOG_2PI


def entropy(log_std: Tensor) -> Tensor:
    """Return the entropy of a diagonal Gaussian in nats, a scalar."""
    return log_std.sum() + 0.5 * log_std.numel() * (1 + LOG_2PI)


def initial_weights(
    shapes: Shapes, generator: torch.Generator, *, output_gain: float, log_std: float | None = None
) -> Tensor:
    """Return a vector [count(shapes)]: orthogonal weights, gain sqrt(2) in hidden layers, biases 0.

    Args:
        shapes: `NetworkShape.actor` or `.critic`.
        generator: Source of randomness.
        output_gain: Gain of the last layer.
        log_std: Initial log standard deviation of the actor; None for a critic.
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


def count(shapes: Shapes) -> int:
    """Return the number of weights in tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def unflatten(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return views of a vector [count(shapes)] as tensors of these shapes, in order."""
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _tanh_(inputs: Tensor) -> Tensor:
    """Apply tanh in place; to large tensors as 2 sigmoid(2 x) - 1: three times as fast, error at most 1e-7."""
    if inputs.numel() < 1 << 14:  # below this the three additional calls cost more than they save
        return inputs.tanh_()
    return inputs.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
