"""Small networks for many independent runs at once: stacked parameters, explicit gradients, Adam.

Parameters are a dict of float32 arrays with the run as first axis: `w0` [R, 4, 8], `b0` [R, 8], … for a
4-8-4-2 network. What a run computes does not depend, to the bit, on the runs beside it: matrix products
are taken run by run with shapes that do not change, and sums over time in blocks of fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cartpole.policy_gradient.env import ACTIONS, STATE

Params = dict[str, np.ndarray]

# Sums over samples are taken in blocks of this many, padded with zeros: a sum then does not depend on how
# many zeros follow, which a matrix product of another length does (BLAS cuts it elsewhere).
BLOCK = 50
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Kingma & Ba, "Adam", 2015, algorithm 1; torch's defaults


@dataclass(frozen=True)
class Shape:
    """Widths of a multilayer perceptron with ReLU between its layers.

    Attributes:
        hidden: Widths of the hidden layers.
        outputs: Number of outputs: 2 logits for a policy, 1 for a value.
        inputs: Number of inputs.
    """

    hidden: tuple[int, ...] = (8, 4)
    outputs: int = ACTIONS
    inputs: int = STATE

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        sizes = (self.inputs, *self.hidden, self.outputs)
        return list(pairwise(sizes))


def initial(shape: Shape, rngs: Sequence[np.random.Generator]) -> Params:
    """Returns parameters drawn as torch's `nn.Linear` does: U(-1/sqrt(fan_in), 1/sqrt(fan_in)).

    Args:
        shape: The network's widths.
        rngs: One generator a run.
    """
    params: Params = {}
    for layer, (fan_in, fan_out) in enumerate(shape.layers):
        bound = fan_in**-0.5
        drawn = [rng.uniform(-bound, bound, (fan_in + 1, fan_out)) for rng in rngs]
        both = np.asarray(drawn, np.float32)
        params[f"w{layer}"], params[f"b{layer}"] = both[:, :-1].copy(), both[:, -1].copy()
    return params


def stacked(networks: Sequence[Mapping[str, np.ndarray]]) -> Params:
    """Returns single networks as one stack [R, …]."""
    return {name: np.stack([each[name] for each in networks]) for name in networks[0]}


def take(params: Mapping[str, np.ndarray], rows: np.ndarray | slice | int) -> Params:
    """Returns the parameters of some runs (a copy); of a single one, without the first axis."""
    return {name: value[rows].copy() for name, value in params.items()}


def forward(params: Mapping[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """Returns outputs [R, N, outputs] for inputs float32 [R, N, inputs]."""
    hidden = inputs
    last = len(params) // 2 - 1
    for layer in range(last + 1):
        hidden = hidden @ params[f"w{layer}"]
        hidden += params[f"b{layer}"][:, None]
        if layer < last:
            np.maximum(hidden, 0, out=hidden)
    return hidden


def activations(params: Mapping[str, np.ndarray], inputs: np.ndarray) -> list[np.ndarray]:
    """Returns the inputs, what each hidden layer puts out, and the outputs, as `gradients` needs them."""
    found = [inputs]
    last = len(params) // 2 - 1
    for layer in range(last + 1):
        hidden = found[-1] @ params[f"w{layer}"]
        hidden += params[f"b{layer}"][:, None]
        found.append(np.maximum(hidden, 0, out=hidden) if layer < last else hidden)
    return found


def gradients(
    params: Mapping[str, np.ndarray], activated: Sequence[np.ndarray], output_gradient: np.ndarray
) -> Params:
    """Returns the gradient of a loss by the parameters (backpropagation), summed over samples.

    Args:
        params: The network's parameters.
        activated: What :func:`activations` returned for samples [R, N, …].
        output_gradient: Gradient of the loss by the outputs, float32 [R, N, outputs]; zero for samples
            that do not count.
    """
    found: Params = {}
    slope = output_gradient
    for layer in reversed(range(len(params) // 2)):
        inputs = activated[layer]
        found[f"w{layer}"], found[f"b{layer}"] = _summed(inputs, slope)
        if layer:
            slope = slope @ params[f"w{layer}"].swapaxes(1, 2)
            slope *= inputs > 0
    return found


def _summed(inputs: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by a layer's weights [R, i, o] and biases [R, o] from its inputs and slopes [R, N, …]."""
    runs, samples, width = inputs.shape
    out = slope.shape[-1]
    if samples > BLOCK:
        if missing := -samples % BLOCK:
            inputs = np.pad(inputs, ((0, 0), (0, missing), (0, 0)))
            slope = np.pad(slope, ((0, 0), (0, missing), (0, 0)))
        inputs = inputs.reshape(runs, -1, BLOCK, width)
        slope = slope.reshape(runs, -1, BLOCK, out)
        ones = np.ones((1, BLOCK), np.float32)
        return (inputs.swapaxes(2, 3) @ slope).sum(1), (ones @ slope).sum(1)[:, 0]
    return inputs.swapaxes(1, 2) @ slope, (np.ones((1, samples), np.float32) @ slope)[:, 0]


class Adam:
    """Adam for stacked parameters, each run with its own step size, as torch computes it.

    Args:
        params: Parameters [R, …]; changed in place by :meth:`step`.
        lr: Step size, a number or float [R].

    Attributes:
        updates: Number of steps taken.
        first, second: Running means of the gradient and of its square.
    """

    def __init__(self, params: Params, lr: float | np.ndarray) -> None:
        self.params = params
        runs = len(next(iter(params.values())))
        self.lr = np.broadcast_to(np.asarray(lr, np.float64), (runs,))
        self.first = {name: np.zeros_like(value) for name, value in params.items()}
        self.second = {name: np.zeros_like(value) for name, value in params.items()}
        self.updates = 0

    def step(self, grads: Mapping[str, np.ndarray]) -> None:
        """Takes one step against the gradients."""
        self.updates += 1
        correction = [1 - beta**self.updates for beta in BETAS]
        size = (self.lr / correction[0]).astype(np.float32)
        root = np.float32(correction[1] ** 0.5)
        for name, value in self.params.items():
            grad, first, second = grads[name], self.first[name], self.second[name]
            first += (grad - first) * np.float32(1 - BETAS[0])
            second *= np.float32(BETAS[1])
            second += np.float32(1 - BETAS[1]) * np.square(grad)
            denominator = np.sqrt(second) / root + np.float32(EPSILON)
            value -= size.reshape(-1, *[1] * (value.ndim - 1)) * (first / denominator)

    def state(self) -> dict[str, object]:
        """Returns what :meth:`restore` needs, as a checkpoint can hold it."""
        return {"updates": self.updates, "first": self.first, "second": self.second}

    def restore(self, state: Mapping[str, object]) -> None:
        """Goes on from a :meth:`state`."""
        self.updates = int(state["updates"])  # type: ignore[call-overload]
        self.first = {k: np.array(v) for k, v in state["first"].items()}  # type: ignore[attr-defined]
        self.second = {k: np.array(v) for k, v in state["second"].items()}  # type: ignore[attr-defined]
