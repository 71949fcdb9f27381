"""Token embeddings: from the steps of a window to vectors.

A token is the sum of embedding vectors. The layouts:

- `one`: one token a step, with all that is known of it.
- `three`: Decision Transformer's order (Chen et al. 2021, arXiv 2106.01345, section 3), with the reward received in
  place of the return to go: action, reward, state.
- `cross`: the same three as parallel streams, see :mod:`darkroom.distillation.transformer`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.distillation.shape import Shape
from darkroom.rooms.grid import ACTIONS

PERIODS = (3, 5, 8, 13, 21, 40)  # of the sines and cosines of a coordinate [cells]


def fourier_basis(reach: int) -> Tensor:
    """Return sine and cosine of every coordinate for each period, and the coordinate, float32 [2 reach + 1, f]."""
    at = torch.arange(-reach, reach + 1, dtype=torch.float32)[:, None]
    angle = 2 * math.pi * at / torch.tensor(PERIODS, dtype=torch.float32)
    return torch.cat([angle.sin(), angle.cos(), at / reach], dim=1)


class TokenEmbedding(nn.Module):
    """All embedding vectors in one table, so that a token is one lookup.

    Rows of the table: cells (now, then before), actions, rewards, times, and a row of zeros. Names of parameters are
    part of the checkpoint format.

    Args:
        shape: The transformer's shape.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        rows = shape.size**2 if shape.states == "table" else 2 * shape.reach + 1
        planes = 1 if shape.states == "table" else 2  # own vectors for rows and for columns
        moments = 2 if shape.layout == "one" else 1  # own vectors for the cells now and before
        self._column, self._previous = rows, planes * rows
        self._action = moments * planes * rows
        self._reward = self._action + ACTIONS + 1
        self._time = self._reward + NO_REWARD + 1
        self._zero = self._time + shape.limit
        if shape.states == "fourier":
            self.register_buffer("basis", fourier_basis(shape.reach), persistent=False)
            rows = self.basis.shape[1]
        self.places = nn.Parameter(torch.empty(moments * planes, rows, shape.width))
        self.others = nn.Parameter(torch.empty(self._zero - self._action, shape.width))

    def forward(self, context: Context, coordinates: Tensor | None = None) -> Tensor:
        """Return tokens: [R, n, width] for `one`, [R, 3 n, width] for `three`, [3, R, n, width] for `cross`.

        Args:
            context: R windows of n steps.
            coordinates: Coordinates of the rows and columns of every window's room, int64 [R, 2, sides], from 0 to
                2 reach; by default counted from the centre, which is `reach`.
        """
        device = self.others.device
        at = {name: torch.from_numpy(values).to(device) for name, values in vars(context).items()}
        time, previous_time = self._time + at["times"], self._time + at["previous_times"]
        action, reward = self._action + at["actions"], self._reward + at["rewards"]
        previous_time = torch.where(at["actions"] == NO_ACTION, self._zero, previous_time)
        now = self._cells(at["cells"], at["sizes"], coordinates, 0)
        if self.shape.layout == "one":
            previous = self._cells(at["previous_cells"], at["sizes"], coordinates, self._previous)
            return self._sum([*previous, action, reward, *now, time])
        parts = (
            self._sum([action, previous_time]),
            self._sum([reward, time]),
            self._sum([*now, time]),
        )
        if self.shape.layout == "three":
            return torch.stack(parts, dim=2).flatten(1, 2)
        return torch.stack(parts)

    def _cells(
        self, cells: Tensor, sizes: Tensor, coordinates: Tensor | None, begin: int
    ) -> list[Tensor]:
        """Return the table's rows of cells [R, n]: one, or one for the row and one for the column."""
        missing = cells == NO_CELL
        if self.shape.states == "table":
            return [torch.where(missing, self._zero, begin + cells)]
        side = sizes[:, None]
        rows = []
        for axis, index in enumerate((cells // side, cells % side)):
            if coordinates is None:
                at = index - side // 2 + self.shape.reach
            else:
                at = coordinates[:, axis].gather(1, index.clamp(min=0))
            rows.append(torch.where(missing, self._zero, begin + axis * self._column + at))
        return rows

    def _sum(self, rows: list[Tensor]) -> Tensor:
        """Return the sums of rows of the table, each int64 [R, n]."""
        places = self.places
        if self.shape.states == "fourier":
            places = self.basis @ places
        zero = self.others.new_zeros(1, self.shape.width)
        table = torch.cat([places.flatten(0, 1), self.others, zero])
        chosen = torch.stack(rows, dim=-1)
        summed = F.embedding_bag(chosen.flatten(0, -2), table, mode="sum")
        return summed.view(*chosen.shape[:-1], -1)
