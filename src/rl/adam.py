"""Adam without `torch.optim`, whose first optimiser imports a compiler and takes two seconds at every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl.compat.torch import add_to_each, fused_adam

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1) with torch's fused kernel.

    Steps equal those of `torch.optim.Adam(..., fused=True)` to the bit, and the state dicts are interchangeable.

    Attributes:
        tensors: float32, changed in place according to their `grad`; a tensor without gradient is not changed.
        lr, betas, eps: Step size, decay rates of the two moments, term added to the denominator.
        state: By tensor: `step` [], and the moments `exp_avg` and `exp_avg_sq` of its shape.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.tensors = list(tensors)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.state = {
            tensor: {"step": torch.zeros(())}
            | {name: torch.zeros_like(tensor) for name in _MOMENTS}
            for tensor in self.tensors
        }

    def step(self) -> None:
        """Change all tensors that have a gradient."""
        stepped = [tensor for tensor in self.tensors if tensor.grad is not None]
        states = [self.state[tensor] for tensor in stepped]
        means, squares = ([state[name] for state in states] for name in _MOMENTS)
        steps = [state["step"] for state in states]
        add_to_each(steps, 1)
        fused_adam(
            stepped,
            [tensor.grad for tensor in stepped if tensor.grad is not None],
            means,
            squares,
            [],
            steps,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return state and step size in the format of `torch.optim.Adam`; the tensors are not copied."""
        group = {"lr": self.lr, "betas": self.betas, "eps": self.eps}
        return {
            "state": dict(enumerate(self.state.values())),
            "param_groups": [group | {"params": list(range(len(self.tensors)))}],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a copy of a state dict, from here or from `torch.optim.Adam`.

        Raises:
            ValueError: The state belongs to other tensors.
        """
        (group,) = saved["param_groups"]
        if len(group["params"]) != len(self.tensors):
            raise ValueError(f"{len(group['params'])} tensors there, {len(self.tensors)} here")
        self.lr, self.betas, self.eps = group["lr"], tuple(group["betas"]), group["eps"]
        for index, state in enumerate(self.state.values()):
            # torch has no state for a tensor that never had a gradient.
            for name, value in saved["state"].get(index, {}).items():
                if value.shape != state[name].shape:
                    raise ValueError(
                        f"{name} is {tuple(value.shape)} there, {tuple(state[name].shape)} here"
                    )
                state[name].copy_(value)
