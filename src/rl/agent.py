"""The plain PPO agent: actor and critic as one vector of weights under one Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.actor_critic import ActorCritic
from rl.adam import Adam
from rl.normalise import ObservationNormaliser
from rl.policy import NetworkShape, Policy, count, critic_value, initial_weights, unflatten


@dataclass(frozen=True)
class AgentSettings:
    """How an agent starts and steps.

    Attributes:
        lr: Adam's step size.
        max_grad_norm: limit of the joint norm of the gradient.
        adam_eps: Adam's epsilon (1e-5 in a2c_ppo_acktr).
        squash_mean: tanh around the mean action.
        mean_gain: orthogonal gain of the actor's last layer.
        log_std: start of the log standard deviation.
    """

    lr: float = 1e-3
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    squash_mean: bool = False
    mean_gain: float = 1.0
    log_std: float = 0.0


class PPOAgent:
    """Separate actor and critic perceptrons; see `rl.ppo.Agent` for what an update calls.

    The weights lie in one vector, so that clipping and stepping are one operation each.
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
        self._network = ActorCritic(squash=settings.squash_mean)
        self._actor, self._critic = self._split(self.weights)
        self._gradients = self._split(self.weights.grad)
        self.new_optimiser()

    def new_optimiser(self) -> None:
        """Adam without a past."""
        self.optimiser = Adam([self.weights], self.settings.lr, eps=self.settings.adam_eps)

    def set_lr(self, fraction: float) -> None:
        """Step size as a fraction of what it began with."""
        self.optimiser.lr = fraction * self.settings.lr

    def _split(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the actor's and the critic's tensors."""
        tensors = unflatten(flat, self.shape.actor + self.shape.critic)
        return tensors[: len(self.shape.actor)], tensors[len(self.shape.actor) :]

    def policy(self) -> Policy:
        """A frozen copy of the actor as it is now."""
        return Policy(self._actor, self.normaliser, squash=self.settings.squash_mean)

    def policies(self) -> list[Policy]:
        """The one that there is, whatever the tasks."""
        return [self.policy()]

    def evaluate_actions(
        self, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `rl.ppo.Agent`."""
        return self._network.evaluate(self._actor, self._critic, observations, actions)

    def values(self, observations: Tensor) -> Tensor:
        """See `rl.ppo.Agent`."""
        return critic_value(self._critic, observations)

    def optimise(self, of_log_probs: Tensor, of_entropy: float, of_values: Tensor) -> float:
        """Backward pass, clipping of the joint norm, Adam; see `rl.ppo.Agent`."""
        self._network.backward(of_log_probs, of_entropy, of_values, *self._gradients)
        norm = torch.linalg.vector_norm(self.weights.grad).item()
        scale = self.settings.max_grad_norm / (norm + 1e-6)
        if scale < 1:
            self.weights.grad.mul_(scale)
        self.optimiser.step()
        return norm

    def gradients(self) -> dict[str, Tensor]:
        """See `rl.ppo.Agent`."""
        actor = count(self.shape.actor)
        return {"actor": self.weights.grad[:actor], "critic": self.weights.grad[actor:]}

    def tensors(self) -> dict[str, Tensor]:
        """All weights by name, for a checkpoint and its digest."""
        named = {f"actor.{i}": tensor for i, tensor in enumerate(self._actor)}
        return named | {f"critic.{i}": tensor for i, tensor in enumerate(self._critic)}

    def state(self) -> dict[str, Any]:
        """Optimiser and normaliser, loadable with weights_only."""
        return {
            "squash_mean": self.settings.squash_mean,
            "optimiser": self.optimiser.state_dict(),
            "normaliser": self.normaliser.state(),
        }

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Takes back what `tensors` and `state` gave, for a continuation to the bit.

        Raises:
            ValueError: they belong to another architecture; the message says how.
        """
        for name, tensor in self.tensors().items():
            found = tensors.get(name)
            if found is None or found.shape != tensor.shape:
                shape = "missing" if found is None else f"of shape {tuple(found.shape)}"
                raise ValueError(f"{name} is {shape} there, {tuple(tensor.shape)} here")
            tensor.copy_(found)
        if state["squash_mean"] != self.settings.squash_mean:
            raise ValueError(f"squash-mean is {state['squash_mean']} there")
        self.optimiser.load_state_dict(state["optimiser"])
        self.normaliser.set_state(state["normaliser"])
