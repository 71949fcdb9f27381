"""The plain PPO agent: actor and critic as one vector of weights with one Adam optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.actor_critic import (
    Forward,
    NetworkShape,
    backward,
    count,
    critic_value,
    forward,
    initial_weights,
    unflatten,
)
from rl.adam import Adam
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from rl.ppo import Loss


@dataclass(frozen=True)
class AgentSettings:
    """Initialisation and optimiser of an agent.

    Attributes:
        lr: Adam's step size.
        max_grad_norm: Limit of the joint norm of the gradient.
        adam_eps: Adam's epsilon.
        squash_mean: Pass the mean action through tanh.
        mean_gain: Orthogonal gain of the actor's last layer.
        log_std: Initial log standard deviation.
    """

    lr: float
    max_grad_norm: float
    adam_eps: float
    squash_mean: bool
    mean_gain: float
    log_std: float


class PPOAgent:
    """Separate actor and critic networks, an `rl.ppo.Agent`.

    The weights are one vector, so that clipping and the optimiser step are one operation each.
    """

    def __init__(
        self, shape: NetworkShape, settings: AgentSettings, generator: torch.Generator
    ) -> None:
        self.shape = shape
        self.settings = settings
        self.normaliser = ObservationNormaliser(shape.observation_size)
        actor = initial_weights(
            shape.actor, generator, output_gain=settings.mean_gain, log_std=settings.log_std
        )
        critic = initial_weights(shape.critic, generator, output_gain=2**0.5)
        self.weights = torch.cat((actor, critic))
        self.weights.grad = torch.zeros_like(self.weights)
        self._actor, self._critic = self._split(self.weights)
        self._gradients = self._split(self.weights.grad)
        self.new_optimiser()

    def new_optimiser(self) -> None:
        """Replace the optimiser by a new one."""
        self.optimiser = Adam([self.weights], self.settings.lr, eps=self.settings.adam_eps)

    def set_lr(self, fraction: float) -> None:
        """Set the step size to a fraction of its initial value."""
        self.optimiser.lr = fraction * self.settings.lr

    def _split(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return views of the actor's and the critic's tensors."""
        tensors = unflatten(flat, self.shape.actor + self.shape.critic)
        return tensors[: len(self.shape.actor)], tensors[len(self.shape.actor) :]

    def policy(self) -> Policy:
        """Return a frozen copy of the current actor."""
        return Policy(self._actor, self.normaliser, squash=self.settings.squash_mean)

    def policies(self) -> list[Policy]:
        """Return the single policy, which serves all tasks."""
        return [self.policy()]

    def values(self, observations: Tensor) -> Tensor:
        """Return the critic's values [B] of observations [B, O]."""
        return critic_value(self._critic, observations)

    def forward(self, observations: Tensor, actions: Tensor) -> Forward:
        """Evaluate actor and critic on a minibatch."""
        squash = self.settings.squash_mean
        return forward(self._actor, self._critic, observations, actions, squash=squash)

    def gradient_step(self, forward: Forward, loss: Loss) -> float:
        """Backpropagate, clip the joint norm of the gradient, step Adam; return the norm before clipping."""
        backward(forward, loss.d_log_probs, loss.d_entropy, loss.d_values, *self._gradients)
        assert self.weights.grad is not None
        norm = torch.linalg.vector_norm(self.weights.grad).item()
        scale = self.settings.max_grad_norm / (norm + 1e-6)
        if scale < 1:
            self.weights.grad.mul_(scale)
        self.optimiser.step()
        return norm

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last loss by name."""
        assert self.weights.grad is not None
        actor = count(self.shape.actor)
        return {"actor": self.weights.grad[:actor], "critic": self.weights.grad[actor:]}

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights by name, for a checkpoint and its digest."""
        named = {f"actor.{i}": tensor for i, tensor in enumerate(self._actor)}
        return named | {f"critic.{i}": tensor for i, tensor in enumerate(self._critic)}

    def state(self) -> dict[str, Any]:
        """Return the state of optimiser and normaliser, loadable with `weights_only`."""
        return {
            "squash_mean": self.settings.squash_mean,
            "optimiser": self.optimiser.state_dict(),
            "normaliser": self.normaliser.state(),
        }

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the weights from `tensors` and the rest from `state`; training then continues to the bit.

        Raises:
            ValueError: They belong to another architecture; the message names the difference.
        """
        for name, tensor in self.tensors().items():
            saved = tensors.get(name)
            if saved is None or saved.shape != tensor.shape:
                shape = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise ValueError(f"{name} is {shape} there, {tuple(tensor.shape)} here")
            tensor.copy_(saved)
        if state["squash_mean"] != self.settings.squash_mean:
            raise ValueError(f"squash-mean is {state['squash_mean']} there")
        self.optimiser.load_state_dict(state["optimiser"])
        self.normaliser.set_state(state["normaliser"])
