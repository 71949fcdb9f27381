"""The agents' network: view, direction and mission to logits of the actions and a value.

    x_t = FiLM tables of the 49 cells, by mission                         [49 C]   (`skills.agents.film_layers`)
    y_t = relu(W_input x_t + bias by direction + bias by mission)          [H]
    h_t = GRU(W_inner y_t + b_inner, h_(t-1)), h = 0 where an episode begins [G]   (without memory: relu of the first)
    logits, value = W_head h_t + W_skip y_t + b_head                        [choices + 1]

A key whose locked door is known, and a locked door whose key is in the hand, are cells of their own (`kernels.FITS`).
The backward pass is written out: autograd's bookkeeping costs as much as these small products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from skills.agents import kernels
from skills.agents.film_layers import (
    CELL_PARTS,
    MATCHES,
    PARTS,
    SECOND_PARTS,
    Array,
    FilmTables,
    MissionIndex,
    part_sizes,
)
from skills.agents.kernels import AREA, CELL_SIZES
from skills.levels.codes import ACTIONS

EMBEDDING_SPREAD = (
    0.3  # standard deviation of initial embeddings; with larger ones the gates begin saturated
)
_IMAGE_LAYERS = (*CELL_PARTS, "match", "input", "direction")
FROZEN = {
    "nothing": (),
    "eyes": _IMAGE_LAYERS,
    "trunk": (*_IMAGE_LAYERS, "inner", "inner_bias", "memory", "memory_bias"),
}
"""Names of the weights that do not train, by value of the flag `frozen`."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Attributes:
        channels: Size C of a cell's embedding.
        hidden: Width H of the layer over all cells.
        memory: Width G of the GRU, or of a plain layer if not `recurrent`.
        recurrent: Whether there is a GRU.
        choices: Number of logits: the actions, or a gate's experts.
        keep_locks: Whether the memory also holds the colours of locked doors that the episode has shown, so that
            a key is known to fit while its door is out of sight.
        two_objects: Whether missions may have two objects.
    """

    channels: int
    hidden: int
    memory: int
    recurrent: bool = True  # the values of checkpoints that lack one of these
    choices: int = ACTIONS
    keep_locks: bool = False
    two_objects: bool = False

    @property
    def kept(self) -> int:
        """Size of the state carried to the next step: the memory, and the known locks as one number."""
        return self.memory + self.keep_locks

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights by name."""
        film, gate = 2 * self.channels + self.hidden, (3 if self.recurrent else 1) * self.memory
        shapes: dict[str, tuple[int, ...]] = {}
        shapes |= {
            name: (size, self.channels) for name, size in zip(CELL_PARTS, CELL_SIZES, strict=True)
        }
        matches = MATCHES**2 if self.two_objects else MATCHES
        shapes |= {"match": (matches, self.channels)}
        shapes |= {name: (size, film) for name, size in part_sizes(self.two_objects).items()}
        shapes |= {"direction": (4, self.hidden), "input": (self.hidden, AREA * self.channels)}
        shapes |= {"inner": (gate, self.hidden), "inner_bias": (gate,)}
        if self.recurrent:
            shapes |= {"memory": (gate, self.memory), "memory_bias": (self.memory,)}
        head = self.choices + 1
        return shapes | {
            "head": (head, self.memory),
            "skip": (head, self.hidden),
            "head_bias": (head,),
        }


def named_views(flat: Array, shape: Shape) -> dict[str, Array]:
    """Return views of the weights in a vector, by name."""
    views, start = {}, 0
    for name, size in shape.weights().items():
        stop = start + int(np.prod(size))
        views[name], start = flat[start:stop].reshape(size), stop
    return views


def weight_count(shape: Shape) -> int:
    """Return the number of weights."""
    return sum(int(np.prod(size)) for size in shape.weights().values())


