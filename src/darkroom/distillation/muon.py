"""Muon: steps along the momentum's nearest orthogonal matrix.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon):
Nesterov momentum, made orthogonal by five steps of a quintic Newton-Schulz iteration, so that a matrix's rare
directions are learned as fast as its common ones. For matrices between hidden layers; all else is left to AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the iteration, those of the publication
STEPS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Returns U V^T for U S V^T, about: singular values between 0.7 and 1.2.

    Args:
        matrices: float32 [k, a, b].
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """The optimizer.

    Args:
        matrices: (parameter [M, a, b], number of equal parts of b that are matrices of their own).
        lr: Step size, of matrices whose entries' mean square is about 1 / max(a, b).
        momentum: Share of the momentum that is kept.
        weight_decay: Share of a weight that is taken off, times lr.
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
        """Makes a step; all matrices of one shape go through the iteration together."""
        (group,) = self.param_groups
        together: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter, parts in zip(group["params"], self._parts, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
            ahead = parameter.grad.add(state["momentum"], alpha=group["momentum"])
            split = ahead.unflatten(2, (parts, -1)).transpose(1, 2).flatten(0, 1)
            together[split.shape[1:]].append(split)
        made = {
            shape: iter(orthogonal(torch.cat(each)).split([len(e) for e in each]))
            for shape, each in together.items()
        }
        for parameter, parts in zip(group["params"], self._parts, strict=True):
            streams, inputs, outputs = parameter.shape
            step = next(made[torch.Size((inputs, outputs // parts))])
            step = step.unflatten(0, (streams, parts)).transpose(1, 2).flatten(2)
            # Wide layers take larger steps, so that their outputs change as much as those of square ones.
            scale = max(1.0, outputs / parts / inputs) ** 0.5
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(step, alpha=-group["lr"] * scale)
