"""FiLM (Perez et al. 2018): cell embeddings scaled and shifted by the mission, precomputed as tables.

There are few different cells and few missions, so the modulated embedding of every cell under every mission is a row
of a table (`FilmTables.tables`), and the first layer of the network is a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.kernels import fused_kernel, kernel
from skills.agents.kernels import CELLS
from skills.levels.codes import (
    ANY_COLOUR,
    ANY_TYPE,
    BALL,
    BOX,
    DOOR,
    FIRST_MASK,
    GOAL,
    KEY,
    MISSION_SIZES,
    PUT,
    SECOND_SHIFT,
)

Array = NDArray[np.float32]
PARTS = ("verb", "colour", "kind", "place")  # parts of a mission
SECOND_PARTS = ("second_colour", "second_kind", "second_place")  # of a mission with two objects
CELL_PARTS = ("cell_type", "cell_colour", "cell_state")
OBJECTS = (DOOR, KEY, BALL, BOX, GOAL)  # types that a mission can name
LAYERS = ("input", "inner", "memory")  # weights that `forward` uses transposed
MATCHES = 4  # ways in which a cell and an object of the mission match
# Values of a mission's parts, the second object's last
_SIZES = (PUT + 1, *MISSION_SIZES[1:], *MISSION_SIZES[1:])
_STRIDES = np.cumprod([1, *_SIZES[:0:-1]])[::-1]  # to number the missions
_FIRST, _SECOND = _STRIDES[: len(PARTS)], np.array((0, *_STRIDES[len(PARTS) :]))


class MissionIndex:
    """The M missions that occurred so far, in order of occurrence.

    Args:
        codes: Missions to begin with, uint8 [M, 4].

    Attributes:
        codes: All missions, uint8 [M, 4].
        match: 1 if a cell has the mission's colour, plus 2 if it has its type; of a mission with two objects plus 4
            times the same for the second; int64 [M, len(kernels.CELLS)].
    """

    def __init__(self, codes: NDArray[np.uint8] | None = None) -> None:
        self._row = np.full(int(np.prod(_SIZES)), -1, np.int64)
        self.codes = np.zeros((0, len(PARTS)), np.uint8)
        self.match = _match(self.codes)
        if codes is not None:
            self._row[_number(codes)] = np.arange(len(codes))
            self.codes, self.match = np.array(codes), _match(codes)

    def rows(self, missions: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the rows of missions in `codes`, int64 [...]; new missions, uint8 [..., 4], are appended."""
        index = _number(missions)
        rows = self._row[index]
        if (unknown := rows < 0).any():
            new, first = np.unique(index[unknown], return_index=True)
            self._row[new] = len(self.codes) + np.arange(len(new))
            self.codes = np.concatenate([self.codes, missions[unknown][first]])
            self.match = _match(self.codes)
            rows = self._row[index]
        return rows


