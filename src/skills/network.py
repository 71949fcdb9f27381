"""The agents' network: what is seen, where it heads and the mission to logits of the actions and a value.

A cell's embedding is modulated by the mission, FiLM (Perez et al. 2018): scale and shift by the sum of embeddings of
the mission's parts. To it comes one of four by whether colour and type are the mission's: that both are is no sum of
the two, and the channels of a cell are not mixed before all cells are. Keys and locks that fit each other have a state
of their own (`gates.FITS`). All cells together go through one layer and, unless the agent is to have no memory, a GRU.
The backward pass is written out: autograd's bookkeeping costs as much as these small products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from skills import gates
from skills.codes import ACTIONS, MISSION_SIZES
from skills.films import CELL_PARTS, PARTS, Array, Films, Missions
from skills.gates import AREA, CELL_SIZES

EMBEDDING_SPREAD = 0.3  # at first; with sums of wider ones the gates begin saturated
_EYES = (*CELL_PARTS, "match", "input", "direction")
FROZEN = {
    "nothing": (),
    "eyes": _EYES,
    "trunk": (*_EYES, "inner", "inner_bias", "memory", "memory_bias"),
}
"""Weights that do not learn, by name of the choice: none; those of the image; all but mission and heads."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Attributes:
        channels: Of a cell's embedding.
        hidden: Width of the layer over all cells.
        memory: Width of the GRU, or of a plain layer if not `recurrent`.
        recurrent: Whether there is a GRU.
        choices: What is chosen from: the actions, or a gate's experts.
        keep_locks: Whether the colours of locked doors that an episode has shown are kept beside the memory, so that
            a key is known to fit while its door is out of sight.
    """

    channels: int = 16
    hidden: int = 128
    memory: int = 128
    recurrent: bool = True
    choices: int = ACTIONS
    keep_locks: bool = False

    @property
    def kept(self) -> int:
        """What is kept of a step for the next one: the memory, and the known locks as a number."""
        return self.memory + self.keep_locks

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights by name."""
        film, gate = 2 * self.channels + self.hidden, (3 if self.recurrent else 1) * self.memory
        shapes: dict[str, tuple[int, ...]] = {}
        shapes |= {
            name: (size, self.channels) for name, size in zip(CELL_PARTS, CELL_SIZES, strict=True)
        }
        shapes |= {"match": (4, self.channels)}
        shapes |= {name: (size, film) for name, size in zip(PARTS, MISSION_SIZES, strict=True)}
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


def split(flat: Array, shape: Shape) -> dict[str, Array]:
    """Views of the weights in a vector, by name."""
    found, start = {}, 0
    for name, size in shape.weights().items():
        stop = start + int(np.prod(size))
        found[name], start = flat[start:stop].reshape(size), stop
    return found


def count(shape: Shape) -> int:
    """Number of weights."""
    return sum(int(np.prod(size)) for size in shape.weights().values())


def initial(shape: Shape, generator: torch.Generator) -> Array:
    """Returns first weights as a vector.

    Layers are orthogonal (Saxe et al. 2014), the choices' last one nearly 0, so that all are tried at first.
    """
    flat = np.zeros(count(shape), np.float32)
    for name, weight in split(flat, shape).items():
        if name in (*CELL_PARTS, *PARTS, "match", "direction"):
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


@dataclass(frozen=True)
class Sequences:
    """What a network saw in T steps of N environments, and which of these are meant.

    Attributes:
        images: uint8 [T, N, 147].
        directions: uint8 [T, N].
        rows: Of the missions among those of the films, int64 [T, N].
        begins: Whether an episode begins there, bool [T, N]; the memory is empty then.
        memory: What was kept before the first step, float32 [N, kept].
        which: Columns, int64 [S].
    """

    images: NDArray[np.uint8]
    directions: NDArray[np.uint8]
    rows: NDArray[np.int64]
    begins: NDArray[np.bool_]
    memory: Array
    which: NDArray[np.int64]


