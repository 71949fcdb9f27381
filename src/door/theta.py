"""How a hypernetwork's theta is stepped: Adam, held to what it gave for the old tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from door.hypernetwork import Hypernetwork, regulariser
from rl.adam import Adam
from rl.compat.torch import multiply_each

BETAS = (0.9, 0.999)  # torch's own


@dataclass(frozen=True)
class ThetaSettings:
    """What a step needs to know.

    Attributes:
        lr, adam_eps: of Adam.
        beta: strength of the regulariser; 0: none.
        look_ahead: evaluate it at theta + the step that Adam is about to make.
    """

    lr: float
    adam_eps: float
    beta: float
    look_ahead: bool


def adam(tensors: list[Tensor], gradients: list[Tensor], lr: float, eps: float) -> Adam:
    """Adam over tensors whose gradients are computed elsewhere."""
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.requires_grad_(False)
        tensor.grad = gradient
    return Adam(tensors, lr, betas=BETAS, eps=eps)


class Theta:
    """Steps theta with torch, whatever the hypernetwork looks like.

    A step is: `backward`, `square_norm`, `scale`, `step`.

    Attributes:
        adam: its optimiser.
    """

    def __init__(
        self, hypernetwork: Hypernetwork, settings: ThetaSettings, targets: Tensor
    ) -> None:
        """Begins a task.

        Args:
            hypernetwork: stepped in place.
            settings: see there.
            targets: [T, P], weights to be kept for the T old tasks.
        """
        self.hypernetwork, self.settings, self.targets = hypernetwork, settings, targets
        self.adam = adam(hypernetwork.theta, hypernetwork.gradients, settings.lr, settings.adam_eps)
        looks = settings.beta and len(targets) and settings.look_ahead
        self._ahead = self._copies() if looks else None

    def _copies(self) -> Adam:
        """An Adam over copies of theta, to see where a step would lead."""
        copies = [tensor.clone() for tensor in self._stepped]
        gradients = self.hypernetwork.gradients[: len(copies)]
        return adam(copies, gradients, self.settings.lr, self.settings.adam_eps)

    @property
    def _stepped(self) -> list[Tensor]:
        """What torch's Adam steps."""
        return self.hypernetwork.theta

    def set_lr(self, lr: float) -> None:
        """Another step size."""
        for each in (self.adam, self._ahead):
            if each is not None:
                each.lr = lr

    def backward(self, embedding: Tensor, gradient: Tensor) -> Tensor:
        """Takes dL/d(weights) [P] of the present task at its embedding [1, te_dim]; gives dL/d(embedding)."""
        return self.hypernetwork.backward(embedding, gradient[None])

    def square_norm(self) -> float:
        """Squared norm of the gradient."""
        norms = (torch.linalg.vector_norm(each).item() for each in self.hypernetwork.gradients)
        return sum(norm**2 for norm in norms)

    def scale(self, factor: float) -> None:
        """Multiplies the gradient."""
        multiply_each(self.hypernetwork.gradients, factor)

    def add_regulariser(self, old: Tensor) -> None:
        """Adds the gradient of `door.hypernetwork.regulariser` for the old embeddings [T, te_dim]."""
        theta = self._theta_ahead()
        _, gradient = regulariser(self.hypernetwork, old, self.targets, self.settings.beta, theta)
        self.hypernetwork.backward(old, gradient, theta, add=True)

    def step(self, old: Tensor | None) -> None:
        """Adds the regulariser, unless there are no old embeddings, and steps theta."""
        if old is not None:
            self.add_regulariser(old)
        self.adam.step()

    def _theta_ahead(self) -> list[Tensor]:
        """Theta as Adam's next step would leave it, which is not made."""
        if self._ahead is None:
            return self._stepped
        ahead = self._ahead.tensors
        for target, tensor in zip(ahead, self._stepped, strict=True):
            target.copy_(tensor)
            state, now = self._ahead.state[target], self.adam.state[tensor]
            for name, value in now.items():
                state[name].copy_(value)
        self._ahead.step()
        return ahead
