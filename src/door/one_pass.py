"""Steps a large hypernetwork in one pass over its last layer.

Nearly all of theta is the last layer's matrix, and a step's time goes into reading and writing memory: with torch's
operations, some thirty passes over it. Its gradient is a sum of T + 1 outer products (of the present task
and of T old ones), each row of which follows from the row itself; so one pass takes each row from memory, looks ahead
with it, learns what the old tasks' weights would move by, steps it and puts it back.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from door.hypernetwork import Hypernetwork
from door.theta import BETAS, Theta, ThetaSettings
from rl.compat.torch import multiply_each
from rl.kernels import reordered_kernel

SMALLEST = 1 << 18  # weights of a last layer that are worth the second numba takes to begin


class OnePass(Theta):
    """See `Theta`; for hypernetworks that are not chunked, with the regulariser outside of the norm."""

    def __init__(
        self, hypernetwork: Hypernetwork, settings: ThetaSettings, targets: Tensor
    ) -> None:
        """See `Theta`."""
        super().__init__(hypernetwork, settings, targets)
        for tensor in hypernetwork.theta[-2:]:
            tensor.grad = None  # torch's Adam passes them over

    def backward(self, embedding: Tensor, gradient: Tensor) -> Tensor:
        """See `Theta.backward`; the last layer's gradient is kept as the two factors of its product."""
        network = self.hypernetwork
        activations = network.activations(embedding)
        self._factor, self._inputs = gradient.clone(), activations[-1][0]
        return network.backward_below(activations, gradient[None] @ network.theta[-2])

    @property
    def _stepped(self) -> list[Tensor]:
        return self.hypernetwork.theta[:-2]

    def square_norm(self) -> float:
        """See `Theta.square_norm`."""
        below = (
            torch.linalg.vector_norm(each).item() ** 2 for each in self.hypernetwork.gradients[:-2]
        )
        outer = self._factor.square().sum().item() * (1 + self._inputs.square().sum().item())
        return sum(below) + outer

    def scale(self, factor: float) -> None:
        """See `Theta.scale`."""
        multiply_each(self.hypernetwork.gradients[:-2], factor)
        self._factor *= factor

    def step(self, old: Tensor | None) -> None:
        """See `Theta.step`."""
        network, settings = self.hypernetwork, self.settings
        below, inputs = None, self._inputs.new_zeros(0, len(self._inputs))
        if old is not None:
            below = self._theta_ahead()
            activations = network.activations(old, below)
            inputs = activations[-1]
        towards = torch.zeros_like(inputs)
        weight, bias = network.theta[-2:]
        moments = [self.adam.state[tensor] for tensor in (weight, bias)]
        for moment in moments:
            moment["step"] += 1
        steps = moments[0]["step"].item()
        arrays = [weight, *(moments[0][name] for name in _MOMENTS)]
        arrays += [bias, *(moments[1][name] for name in _MOMENTS)]
        arrays += [self._factor, self._inputs, inputs, self.targets, towards]
        _pass(
            *(each.numpy() for each in arrays),
            np.float32(2 * settings.beta / max(len(inputs), 1)),
            settings.look_ahead,
            np.float32(self.adam.lr / (1 - BETAS[0] ** steps)),
            np.float32(1 / math.sqrt(1 - BETAS[1] ** steps)),
            np.float32(self.adam.eps),
        )
        if old is not None:
            network.backward_below(activations, towards, below, add=True)
        self.adam.step()


_MOMENTS = ("exp_avg", "exp_avg_sq")
_KEEP, _KEEP_SQUARE = (np.float32(beta) for beta in BETAS)
_NEW, _NEW_SQUARE = (np.float32(1 - beta) for beta in BETAS)


@reordered_kernel
def _pass(
    weight, mean, square, bias, bias_mean, bias_square,
    factor, inputs, old, targets, towards, strength, look_ahead, lr, unbias, eps,
):  # fmt: skip
    """One step of Adam for the last layer, [P, H] and [P].

    Args:
        weight, mean, square: [P, H], with the means of the gradient and of its square; stepped.
        bias, bias_mean, bias_square: [P]; stepped.
        factor, inputs: [P], [H], of the present task: its gradient is their outer product.
        old: [T, H], the layer's inputs for the old tasks.
        targets: [T, P], the weights to be kept for them.
        towards: [T, H], to which the regulariser's gradient with respect to `old` is added.
        strength: 2 beta / T.
        look_ahead: the regulariser is taken where the step without it would lead.
        lr: step size, divided by Adam's correction of the mean.
        unbias: 1 / square root of Adam's correction of the square.
        eps: Adam's.
    """
    outputs, size = weight.shape
    tasks = len(old)
    row = np.empty(size, np.float32)
    by_task = np.empty(tasks, np.float32)
    for i in range(outputs):
        own = factor[i]
        of_bias = own
        if tasks:
            ahead = bias[i]
            if look_ahead:
                first = _KEEP * bias_mean[i] + _NEW * own
                second = _KEEP_SQUARE * bias_square[i] + _NEW_SQUARE * own * own
                ahead -= lr * first / (np.sqrt(second) * unbias + eps)
                for j in range(size):
                    gradient = own * inputs[j]
                    first = _KEEP * mean[i, j] + _NEW * gradient
                    second = _KEEP_SQUARE * square[i, j] + _NEW_SQUARE * gradient * gradient
                    row[j] = weight[i, j] - lr * first / (np.sqrt(second) * unbias + eps)
            else:
                for j in range(size):
                    row[j] = weight[i, j]
            for task in range(tasks):
                given = np.float32(0)
                for j in range(size):
                    given += row[j] * old[task, j]
                slope = strength * (given + ahead - targets[task, i])
                for j in range(size):
                    towards[task, j] += slope * row[j]
                by_task[task] = slope
                of_bias += slope
        for j in range(size):
            row[j] = own * inputs[j]
        for task in range(tasks):
            slope = by_task[task]
            for j in range(size):
                row[j] += slope * old[task, j]
        for j in range(size):
            gradient = row[j]
            first = _KEEP * mean[i, j] + _NEW * gradient
            second = _KEEP_SQUARE * square[i, j] + _NEW_SQUARE * gradient * gradient
            mean[i, j] = first
            square[i, j] = second
            weight[i, j] -= lr * first / (np.sqrt(second) * unbias + eps)
        first = _KEEP * bias_mean[i] + _NEW * of_bias
        second = _KEEP_SQUARE * bias_square[i] + _NEW_SQUARE * of_bias * of_bias
        bias_mean[i] = first
        bias_square[i] = second
        bias[i] -= lr * first / (np.sqrt(second) * unbias + eps)