class Network:
    """A network at work on a given number of sequences; memory for one shape of them is kept.

    Args:
        shape: Its sizes.
        weights: Vector of `count(shape)` weights, read at each call.

    Attributes:
        flat: This vector.
        weights: Views of it by name.
    """

    def __init__(self, shape: Shape, weights: Array) -> None:
        self.shape, self.flat = shape, weights
        self.weights = split(weights, shape)
        self._torch = {name: torch.from_numpy(weight) for name, weight in self.weights.items()}
        self._shape = (0, 0)

    def films(self, missions: Missions) -> Films:
        """Of all missions met so far."""
        return Films.of(missions, self.weights, self.shape.channels)

    def forward(self, seen: Sequences, films: Films) -> Array:
        """Returns logits and value, float32 [T, S, choices + 1]; the next call overwrites them.

        `memory_after` is then the memory after the last step, and `backward` can be called.
        """
        steps, columns = len(seen.images), len(seen.which)
        self._room(steps, columns)
        self._seen, self._films = seen, films
        gates.known_locks(
            seen.images, seen.which, seen.begins, seen.memory[:, -1], self.shape.keep_locks, self._locks
        )  # fmt: skip
        gates.look_up(seen.images, seen.which, seen.rows, self._locks, films.tables, self._cells)
        across = {name: torch.from_numpy(layer) for name, layer in films.across.items()}
        torch.mm(_flat(self._cells), across["input"], out=_flat(self._hidden))
        gates.add_bias_relu(
            self._hidden,
            seen.directions,
            seen.rows,
            seen.which,
            self.weights["direction"],
            films.bias,
        )
        torch.addmm(
            self._torch["inner_bias"],
            _flat(self._hidden),
            across["inner"],
            out=_flat(self._gates),
        )
        if self.shape.recurrent:
            self._remember(seen, films)
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
        """What is kept after the last step, float32 [S, kept]."""
        if not self.shape.keep_locks:
            return self._memory[-1]
        self._kept[:, :-1], self._kept[:, -1] = self._memory[-1], self._locks[-1]
        return self._kept

    def backward(self, of_outputs: Array, gradients: Mapping[str, Array]) -> None:
        """From the gradient of the last outputs, float32 [T, S, choices + 1], to those of the weights, written."""
        seen, films = self._seen, self._films
        flat, hidden = _flat(of_outputs), _flat(self._hidden)
        grads = {name: torch.from_numpy(gradient) for name, gradient in gradients.items()}
        torch.mm(flat.T, _flat(self._memory[1:]), out=grads["head"])
        torch.mm(flat.T, hidden, out=grads["skip"])
        torch.sum(flat, 0, out=grads["head_bias"])
        torch.mm(flat, self._torch["head"], out=_flat(self._of_memory))
        if self.shape.recurrent:
            self._remember_backward(seen, grads)
        else:
            np.multiply(self._of_memory, self._memory[1:] > 0, out=self._gates)
        of_gates = _flat(self._gates)
        torch.mm(of_gates.T, hidden, out=grads["inner"])
        torch.sum(of_gates, 0, out=grads["inner_bias"])
        of_hidden = _flat(self._of_hidden)
        torch.mm(of_gates, self._torch["inner"], out=of_hidden)
        of_hidden.addmm_(flat, self._torch["skip"])
        of_bias = np.zeros_like(films.bias)
        gradients["direction"][:] = 0
        gates.bias_relu_backward(
            self._hidden,
            self._of_hidden,
            seen.directions,
            seen.rows,
            seen.which,
            gradients["direction"],
            of_bias,
        )
        torch.mm(of_hidden.T, _flat(self._cells), out=grads["input"])
        of_tables = np.zeros_like(films.tables)
        torch.mm(
            of_hidden, self._torch["input"], out=_flat(self._cells)
        )  # what was seen is not needed again
        gates.look_up_backward(
            seen.images, seen.which, seen.rows, self._locks, self._cells, of_tables
        )
        films.backward(of_tables, of_bias, gradients)

    def _remember(self, seen: Sequences, films: Films) -> None:
        """The GRU through all steps."""
        self._memory[0] = seen.memory[seen.which, : self.shape.memory]
        gates.remember(
            self._gates, self._across, films.across["memory"], self.weights["memory_bias"],
            seen.begins, seen.which, self._before, self._memory,
        )  # fmt: skip

    def _remember_backward(self, seen: Sequences, grads: Mapping[str, torch.Tensor]) -> None:
        """Through all steps back; `_gates` becomes its own gradient."""
        gates.remember_backward(
            self._gates, self._across, self.weights["memory"], seen.begins, seen.which, self._before, self._of_memory
        )  # fmt: skip
        of_across = _flat(self._across)
        torch.mm(of_across.T, _flat(self._before), out=grads["memory"])
        torch.sum(of_across[:, 2 * self.shape.memory :], 0, out=grads["memory_bias"])

    def _room(self, steps: int, columns: int) -> None:
        if self._shape == (steps, columns):
            return
        shape, self._shape = self.shape, (steps, columns)
        gate = (3 if shape.recurrent else 1) * shape.memory

        def empty(*sizes: int) -> Array:
            return np.empty(sizes, np.float32)

        self._cells = empty(steps, columns, AREA * shape.channels)
        self._hidden, self._of_hidden = empty(2, steps, columns, shape.hidden)
        self._gates = empty(steps, columns, gate)
        self._memory = empty(steps + 1, columns, shape.memory)
        self._of_memory = empty(steps, columns, shape.memory)
        self._outputs = empty(steps, columns, self.shape.choices + 1)
        self._locks = np.zeros((steps, columns), np.int64)
        self._kept = empty(columns, shape.kept)
        if shape.recurrent:
            self._across, self._before = (
                empty(steps, columns, gate),
                empty(steps, columns, shape.memory),
            )


def _flat(array: Array) -> torch.Tensor:
    """All steps and sequences one under another, as torch has them."""
    return torch.from_numpy(array.reshape(-1, array.shape[-1]))
