"""What missions make of cells: the part of the network that is computed once for all that is seen.

There are few cells and few missions, so each cell's embedding under each mission is a row of a table (`Films.tables`),
and looking a view up there takes the place of computing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.kernels import fused_kernel, kernel
from skills.codes import ANY_COLOUR, ANY_TYPE, BALL, BOX, DOOR, GOAL, KEY, MISSION_SIZES
from skills.gates import CELLS

Array = NDArray[np.float32]
PARTS = ("verb", "colour", "kind", "place")  # of a mission
CELL_PARTS = ("cell_type", "cell_colour", "cell_state")
OBJECTS = (DOOR, KEY, BALL, BOX, GOAL)  # that a mission can speak of
LAYERS = ("input", "inner", "memory")
_STRIDES = np.cumprod([1, *MISSION_SIZES[:0:-1]])[::-1]  # of a mission's number


class Missions:
    """The missions met so far, in the order in which they came.

    Args:
        codes: uint8 [M, 4].

    Attributes:
        codes: The same, and those that came since.
        match: Which cells have a mission's colour, plus 2 for its type, int64 [M, len(gates.CELLS)].
    """

    def __init__(self, codes: NDArray[np.uint8] | None = None) -> None:
        self._row = np.full(int(np.prod(MISSION_SIZES)), -1, np.int64)
        self.codes = np.zeros((0, len(PARTS)), np.uint8)
        self.match = _match(self.codes)
        if codes is not None:
            self._row[codes @ _STRIDES] = np.arange(len(codes))
            self.codes, self.match = np.array(codes), _match(codes)

    def rows(self, missions: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Which of `codes` each mission is; new ones are added. uint8 [..., 4] to int64 [...]."""
        index = missions @ _STRIDES
        found = self._row[index]
        if (found < 0).any():
            new = np.unique(index[found < 0])
            self._row[new] = len(self.codes) + np.arange(len(new))
            parts = np.stack(np.unravel_index(new, MISSION_SIZES), -1).astype(np.uint8)
            self.codes = np.concatenate([self.codes, parts])
            self.match = _match(self.codes)
            found = self._row[index]
        return found


def _match(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """See `Missions.match`; a mission without a colour or a type means any."""
    colour, kind = codes[:, 1, None], codes[:, 2, None]
    colour_fits = (colour == ANY_COLOUR) | (colour == CELLS[:, 1])
    type_fits = (kind == ANY_TYPE) | (kind == CELLS[:, 0])
    return np.where(np.isin(CELLS[:, 0], OBJECTS), colour_fits + 2 * type_fits, 0)


@dataclass
class Films:
    """What missions make of cells with given weights.

    Attributes:
        codes: uint8 [M, 4].
        match: See `Missions`.
        cells: Sum of the embeddings of type, colour and state, float32 [len(gates.CELLS), C].
        film: Sum of the embeddings of the mission's parts, float32 [M, 2 C + H].
        tables: Embedding of each cell, float32 [M, len(gates.CELLS), C].
        bias: Of the layer, float32 [M, H].
        across: Layers, transposed: products of a few rows with them are twice as fast.
    """

    codes: NDArray[np.uint8]
    match: NDArray[np.int64]
    cells: Array
    film: Array
    tables: Array
    bias: Array
    across: dict[str, Array]

    @classmethod
    def of(cls, missions: Missions, weights: Mapping[str, Array], channels: int) -> Films:
        """The films of all missions met so far."""
        codes, match = missions.codes, missions.match
        film = sum(weights[name][codes[:, i]] for i, name in enumerate(PARTS))
        cells = sum(weights[name][CELLS[:, i]] for i, name in enumerate(CELL_PARTS))
        tables = np.empty((len(codes), *cells.shape), np.float32)
        _modulate(cells, film, weights["match"], match, tables)
        bias = np.ascontiguousarray(film[:, 2 * channels :])
        across = {name: weights[name].T.copy() for name in LAYERS if name in weights}
        return cls(codes, match, cells, film, tables, bias, across)

    def backward(self, of_tables: Array, of_bias: Array, gradients: Mapping[str, Array]) -> None:
        """Writes the gradients of cells and missions' parts; `of_tables` and `of_bias`: of those."""
        of_cells, of_film = np.zeros_like(self.cells), np.zeros_like(self.film)
        for name in (*CELL_PARTS, *PARTS, "match"):
            gradients[name][:] = 0
        _modulate_backward(
            self.cells, self.film, self.tables, self.match,
            of_tables, of_cells, of_film, gradients["match"],
        )  # fmt: skip
        of_film[:, 2 * self.cells.shape[1] :] = of_bias
        for i, name in enumerate(CELL_PARTS):
            _add_rows(gradients[name], CELLS[:, i], of_cells)
        for i, name in enumerate(PARTS):
            _add_rows(gradients[name], self.codes[:, i].astype(np.int64), of_film)


@fused_kernel
def _modulate(cells, film, of_match, match, tables):  # type: ignore[no-untyped-def]
    """Writes `tables`: cells, scaled by 1 + film and shifted by its second part and by how they match, cut below 0."""
    width = cells.shape[1]
    for m in range(len(match)):
        for v in range(len(cells)):
            fitting = of_match[match[m, v]]
            for c in range(width):
                value = cells[v, c] * (np.float32(1) + film[m, c]) + film[m, width + c] + fitting[c]
                tables[m, v, c] = max(value, np.float32(0))


@fused_kernel
def _modulate_backward(cells, film, tables, match, of_tables, of_cells, of_film, of_match):  # type: ignore[no-untyped-def]
    """Adds the gradients of `_modulate`'s arguments, from that of `tables`."""
    width = cells.shape[1]
    for m in range(len(match)):
        for v in range(len(cells)):
            fitting = of_match[match[m, v]]
            for c in range(width):
                value = of_tables[m, v, c] if tables[m, v, c] > 0 else np.float32(0)
                of_cells[v, c] += value * (np.float32(1) + film[m, c])
                of_film[m, c] += value * cells[v, c]
                of_film[m, width + c] += value
                fitting[c] += value


@kernel
def _add_rows(into, which, rows):  # type: ignore[no-untyped-def]
    """Adds row i of `rows` to row which[i] of `into`."""
    for i in range(len(which)):
        for c in range(rows.shape[1]):
            into[which[i], c] += rows[i, c]
