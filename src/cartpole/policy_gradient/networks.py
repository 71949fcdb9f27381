"""Small networks of many independent runs at once: forward pass, backpropagation, Adam.

Parameters are a dict of float32 arrays with the run as first axis: `w0` [R, 4, 8], `b0` [R, 8], … for a
4-8-4-2 network. Per run, everything equals `torch.nn.Sequential` of `Linear` and `ReLU`, autograd and
`torch.optim.Adam` (tests compare them). A run's results do not depend on the other runs of the stack, to the
bit: matrix products are computed run by run in blocks of fixed shape, and their sums over time in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cartpole.policy_gradient.env import ACTIONS, STATE

Params = dict[str, np.ndarray]

# Products over more samples are taken in blocks of this size. BLAS rounds products of other shapes differently, of
# sums over samples and of single rows; in blocks of fixed size, padding changes neither.
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

    hidden: tuple[int, ...]
    outputs: int = ACTIONS
    inputs: int = STATE

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        sizes = (self.inputs, *self.hidden, self.outputs)
        return list(pairwise(sizes))


def initial(shape: Shape, rngs: Sequence[np.random.Generator]) -> Params:
    """Return parameters drawn as torch's `nn.Linear` does: U(-1/sqrt(fan_in), 1/sqrt(fan_in)).

    Args:
        shape: The network's widths.
        rngs: One generator per run.
    """
    params: Params = {}
    for layer, (fan_in, fan_out) in enumerate(shape.layers):
        bound = fan_in**-0.5
        drawn = [rng.uniform(-bound, bound, (fan_in + 1, fan_out)) for rng in rngs]
        both = np.asarray(drawn, np.float32)
        params[f"w{layer}"], params[f"b{layer}"] = both[:, :-1].copy(), both[:, -1].copy()
    return params


def stacked(networks: Sequence[Mapping[str, np.ndarray]]) -> Params:
    """Return single networks as one stack [R, …]."""
    return {name: np.stack([network[name] for network in networks]) for name in networks[0]}


def take(params: Mapping[str, np.ndarray], rows: np.ndarray | slice | int) -> Params:
    """Return a copy of the parameters of some runs; of a single run, without the first axis."""
    return {name: value[rows].copy() for name, value in params.items()}


def forward(params: Mapping[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """Return outputs [R, N, outputs] for inputs float32 [R, N, inputs]."""
    return activations(params, inputs)[-1]


def greedy(policies: Mapping[str, np.ndarray], observations: np.ndarray) -> np.ndarray:
    """Return the action with the larger logit, bool [R, N], for observations float32 [R, N, 4]."""
    logits = forward(policies, observations)
    return logits[..., 1] > logits[..., 0]


def activations(params: Mapping[str, np.ndarray], inputs: np.ndarray) -> list[np.ndarray]:
    """Return the inputs, the outputs of all hidden layers, and the network's outputs, for :func:`gradients`."""
    layers = [inputs]
    last = len(params) // 2 - 1
    for layer in range(last + 1):
        hidden = _product(layers[-1], params[f"w{layer}"])
        hidden += params[f"b{layer}"][:, None]
        layers.append(np.maximum(hidden, 0, out=hidden) if layer < last else hidden)
    return layers


def gradients(
    params: Mapping[str, np.ndarray], activated: Sequence[np.ndarray], output_gradient: np.ndarray
) -> Params:
    """Return the gradient of a loss with respect to the parameters (backpropagation), summed over samples.

    Args:
        params: The network's parameters.
        activated: Result of :func:`activations` for samples [R, N, …].
        output_gradient: Gradient of the loss with respect to the outputs, float32 [R, N, outputs]; zero for
            padded samples.
    """
    result: Params = {}
    delta = output_gradient  # gradient with respect to a layer's outputs
    for layer in reversed(range(len(params) // 2)):
        inputs = activated[layer]
        result[f"w{layer}"], result[f"b{layer}"] = _layer_gradients(inputs, delta)
        if layer:
            delta = _product(delta, params[f"w{layer}"].swapaxes(1, 2))
            delta *= inputs > 0
    return result


def _product(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return rows [R, N, i] times weights [R, i, o], in blocks if the rows are whole blocks, as padded ones are."""
    runs, samples, width = rows.shape
    if samples <= BLOCK or samples % BLOCK:
        return rows @ weights
    blocks = rows.reshape(runs, -1, BLOCK, width) @ weights[:, None]
    return blocks.reshape(runs, samples, -1)


def _added(parts: np.ndarray) -> np.ndarray:
    """Return the sum over axis 1, added in order, which numpy's sum does not promise."""
    total = parts[:, 0].copy()
    for part in range(1, parts.shape[1]):
        total += parts[:, part]
    return total


def _layer_gradients(inputs: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gradients of weights [R, i, o] and biases [R, o] from a layer's inputs and deltas [R, N, …]."""
    runs, samples, width = inputs.shape
    out = delta.shape[-1]
    if samples > BLOCK:
        if missing := -samples % BLOCK:
            inputs = np.pad(inputs, ((0, 0), (0, missing), (0, 0)))
            delta = np.pad(delta, ((0, 0), (0, missing), (0, 0)))
        inputs = inputs.reshape(runs, -1, BLOCK, width)
        delta = delta.reshape(runs, -1, BLOCK, out)
        ones = np.ones((1, BLOCK), np.float32)
        return _added(inputs.swapaxes(2, 3) @ delta), _added(ones @ delta)[:, 0]
    return inputs.swapaxes(1, 2) @ delta, (np.ones((1, samples), np.float32) @ delta)[:, 0]


class Adam:
    """Adam (Kingma & Ba 2015) for stacked parameters, with one step size per run, as torch computes it.

    Args:
        params: Parameters [R, …]; changed in place by :meth:`step`.
        lr: Step size, a number or float [R].

    Attributes:
        updates: Number of steps taken.
        first, second: Moving averages m and v of the gradient and of its square.
    """

    def __init__(self, params: Params, lr: float | np.ndarray) -> None:
        self.params = params
        runs = len(next(iter(params.values())))
        self.lr = np.broadcast_to(np.asarray(lr, np.float64), (runs,))
        self.first = {name: np.zeros_like(value) for name, value in params.items()}
        self.second = {name: np.zeros_like(value) for name, value in params.items()}
        self.updates = 0

    def step(self, grads: Mapping[str, np.ndarray]) -> None:
        """Take one step against the gradients."""
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
        """Return the state for a checkpoint."""
        return {"updates": self.updates, "first": self.first, "second": self.second}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore a :meth:`state`."""
        self.updates = int(state["updates"])
        self.first = {k: np.array(v) for k, v in state["first"].items()}
        self.second = {k: np.array(v) for k, v in state["second"].items()}
