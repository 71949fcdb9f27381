"""Adam without the compiler that the first optimiser of `torch.optim` imports: two seconds of each start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl.compat.torch import add_to_each, fused_adam

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1) by torch's fused kernel.

    Steps are to the bit those of `torch.optim.Adam(..., fused=True)`, whose state can be taken over.

    Attributes:
        tensors: float32, stepped in place by their `grad`; one without is left alone.
        lr, betas, eps: step size, decay of the two means, what is added to the root.
        state: by tensor, `step` [], `exp_avg` and `exp_avg_sq` of its shape.
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
        """Steps all tensors that have a gradient."""
        stepped = [tensor for tensor in self.tensors if tensor.grad is not None]
        states = [self.state[tensor] for tensor in stepped]
        steps = [state["step"] for state in states]
        add_to_each(steps, 1)
        fused_adam(
            stepped,
            [tensor.grad for tensor in stepped],
            *([state[name] for state in states] for name in _MOMENTS),
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
        """State and step size as `torch.optim.Adam` tells them; the tensors are not copied."""
        group = {"lr": self.lr, "betas": self.betas, "eps": self.eps}
        return {
            "state": dict(enumerate(self.state.values())),
            "param_groups": [group | {"params": list(range(len(self.tensors)))}],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Takes over a copy of what `state_dict` gave, here or in `torch.optim.Adam`.

        Raises:
            ValueError: It belongs to other tensors.
        """
        (group,) = saved["param_groups"]
        if len(group["params"]) != len(self.tensors):
            raise ValueError(f"{len(group['params'])} tensors there, {len(self.tensors)} here")
        self.lr, self.betas, self.eps = group["lr"], tuple(group["betas"]), group["eps"]
        for index, state in enumerate(self.state.values()):
            # Torch has no state of a tensor that was never stepped.
            for name, value in saved["state"].get(index, {}).items():
                if value.shape != state[name].shape:
                    raise ValueError(
                        f"{name} is {tuple(value.shape)} there, {tuple(state[name].shape)} here"
                    )
                state[name].copy_(value)