def initial_weights(shape: Shape, generator: torch.Generator) -> Array:
    """Return initial weights as a vector: orthogonal (Saxe et al. 2014), with logits near 0, hence a uniform policy."""
    flat = np.zeros(weight_count(shape), np.float32)
    for name, weight in named_views(flat, shape).items():
        if name in (*CELL_PARTS, *PARTS, *SECOND_PARTS, "match", "direction"):
            weight[:] = EMBEDDING_SPREAD * torch.randn(weight.shape, generator=generator).numpy()
        elif weight.ndim == 2:
            gain = (
                2**0.5
                if name in ("input", "inner") and not (name == "inner" and shape.recurrent)
                else 1.0
            )
            blocks = (
                weight.reshape(-1, shape.memory, weight.shape[1])
                if name in ("inner", "memory")
                else weight[None]
            )
            for block in blocks:
                drawn = torch.empty(block.shape)
                torch.nn.init.orthogonal_(drawn, gain, generator=generator)
                block[:] = drawn.numpy()
            if name in ("head", "skip"):
                weight[:-1] *= 0.01
    return flat


def with_two_objects(flat: Array, shape: Shape, initial: Array) -> Array:
    """Return weights for missions with two objects; missions with one have the same logits and values as before.

    Args:
        flat: Weights of `shape`, for missions with one object.
        shape: Its sizes.
        initial: Weights of the same sizes with `two_objects`, of which those of a second object are taken.
    """
    widened = initial.copy()
    views = named_views(widened, replace(shape, two_objects=True))
    for name, weight in named_views(flat, shape).items():
        views[name][: len(weight)] = weight
    for name in SECOND_PARTS:
        views[name][0] = 0  # the row of missions with one object
    return widened


@dataclass(frozen=True)
class Sequences:
    """Inputs of a network over T steps of N environments, of which S are selected.

    Attributes:
        images: uint8 [T, N, 147].
        directions: uint8 [T, N].
        rows: Rows of the missions in the FiLM tables, int64 [T, N].
        begins: Whether an episode begins, bool [T, N]; the memory is empty then.
        memory: State before the first step, float32 [N, kept].
        which: The selected columns, int64 [S].
    """

    images: NDArray[np.uint8]
    directions: NDArray[np.uint8]
    rows: NDArray[np.int64]
    begins: NDArray[np.bool_]
    memory: Array
    which: NDArray[np.int64]


