"""The gradient step of HN-PPO: the PPO loss through the hypernetwork, and the regulariser that protects the old tasks.

Sources: von Oswald et al. 2020, "Continual learning with hypernetworks" (arXiv 1906.00695), for the regulariser; the
thesis "Hypernetwork-PPO for Continual RL", algorithm 1, for the order of the operations. With the hypernetwork h, its
weights Theta, the embedding e of the current task and the embeddings e_j of the T old tasks:

    W           = h(e, Theta)                               weights of the actor (without a fresh critic: and critic)
    g_W         = dL_PPO / dW                               through actor and critic
    g_Theta, g_e = (dh/dTheta)^T g_W, (dh/de)^T g_W          through the hypernetwork
    g           = g min(1, max_grad_norm / ||g||)           g: g_Theta, g_e and, if clipped jointly, g_critic
    e           = e + Adam(g_e)
    dTheta      = Adam(g_Theta), not applied                look-ahead
    g_Theta     = g_Theta + d/dTheta beta/T sum_j ||h(e_j, Theta + dTheta) - W*_j||^2        not clipped
    Theta       = Theta + Adam(g_Theta)
    critic      = critic + Adam(g_critic)

W*_j = h(e_j, Theta) is stored at the start of the current task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from door.hypernet.hypernetwork import Hypernetwork, regulariser
from rl.actor_critic import Forward, NetworkShape, backward, count, unflatten
from rl.adam import Adam
from rl.compat.torch import multiply_each
from rl.ppo import Loss

BETAS = (0.9, 0.999)  # Adam's decay rates (defaults of torch)


@dataclass(frozen=True)
class UpdateSettings:
    """Hyperparameters of a gradient step.

    Attributes:
        lr: Step size of Theta and of the embedding.
        critic_lr: Step size of the fresh critic; 0: `lr` (source).
        adam_eps: Adam's epsilon.
        max_grad_norm: Limit of the norm of g.
        clip_critic_apart: Clip the fresh critic's gradient by its own norm; the source clips it jointly with Theta's.
        critic_grad_norm: Limit of that norm.
        beta: Strength of the regulariser; 0: none.
        look_ahead: Evaluate the regulariser at Theta + dTheta; otherwise at Theta.
        clip_regulariser: Add the regulariser's gradient before clipping; the source adds it afterwards.
    """

    lr: float
    critic_lr: float
    adam_eps: float
    max_grad_norm: float
    clip_critic_apart: bool
    critic_grad_norm: float
    beta: float
    look_ahead: bool
    clip_regulariser: bool


class HyperUpdate:
    """Gradient steps on one task, with the optimisers of Theta, embedding and critic. See the top of this file.

    Attributes:
        embedding: [1, te_dim], e; changed by `step`.
        critic: [Q], weights of the fresh critic; empty if the critic is generated too. Changed by `step`.
        weights_gradient: [P], g_W of the last step.
        adams: The optimisers of Theta, embedding and critic.
    """

    def __init__(
        self,
        hypernetwork: Hypernetwork,
        embedding: Tensor,
        critic: Tensor,
        old_embeddings: Tensor,
        targets: Tensor,
        shape: NetworkShape,
        settings: UpdateSettings,
    ) -> None:
        """Start a task with new optimisers.

        Args:
            hypernetwork: h; its Theta is changed by `step`.
            embedding: [1, te_dim], e.
            critic: [Q] or empty.
            old_embeddings: [T, te_dim], e_j.
            targets: [T, P], W*_j.
            shape: Of actor and critic.
            settings: Hyperparameters.
        """
        self.hypernetwork, self.settings, self._shape = hypernetwork, settings, shape
        self.embedding, self.critic = embedding, critic
        self._old_embeddings, self._targets = old_embeddings, targets
        self._regularised = bool(settings.beta) and len(targets) > 0
        self.weights_gradient = torch.zeros(hypernetwork.outputs)
        lr, eps = settings.lr, settings.adam_eps
        self._theta_adam = _adam(hypernetwork.theta, hypernetwork.gradients, lr, eps)
        self._embedding_adam = _adam([embedding], [torch.zeros_like(embedding)], lr, eps)
        self._critic_adam = _adam(
            [critic], [torch.zeros_like(critic)], settings.critic_lr or lr, eps
        )
        self.adams = (self._theta_adam, self._embedding_adam, self._critic_adam)
        self._ahead_adam = None
        if self._regularised and settings.look_ahead:
            copies = [tensor.clone() for tensor in self._looking_ahead()]
            self._ahead_adam = _adam(copies, hypernetwork.gradients[: len(copies)], lr, eps)

    def step(self, forward: Forward, loss: Loss) -> float:
        """Do one gradient step.

        Args:
            forward: Actor and critic, with the current weights, on a minibatch.
            loss: The PPO loss of these outputs.

        Returns:
            ||g|| before clipping.
        """
        settings = self.settings
        g_actor, g_critic = split_weights(self.weights_gradient, self.critic.grad, self._shape)
        backward(forward, loss.d_log_probs, loss.d_entropy, loss.d_values, g_actor, g_critic)
        self.embedding.grad.copy_(self._theta_gradient())
        if settings.clip_regulariser:
            self._add_regulariser()
        norm = self._clip()
        self._embedding_adam.step()
        self._step_theta()
        if self.critic.numel():
            self._critic_adam.step()
        return norm

    def set_lr(self, fraction: float) -> None:
        """Set all step sizes to a fraction of their initial values."""
        settings = self.settings
        self._theta_adam.lr = self._embedding_adam.lr = fraction * settings.lr
        if self._ahead_adam is not None:
            self._ahead_adam.lr = fraction * settings.lr
        self._critic_adam.lr = fraction * (settings.critic_lr or settings.lr)

    def _clip(self) -> float:
        """Scale g to its limit; return its norm before."""
        settings, critic = self.settings, self.critic.grad
        gradients = [self.embedding.grad]
        if self.critic.numel() and settings.clip_critic_apart:
            torch.nn.utils.clip_grads_with_norm_(
                self.critic, settings.critic_grad_norm, torch.linalg.vector_norm(critic)
            )
        elif self.critic.numel():
            gradients.append(critic)
        squares = sum(torch.linalg.vector_norm(gradient).item() ** 2 for gradient in gradients)
        norm = math.sqrt(self._theta_square_norm() + squares)
        scale = settings.max_grad_norm / (norm + 1e-6)
        if scale < 1:
            self._scale_theta_gradient(scale)
            multiply_each(gradients, scale)
        return norm

    # The operations on g_Theta, in plain torch. `door.hypernet.fused_step` replaces them for a large hypernetwork.

    def _theta_gradient(self) -> Tensor:
        """Compute g_Theta, and return g_e [1, te_dim]."""
        return self.hypernetwork.backward(self.embedding, self.weights_gradient[None])

    def _theta_square_norm(self) -> float:
        """Return ||g_Theta||^2."""
        gradients = self.hypernetwork.gradients
        return sum(torch.linalg.vector_norm(gradient).item() ** 2 for gradient in gradients)

    def _scale_theta_gradient(self, factor: float) -> None:
        """Multiply g_Theta."""
        multiply_each(self.hypernetwork.gradients, factor)

    def _step_theta(self) -> None:
        """Add the regulariser's gradient to g_Theta, unless it was added before clipping, and step Adam."""
        if not self.settings.clip_regulariser:
            self._add_regulariser()
        self._theta_adam.step()

    def _add_regulariser(self) -> None:
        """Add the gradient of beta/T sum_j ||h(e_j, Theta + dTheta) - W*_j||^2 to g_Theta."""
        if not self._regularised:
            return
        network, old = self.hypernetwork, self._old_embeddings
        ahead = self._theta_ahead()
        _, g_w = regulariser(network, old, self._targets, self.settings.beta, ahead)
        network.backward(old, g_w, ahead, add=True)

    def _theta_ahead(self) -> list[Tensor]:
        """Return Theta + dTheta, where dTheta is the step that Adam would take now; or Theta without look-ahead."""
        theta = self._looking_ahead()
        if self._ahead_adam is None:
            return theta
        ahead = self._ahead_adam.tensors
        for target, tensor in zip(ahead, theta, strict=True):
            target.copy_(tensor)
            for name, value in self._theta_adam.state[tensor].items():
                self._ahead_adam.state[target][name].copy_(value)
        self._ahead_adam.step()
        return ahead

    def _looking_ahead(self) -> list[Tensor]:
        """The tensors of Theta that `_theta_ahead` returns."""
        return self.hypernetwork.theta


def split_weights(
    generated: Tensor, critic: Tensor, shape: NetworkShape
) -> tuple[list[Tensor], list[Tensor]]:
    """Return views of the tensors of actor and critic.

    Args:
        generated: [P], from the hypernetwork: the actor's and, without a fresh critic, the critic's.
        critic: [Q], of a fresh critic; otherwise not used.
        shape: Of actor and critic.
    """
    size = count(shape.actor)
    critic = generated[size:] if len(generated) > size else critic
    return unflatten(generated[:size], shape.actor), unflatten(critic, shape.critic)


def _adam(tensors: list[Tensor], gradients: list[Tensor], lr: float, eps: float) -> Adam:
    """Return an optimiser of tensors whose gradients are written elsewhere."""
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.requires_grad_(False)
        tensor.grad = gradient
    return Adam(tensors, lr, betas=BETAS, eps=eps)
