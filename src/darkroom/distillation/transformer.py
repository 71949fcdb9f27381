"""The transformer that is to learn in its context: from what it has seen of a room to its next action.

Algorithm Distillation (Laskin et al. 2022, arXiv 2210.14215, section 3): a causal sequence model of learning histories,
trained to predict the source agent's actions. It is Decision Transformer (Chen et al. 2021, arXiv 2106.01345) with the
reward received in place of the return to go, the time of the episode in place of that of the history, and cells and
actions from tables.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom.distillation.blocks import STREAMS, Block, Memory, Norms, Place
from darkroom.distillation.context import Context
from darkroom.distillation.shape import TOKENS, Shape
from darkroom.distillation.tokens import Tables
from darkroom.rooms.grid import ACTIONS

WEIGHTS = ("weight", "places", "others", "positions")  # ends of the names of matrices and tables
DEVIATION = 0.02  # of first weights, as in GPT-2 and Decision Transformer


class Transformer(nn.Module):
    """Predicts actions.

    Args:
        shape: See there.
        generator: Of the first weights.
    """

    def __init__(self, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.tables = Tables(shape)
        places = TOKENS[shape.layout] * shape.window if shape.positions == "learned" else 0
        self.positions = nn.Parameter(torch.empty(places, shape.width))
        self.norm_tokens = Norms(STREAMS[shape.layout], shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm_last = Norms(1, shape.width)
        self.head = nn.Linear(shape.width, ACTIONS)
        for name, parameter in self.named_parameters():
            if name.endswith(WEIGHTS):
                nn.init.normal_(parameter, std=DEVIATION, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        context: Context,
        memories: list[Memory] | None = None,
        place: Place | None = None,
        *,
        first: int = 0,
        places: Tensor | None = None,
    ) -> Tensor:
        """Returns logits of the action at each step, float32 [R, n, 5].

        Args:
            context: n steps of R windows.
            memories: Of each block; what is new is written to them.
            place: Where to, see :class:`darkroom.distillation.blocks.Place`; None for windows from their beginning.
            first: Place of the first step in the window.
            places: See :class:`darkroom.distillation.tokens.Tables`.
        """
        x = self._tokens(context, first, places)
        for index, block in enumerate(self.blocks):
            x = block(x, memories[index] if memories is not None else None, place)
        # The state is the last that a step tells.
        last = x[-1:, :, TOKENS[self.shape.layout] - 1 :: TOKENS[self.shape.layout]]
        return self.head(self.norm_last(last))[0]

    def policy(self, logits: Tensor) -> Tensor:
        """Returns probabilities of actions, [..., 5], from logits: what training spread over all is taken off.

        Smoothed targets (Szegedy et al. 2016, arXiv 1512.00567, section 7) are fitted best by
        (1 - share) p + share / 5, where p fits the actions themselves; what lies below share / 5 is 0.
        """
        chances = torch.softmax(logits, dim=-1)
        if share := self.shape.label_smoothing:
            chances = (chances - share / ACTIONS).clamp(min=0)
            chances = chances / chances.sum(dim=-1, keepdim=True)
        return chances

    def remember(self, context: Context, memories: list[Memory]) -> None:
        """Writes windows into empty memories; what only logits would need is not computed."""
        x = self._tokens(context, 0, None)
        for block, memory in zip(self.blocks[:-1], memories[:-1], strict=True):
            x = block(x, memory)
        self.blocks[-1].remember(x, memories[-1])

    def _tokens(self, context: Context, first: int, places: Tensor | None) -> Tensor:
        x = self.tables(context, places)
        if len(self.positions):
            begin = first * TOKENS[self.shape.layout]
            x = x + self.positions[begin : begin + x.shape[-2]]
        x = x if self.shape.layout == "cross" else x[None]
        return F.dropout(self.norm_tokens(x), self.shape.embedding_dropout, self.training)

    def inner_matrices(self) -> list[tuple[nn.Parameter, int]]:
        """Weights between hidden layers, and of how many matrices side by side each is made."""
        return [
            (layer.weight, parts)
            for block in self.blocks
            for layer, parts in (
                (block.project, 3), (block.collect, 1), (block.feed_in, 1), (block.feed_out, 1)
            )
        ]  # fmt: skip

    def memories(self, rows: int) -> list[Memory]:
        """Empty memories of a window, one a block, for `rows` windows."""
        shape = self.shape
        places = TOKENS[shape.layout] * shape.window
        size = STREAMS[shape.layout], rows, shape.heads, places, shape.width // shape.heads
        device = self.head.weight.device
        return [
            Memory(torch.zeros(size, device=device), torch.zeros(size, device=device))
            for _ in self.blocks
        ]