def _number(missions: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the numbers of missions, uint8 [..., 4], in the order of their parts."""
    return (missions & FIRST_MASK) @ _FIRST + (missions >> SECOND_SHIFT) @ _SECOND


def _match(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return `MissionIndex.match`."""
    second = np.where(codes[:, :1] == PUT, _object_match(codes >> SECOND_SHIFT), 0)
    return _object_match(codes & FIRST_MASK) + MATCHES * second


def _object_match(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how cells and one object of missions match; an object without colour or type matches any."""
    colour, kind = codes[:, 1, None], codes[:, 2, None]
    colour_fits = (colour == ANY_COLOUR) | (colour == CELLS[:, 1])
    type_fits = (kind == ANY_TYPE) | (kind == CELLS[:, 0])
    return np.where(np.isin(CELLS[:, 0], OBJECTS), colour_fits + 2 * type_fits, 0)


def part_sizes(two_objects: bool) -> dict[str, int]:
    """Return the numbers of values of a mission's parts; 0 of a second object's: there is none."""
    sizes = dict(zip(PARTS, MISSION_SIZES, strict=True))
    if not two_objects:
        return sizes
    second = zip(SECOND_PARTS, MISSION_SIZES[1:], strict=True)
    return sizes | {"verb": PUT + 1} | {name: size + 1 for name, size in second}


def _parts(codes: NDArray[np.uint8], weights: Mapping[str, Array]) -> dict[str, NDArray[np.int64]]:
    """Return the values of the parts of missions, int64 [M], by the names that the weights have."""
    first = (codes & FIRST_MASK).T.astype(np.int64)
    parts = dict(zip(PARTS, first, strict=True))
    if SECOND_PARTS[0] in weights:
        second = np.where(
            codes[:, 0] == PUT, 1 + (codes[:, 1:] >> SECOND_SHIFT).T.astype(np.int64), 0
        )
        parts |= zip(SECOND_PARTS, second, strict=True)
    return parts


@dataclass
class FilmTables:
    """FiLM tables of M missions for given weights, and copies of weights that `Network.forward` uses.

    With embedding e_v of cell v, the mission's scale g_m and shift b_m, and the vector u of how cell and mission match:
    tables[m, v] = max(0, e_v (1 + g_m) + b_m + u[match[m, v]]).

    Attributes:
        codes: Missions, uint8 [M, 4].
        match: See `MissionIndex`.
        cells: e, the sum of the embeddings of type, colour and state, float32 [len(kernels.CELLS), C].
        film: g, b and a bias of the layer over all cells: the sum of the embeddings of the mission's parts,
            float32 [M, 2 C + H].
        tables: float32 [M, len(kernels.CELLS), C].
        bias: The last part of `film`, float32 [M, H].
        transposed: Weights, transposed: products of a few rows with them are twice as fast.
    """

    codes: NDArray[np.uint8]
    match: NDArray[np.int64]
    cells: Array
    film: Array
    tables: Array
    bias: Array
    transposed: dict[str, Array]

    @classmethod
    def of(cls, missions: MissionIndex, weights: Mapping[str, Array], channels: int) -> FilmTables:
        """Compute the tables of all missions in the index."""
        codes, match = missions.codes, missions.match
        film = sum(weights[name][values] for name, values in _parts(codes, weights).items())
        cells = sum(weights[name][CELLS[:, i]] for i, name in enumerate(CELL_PARTS))
        tables = np.empty((len(codes), *cells.shape), np.float32)
        _modulate(cells, film, weights["match"], match, tables)
        bias = np.ascontiguousarray(film[:, 2 * channels :])
        transposed = {name: weights[name].T.copy() for name in LAYERS if name in weights}
        return cls(codes, match, cells, film, tables, bias, transposed)

    def backward(
        self, grad_tables: Array, grad_bias: Array, gradients: Mapping[str, Array]
    ) -> None:
        """Write the gradients of all embeddings, from the gradients of `tables` and `bias`."""
        grad_cells, grad_film = np.zeros_like(self.cells), np.zeros_like(self.film)
        parts = _parts(self.codes, gradients)
        for name in (*CELL_PARTS, *parts, "match"):
            gradients[name][:] = 0
        _modulate_backward(
            self.cells, self.film, self.tables, self.match,
            grad_tables, grad_cells, grad_film, gradients["match"],
        )  # fmt: skip
        grad_film[:, 2 * self.cells.shape[1] :] = grad_bias
        for i, name in enumerate(CELL_PARTS):
            _add_rows(gradients[name], CELLS[:, i], grad_cells)
        for name, values in parts.items():
            _add_rows(gradients[name], values, grad_film)


@fused_kernel
def _modulate(cells, film, match_bias, match, tables):
    """Write `tables`.

    Equal to: np.maximum(0, cells * (1 + film[:, None, :C]) + film[:, None, C : 2 * C] + match_bias[match])
    """
    width = cells.shape[1]
    for m in range(len(match)):
        for v in range(len(cells)):
            matched = match_bias[match[m, v]]
            for c in range(width):
                value = cells[v, c] * (np.float32(1) + film[m, c]) + film[m, width + c] + matched[c]
                tables[m, v, c] = max(value, np.float32(0))


@fused_kernel
def _modulate_backward(cells, film, tables, match, grad_tables, grad_cells, grad_film, grad_match):
    """Add the gradients of `_modulate`'s arguments, from the gradient of `tables`."""
    width = cells.shape[1]
    for m in range(len(match)):
        for v in range(len(cells)):
            matched = grad_match[match[m, v]]
            for c in range(width):
                value = grad_tables[m, v, c] if tables[m, v, c] > 0 else np.float32(0)
                grad_cells[v, c] += value * (np.float32(1) + film[m, c])
                grad_film[m, c] += value * cells[v, c]
                grad_film[m, width + c] += value
                matched[c] += value


@kernel
def _add_rows(into, which, rows):
    """Add row i of `rows` to row which[i] of `into`. Equal to: np.add.at(into, which, rows)."""
    for i in range(len(which)):
        for c in range(rows.shape[1]):
            into[which[i], c] += rows[i, c]