class Network:
    """A network with buffers for one number of sequences, reused by the next call.

    Args:
        shape: Sizes.
        weights: Vector of `weight_count(shape)` weights, read at every call.

    Attributes:
        flat: This vector.
        weights: Views of it by name.
    """

    def __init__(self, shape: Shape, weights: Array) -> None:
        self.shape, self.flat = shape, weights
        self.weights = named_views(weights, shape)
        self._torch = {name: torch.from_numpy(weight) for name, weight in self.weights.items()}
        self._shape = (0, 0)

    def film_tables(self, missions: MissionIndex) -> FilmTables:
        """Return the FiLM tables of all missions in an index."""
        return FilmTables.of(missions, self.weights, self.shape.channels)

    def forward(self, inputs: Sequences, film: FilmTables) -> Array:
        """Return logits and value, float32 [T, S, choices + 1], until the next call.

        Afterwards `memory_after` is the memory after the last step, and `backward` can be called.
        """
        steps, columns = len(inputs.images), len(inputs.which)
        self._allocate(steps, columns)
        self._inputs, self._film = inputs, film
        kernels.known_locks(
            inputs.images, inputs.which, inputs.begins, inputs.memory[:, -1], self.shape.keep_locks, self._locks
        )  # fmt: skip
        kernels.embed_cells(
            inputs.images, inputs.which, inputs.rows, self._locks, film.tables, self._cells
        )
        transposed = {name: torch.from_numpy(layer) for name, layer in film.transposed.items()}
        torch.mm(_flat(self._cells), transposed["input"], out=_flat(self._hidden))
        kernels.add_bias_relu(
            self._hidden,
            inputs.directions,
            inputs.rows,
            inputs.which,
            self.weights["direction"],
            film.bias,
        )
        torch.addmm(
            self._torch["inner_bias"],
            _flat(self._hidden),
            transposed["inner"],
            out=_flat(self._gates),
        )
        if self.shape.recurrent:
            self._gru(inputs, film)
        else:
            np.maximum(self._gates, 0, out=self._memory[1:])
        torch.addmm(
            self._torch["head_bias"],
            _flat(self._memory[1:]),
            self._torch["head"].T,
            out=_flat(self._outputs),
        )
        _flat(self._outputs).addmm_(_flat(self._hidden), self._torch["skip"].T)
        return self._outputs

    @property
    def memory_after(self) -> Array:
        """State after the last step, float32 [S, kept]."""
        if not self.shape.keep_locks:
            return self._memory[-1]
        self._kept[:, :-1], self._kept[:, -1] = self._memory[-1], self._locks[-1]
        return self._kept

    def backward(self, grad_outputs: Array, gradients: Mapping[str, Array]) -> None:
        """Write the gradients of the weights from the gradient of the last outputs, float32 [T, S, choices + 1]."""
        inputs, film = self._inputs, self._film
        flat, hidden = _flat(grad_outputs), _flat(self._hidden)
        grads = {name: torch.from_numpy(gradient) for name, gradient in gradients.items()}
        torch.mm(flat.T, _flat(self._memory[1:]), out=grads["head"])
        torch.mm(flat.T, hidden, out=grads["skip"])
        torch.sum(flat, 0, out=grads["head_bias"])
        torch.mm(flat, self._torch["head"], out=_flat(self._grad_memory))
        if self.shape.recurrent:
            self._gru_backward(inputs, grads)
        else:
            np.multiply(self._grad_memory, self._memory[1:] > 0, out=self._gates)
        grad_gates = _flat(self._gates)
        torch.mm(grad_gates.T, hidden, out=grads["inner"])
        torch.sum(grad_gates, 0, out=grads["inner_bias"])
        grad_hidden = _flat(self._grad_hidden)
        torch.mm(grad_gates, self._torch["inner"], out=grad_hidden)
        grad_hidden.addmm_(flat, self._torch["skip"])
        grad_bias = np.zeros_like(film.bias)
        gradients["direction"][:] = 0
        kernels.bias_relu_backward(
            self._hidden,
            self._grad_hidden,
            inputs.directions,
            inputs.rows,
            inputs.which,
            gradients["direction"],
            grad_bias,
        )
        torch.mm(grad_hidden.T, _flat(self._cells), out=grads["input"])
        grad_tables = np.zeros_like(film.tables)
        # The embeddings are not needed again
        torch.mm(grad_hidden, self._torch["input"], out=_flat(self._cells))
        kernels.embed_cells_backward(
            inputs.images, inputs.which, inputs.rows, self._locks, self._cells, grad_tables
        )
        film.backward(grad_tables, grad_bias, gradients)

    def _gru(self, inputs: Sequences, film: FilmTables) -> None:
        """Run the GRU through all steps."""
        self._memory[0] = inputs.memory[inputs.which, : self.shape.memory]
        kernels.gru_sequence(
            self._gates, self._across, film.transposed["memory"], self.weights["memory_bias"],
            inputs.begins, inputs.which, self._before, self._memory,
        )  # fmt: skip

    def _gru_backward(self, inputs: Sequences, grads: Mapping[str, torch.Tensor]) -> None:
        """Run backward through all steps; `_gates` becomes the gradient of the gates' inputs."""
        kernels.gru_sequence_backward(
            self._gates, self._across, self.weights["memory"], inputs.begins, inputs.which, self._before,
            self._grad_memory,
        )  # fmt: skip
        grad_across = _flat(self._across)
        torch.mm(grad_across.T, _flat(self._before), out=grads["memory"])
        torch.sum(grad_across[:, 2 * self.shape.memory :], 0, out=grads["memory_bias"])

    def _allocate(self, steps: int, columns: int) -> None:
        if self._shape == (steps, columns):
            return
        shape, self._shape = self.shape, (steps, columns)
        gate = (3 if shape.recurrent else 1) * shape.memory

        def empty(*sizes: int) -> Array:
            return np.empty(sizes, np.float32)

        self._cells = empty(steps, columns, AREA * shape.channels)
        self._hidden, self._grad_hidden = empty(2, steps, columns, shape.hidden)
        self._gates = empty(steps, columns, gate)
        self._memory = empty(steps + 1, columns, shape.memory)
        self._grad_memory = empty(steps, columns, shape.memory)
        self._outputs = empty(steps, columns, self.shape.choices + 1)
        self._locks = np.zeros((steps, columns), np.int64)
        self._kept = empty(columns, shape.kept)
        if shape.recurrent:
            self._across, self._before = (
                empty(steps, columns, gate),
                empty(steps, columns, shape.memory),
            )


def _flat(array: Array) -> torch.Tensor:
    """Return a view [T * S, ...] for torch."""
    return torch.from_numpy(array.reshape(-1, array.shape[-1]))
