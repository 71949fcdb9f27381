"""Muon: steps along the nearest orthogonal matrix of the momentum.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon).
With the gradient G, the momentum M and the learning rate lr:

    M = momentum M + G
    O = orthogonalise(G + momentum M)            # Nesterov; U V^T of the singular value decomposition U S V^T
    W = (1 - lr weight_decay) W - lr sqrt(max(1, outputs / inputs)) O

so that rare directions are learned as fast as common ones. For matrices between hidden layers; AdamW steps the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the Newton-Schulz iteration, those of the publication
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return about U V^T for U S V^T, with singular values between 0.7 and 1.2, by Newton-Schulz iteration.

    Args:
        matrices: float32 [k, a, b].
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """The optimizer, as a torch optimizer.

    Args:
        matrices: Pairs of a parameter [streams, inputs, outputs] and the number of equal parts of its outputs that are
            matrices of their own.
        lr: Learning rate.
        momentum: Decay of the momentum.
        weight_decay: Share of a weight that is subtracted, times lr.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[torch.nn.Parameter, int]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        self._parts = [parts for _, parts in matrices]
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": [parameter for parameter, _ in matrices]}], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Step all matrices by their gradients; those of the same shape share the iterations."""
        (group,) = self.param_groups
        updates_by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter, parts in zip(group["params"], self._parts, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
            nesterov = parameter.grad.add(state["momentum"], alpha=group["momentum"])
            matrices = nesterov.unflatten(2, (parts, -1)).transpose(1, 2).flatten(0, 1)
            updates_by_shape[matrices.shape[1:]].append(matrices)
        orthogonal = {
            shape: iter(orthogonalise(torch.cat(updates)).split([len(u) for u in updates]))
            for shape, updates in updates_by_shape.items()
        }
        for parameter, parts in zip(group["params"], self._parts, strict=True):
            streams, inputs, outputs = parameter.shape
            update = next(orthogonal[torch.Size((inputs, outputs // parts))])
            update = update.unflatten(0, (streams, parts)).transpose(1, 2).flatten(2)
            scale = max(1.0, outputs / parts / inputs) ** 0.5
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * scale)
