"""The gradient step of a large hypernetwork, with one pass over its last layer.

Nearly all of Theta is the last layer's matrix, and reading and writing it takes most of the time of a step: thirty
passes with torch's operations. The layer's gradient is a sum of T + 1 outer products, of the current task and of the T
old ones, and a row of it depends on that row of the matrix alone. So one pass reads a row, looks ahead, computes the
regulariser's gradient, and writes the row with Adam's step.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from door.hypernet.update import BETAS, HyperUpdate
from rl.compat.torch import multiply_each
from rl.kernels import reordered_kernel

_MOMENTS = ("exp_avg", "exp_avg_sq")


class FusedHyperUpdate(HyperUpdate):
    """`HyperUpdate` for a hypernetwork without chunks whose regulariser is added after clipping.

    The last layer's part of g_Theta is never written down: it is the outer product of g_W and the layer's inputs.
    """

    def _theta_gradient(self) -> Tensor:
        network = self.hypernetwork
        for tensor in network.theta[-2:]:
            tensor.grad = None  # the Adam of the other layers leaves these out
        activations = network.activations(self.embedding)
        self._factor, self._inputs = self.weights_gradient.clone(), activations[-1][0]
        return network.backward_hidden(activations, self.weights_gradient[None] @ network.theta[-2])

    def _theta_square_norm(self) -> float:
        hidden = self.hypernetwork.gradients[:-2]
        squares = sum(torch.linalg.vector_norm(gradient).item() ** 2 for gradient in hidden)
        # ||g x^T||^2 = ||g||^2 ||x||^2, and the bias has the gradient g.
        last = self._factor.square().sum().item() * (1 + self._inputs.square().sum().item())
        return squares + last

    def _scale_theta_gradient(self, factor: float) -> None:
        multiply_each(self.hypernetwork.gradients[:-2], factor)
        self._factor *= factor

    def _looking_ahead(self) -> list[Tensor]:
        return self.hypernetwork.theta[:-2]

    def _step_theta(self) -> None:
        network, settings = self.hypernetwork, self.settings
        old_inputs = self._inputs.new_zeros(0, len(self._inputs))
        if self._regularised:
            ahead = self._theta_ahead()
            activations = network.activations(self._old_embeddings, ahead)
            old_inputs = activations[-1]
        d_old_inputs = torch.zeros_like(old_inputs)
        weight, bias = network.theta[-2:]
        weight_state, bias_state = self._theta_adam.state[weight], self._theta_adam.state[bias]
        for state in (weight_state, bias_state):
            state["step"] += 1
        steps = weight_state["step"].item()
        tensors = [weight, *(weight_state[name] for name in _MOMENTS)]
        tensors += [bias, *(bias_state[name] for name in _MOMENTS)]
        tensors += [self._factor, self._inputs, old_inputs, self._targets, d_old_inputs]
        step_last_layer(
            *(tensor.numpy() for tensor in tensors),
            np.float32(2 * settings.beta / max(len(old_inputs), 1)),
            settings.look_ahead,
            np.float32(self._theta_adam.lr / (1 - BETAS[0] ** steps)),
            np.float32(1 / math.sqrt(1 - BETAS[1] ** steps)),
            np.float32(self._theta_adam.eps),
        )
        if self._regularised:
            network.backward_hidden(activations, d_old_inputs, ahead, add=True)
        self._theta_adam.step()


_KEEP, _KEEP_SQUARE = (np.float32(beta) for beta in BETAS)
_NEW, _NEW_SQUARE = (np.float32(1 - beta) for beta in BETAS)


@reordered_kernel
def step_last_layer(
    weight, mean, square, bias, bias_mean, bias_square,
    factor, inputs, old, targets, d_old, strength, look_ahead, lr, unbias, eps,
):  # fmt: skip
    """Step the last layer, W [P, H] and b [P], with Adam and the regulariser.

    It equals these lines (tests/door/test_hyper_agent.py); `adam` returns tensor, mean and square after a step:

        ahead_W, ahead_b = adam(W, factor inputs^T)[0], adam(b, factor)[0]      # W, b without look-ahead
        slopes = strength * (old @ ahead_W.T + ahead_b - targets)               # [T, P], dR/dW*_j
        d_old += slopes @ ahead_W
        W, mean, square = adam(W, factor inputs^T + slopes.T @ old)
        b, bias_mean, bias_square = adam(b, factor + slopes.sum(0))

    Args:
        weight, mean, square: [P, H], W and Adam's moments of its gradient and its square; overwritten.
        bias, bias_mean, bias_square: [P], b likewise; overwritten.
        factor, inputs: [P], [H], of the current task: the gradient of W is their outer product.
        old: [T, H], inputs of the layer for the old tasks.
        targets: [T, P], W*_j.
        d_old: [T, H]; the regulariser's derivative with respect to `old` is added.
        strength: 2 beta / T.
        look_ahead: Evaluate the regulariser after the step without it.
        lr: Step size / (1 - beta_1^t).
        unbias: 1 / sqrt(1 - beta_2^t).
        eps: Adam's epsilon.
    """
    outputs, size = weight.shape
    tasks = len(old)
    row = np.empty(size, np.float32)
    slopes = np.empty(tasks, np.float32)
    for i in range(outputs):
        own = factor[i]
        bias_gradient = own
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
                generated = np.float32(0)
                for j in range(size):
                    generated += row[j] * old[task, j]
                slope = strength * (generated + ahead - targets[task, i])
                for j in range(size):
                    d_old[task, j] += slope * row[j]
                slopes[task] = slope
                bias_gradient += slope
        for j in range(size):
            row[j] = own * inputs[j]
        for task in range(tasks):
            slope = slopes[task]
            for j in range(size):
                row[j] += slope * old[task, j]
        for j in range(size):
            gradient = row[j]
            first = _KEEP * mean[i, j] + _NEW * gradient
            second = _KEEP_SQUARE * square[i, j] + _NEW_SQUARE * gradient * gradient
            mean[i, j] = first
            square[i, j] = second
            weight[i, j] -= lr * first / (np.sqrt(second) * unbias + eps)
        first = _KEEP * bias_mean[i] + _NEW * bias_gradient
        second = _KEEP_SQUARE * bias_square[i] + _NEW_SQUARE * bias_gradient * bias_gradient
        bias_mean[i] = first
        bias_square[i] = second
        bias[i] -= lr * first / (np.sqrt(second) * unbias + eps)
