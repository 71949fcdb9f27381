"""From steps to vectors: which tables are looked up, and how many tokens a step becomes.

A token is the sum of the vectors of what it tells. `one` tells everything of a step in one token. `three` is the
order of Decision Transformer (Chen et al. 2021, arXiv 2106.01345, section 3) with the reward received in place of the
return to go: action, reward, state. `cross` keeps the three apart as streams (see `darkroom.distillation.blocks`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.distillation.shape import Shape
from darkroom.rooms.grid import ACTIONS

PERIODS = (3, 5, 8, 13, 21, 40)  # of the waves that stand for a coordinate [cells]


def waves(reach: int) -> Tensor:
    """Sine and cosine of every coordinate for each period, and the coordinate itself, float32 [2 reach + 1, f]."""
    at = torch.arange(-reach, reach + 1, dtype=torch.float32)[:, None]
    angle = 2 * math.pi * at / torch.tensor(PERIODS, dtype=torch.float32)
    return torch.cat([angle.sin(), angle.cos(), at / reach], dim=1)


class Tables(nn.Module):
    """All vectors that tokens are sums of, in one table.

    Args:
        shape: See there.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        across = 2 * shape.reach + 1
        per = shape.size**2 if shape.states == "table" else across
        planes = 1 if shape.states == "table" else 2  # rows and columns have vectors of their own
        moments = 2 if shape.layout == "one" else 1  # and so have the cells now and before
        self._second, self._before = per, planes * per
        self._action = moments * planes * per
        self._reward = self._action + ACTIONS + 1
        self._time = self._reward + NO_REWARD + 1
        self._nowhere = self._time + shape.limit
        if shape.states == "fourier":
            self.register_buffer("basis", waves(shape.reach), persistent=False)
            per = self.basis.shape[1]
        self.places = nn.Parameter(torch.empty(moments * planes, per, shape.width))
        self.others = nn.Parameter(torch.empty(self._nowhere - self._action, shape.width))

    def forward(self, context: Context, places: Tensor | None = None) -> Tensor:
        """Tokens, [R, n, width] for `one`, [R, 3 n, width] for `three`, [3, R, n, width] for `cross`.

        Args:
            context: R windows of n steps.
            places: Where the rows and columns of each window's room lie, counted from the one farthest up or left that
                the tables have, int64 [R, 2, sides]; by default about the centre, one beside the other.
        """
        device = self.others.device
        at = {
            name: torch.from_numpy(getattr(context, name)).to(device)
            for name in ("before", "acted", "actions", "rewards", "cells", "times", "sizes")
        }
        time, acted = self._time + at["times"], self._time + at["acted"]
        action, reward = self._action + at["actions"], self._reward + at["rewards"]
        acted = torch.where(at["actions"] == NO_ACTION, self._nowhere, acted)
        now = self._cells(at["cells"], at["sizes"], places, 0)
        if self.shape.layout == "one":
            before = self._cells(at["before"], at["sizes"], places, self._before)
            return self._sum([*before, action, reward, *now, time])
        parts = self._sum([action, acted]), self._sum([reward, time]), self._sum([*now, time])
        if self.shape.layout == "three":
            return torch.stack(parts, dim=2).flatten(1, 2)
        return torch.stack(parts)

    def _cells(
        self, cells: Tensor, sizes: Tensor, places: Tensor | None, begin: int
    ) -> list[Tensor]:
        """Indices of the vectors of cells [R, n]."""
        missing = cells == NO_CELL
        if self.shape.states == "table":
            return [torch.where(missing, self._nowhere, begin + cells)]
        side = sizes[:, None]
        found = []
        for which, place in enumerate((cells // side, cells % side)):  # of no cell: taken out below
            if places is None:
                place = place - side // 2 + self.shape.reach
            else:
                place = places[:, which].gather(1, place.clamp(min=0))
            found.append(torch.where(missing, self._nowhere, begin + which * self._second + place))
        return found

    def _sum(self, indices: list[Tensor]) -> Tensor:
        places = self.places
        if self.shape.states == "fourier":
            places = self.basis @ places
        nowhere = self.others.new_zeros(1, self.shape.width)
        table = torch.cat([places.flatten(0, 1), self.others, nowhere])
        chosen = torch.stack(indices, dim=-1)
        summed = F.embedding_bag(chosen.flatten(0, -2), table, mode="sum")
        return summed.view(*chosen.shape[:-1], -1)
