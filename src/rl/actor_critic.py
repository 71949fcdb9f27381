"""Actor and critic on one minibatch: forward, and a backward pass that is written out.

For networks this small autograd's bookkeeping costs more than the arithmetic. Written out, an
update takes about half the time, and each gradient is written into memory that stays allocated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.policy import entropy, log_prob, perceptron


def backward(
    tensors: Sequence[Tensor],
    activations: Sequence[Tensor],
    delta: Tensor,
    gradients: Sequence[Tensor],
) -> None:
    """Gradients of a tanh perceptron's weights, into `gradients`.

    Args:
        tensors: weight [n, m] and bias [n] of each layer in turn.
        activations: what `rl.policy.perceptron` returned for them.
        delta: [B, outputs], of the loss with respect to the last activation.
        gradients: memory shaped as `tensors`; overwritten.
    """
    for layer in range(len(tensors) // 2 - 1, -1, -1):
        inputs = activations[layer]
        torch.mm(delta.T, inputs, out=gradients[2 * layer])
        torch.sum(delta, 0, out=gradients[2 * layer + 1])
        if layer:
            delta = torch.ops.aten.tanh_backward(delta @ tensors[2 * layer], inputs)


class ActorCritic:
    """Evaluates a minibatch and remembers what its backward pass needs."""

    def __init__(self, *, squash: bool) -> None:
        """`squash` passes the mean action through tanh."""
        self._squash = squash

    def evaluate(
        self,
        actor: Sequence[Tensor],
        critic: Sequence[Tensor],
        observations: Tensor,
        actions: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities [B], entropy (scalar) and values [B], without autograd.

        Args:
            actor: layers, then the log standard deviation [A]; see `rl.policy.NetworkShape`.
            critic: layers.
            observations: [B, O], normalised.
            actions: [B, A].
        """
        self._actor, self._critic = actor, critic
        self._of_actor = perceptron(actor[:-1], observations)
        self._of_critic = perceptron(critic, observations)
        mean, log_std = self._of_actor[-1], actor[-1]
        self._mean = torch.tanh(mean) if self._squash else mean
        self._distance = actions - self._mean
        log_probs = log_prob(actions, self._mean, log_std)
        return log_probs, entropy(log_std), self._of_critic[-1].squeeze(-1)

    def backward(
        self,
        of_log_probs: Tensor,
        of_entropy: float,
        of_values: Tensor,
        actor: Sequence[Tensor],
        critic: Sequence[Tensor],
    ) -> None:
        """From the loss's gradients to those of the weights of the last `evaluate`.

        Args:
            of_log_probs: [B].
            of_entropy: scalar.
            of_values: [B].
            actor, critic: where to write; shaped as the weights.
        """
        precision = torch.exp(-2.0 * self._actor[-1])
        # d log p / d mean = distance / variance; d log p / d log std = distance^2 / variance - 1
        delta = self._distance * precision * of_log_probs[:, None]
        torch.sum(delta * self._distance, 0, out=actor[-1])
        actor[-1].sub_(of_log_probs.sum()).add_(of_entropy)
        if self._squash:
            delta = torch.ops.aten.tanh_backward(delta, self._mean)
        backward(self._actor[:-1], self._of_actor, delta, actor[:-1])
        backward(self._critic, self._of_critic, of_values[:, None], critic)
