"""A transformer's blocks, each with the keys and values of the steps behind it.

Pre-norm blocks as in GPT-2 (Radford et al. 2019). A stream is a sequence of its own; `one` and `three` tokens a step
are one stream, `cross` has three (action, reward, state): each has its own weights and attends to its own past and, by
cross-attention, to that of the others. At every step all three are known before the agent acts, so that all see all up
to the present step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom.distillation.shape import Shape

STREAMS = {"one": 1, "three": 1, "cross": 3}


@dataclass
class Memory:
    """Keys and values of one block.

    Attributes:
        keys, values: float32 [M, R, heads, places, width / heads], M streams.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Place:
    """Where new tokens go in a memory, and what they see.

    Attributes:
        begin: First place that is written.
        seen: Places that are looked at, from the first on.
        mask: bool [new, seen]; None if a new token sees all.
    """

    begin: int
    seen: int
    mask: Tensor | None


def causal_with_dropout(query: Tensor, key: Tensor, value: Tensor, share: float) -> Tensor:
    """Causal attention whose weights are dropped, for a processor: torch's own does all of it without a fast kernel.

    Queries go in tiles, which see no key that comes after them, and a weight is dropped by a random byte: eight of them
    cost one draw of torch's generator.

    Args:
        query, key, value: float32 [R, heads, n, d].
        share: Of the weights that become zero, in 256ths; the others grow so that the mean stays.

    Returns:
        float32 [R, heads, n, d].
    """
    steps, tile = query.shape[2], 128
    least = round(256 * share)
    later = torch.ones(tile, tile, dtype=torch.bool).triu(1)
    query = query * (query.shape[3] ** -0.5)
    found = []
    for begin in range(0, steps, tile):
        end = min(begin + tile, steps)
        scores = query[:, :, begin:end] @ key[:, :, :end].transpose(2, 3)
        own = later[: end - begin, : end - begin]
        scores[..., begin:].masked_fill_(own, float("-inf"))
        weights = scores.softmax(dim=-1)
        drawn = torch.empty(-(-weights.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        kept = drawn.view(torch.uint8)[: weights.numel()].view(weights.shape) >= least
        read = (weights * kept) @ value[:, :, :end]
        found.append(read / (1 - least / 256))
    return torch.cat(found, dim=2)


class Linears(nn.Module):
    """A linear layer for each stream: [M, ..., inputs] to [M, ..., outputs]."""

    def __init__(self, streams: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(streams, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(streams, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Applies each stream's layer."""
        if len(x) == 1:
            return F.linear(x, self.weight[0].T, self.bias[0, 0])
        flat = torch.baddbmm(self.bias, x.flatten(1, -2), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Norms(nn.Module):
    """A layer normalisation for each stream."""

    def __init__(self, streams: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(streams, width))
        self.shift = nn.Parameter(torch.zeros(streams, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises [M, R, n, width]."""
        if len(x) == 1:
            return F.layer_norm(x, x.shape[-1:], self.scale[0], self.shift[0])
        normal = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.shift[:, None, None], normal, self.scale[:, None, None])


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input.

    Args:
        shape: See there.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        streams, width = STREAMS[shape.layout], shape.width
        self.shape, self.streams = shape, streams
        self.norm_attention, self.norm_feed = Norms(streams, width), Norms(streams, width)
        self.project = Linears(streams, width, 3 * width)
        # What a stream reads from itself, from the next, and from the one after that, has weights of its own.
        self.collect = Linears(streams, streams * width, width)
        self.feed_in = Linears(streams, width, shape.feed_forward)
        self.feed_out = Linears(streams, shape.feed_forward, width)

    def forward(
        self, x: Tensor, memory: Memory | None = None, place: Place | None = None
    ) -> Tensor:
        """Returns [M, R, n, width].

        Args:
            x: Tokens, [M, R, n, width].
            memory: Keys and values of earlier tokens, which those of `x` are written to; None if there are none.
            place: Where to; None for the first n places of it.
        """
        x = x + self._dropped(self._attend(self.norm_attention(x), memory, place))
        return x + self._dropped(self.feed_out(F.gelu(self.feed_in(self.norm_feed(x)))))

    def remember(self, x: Tensor, memory: Memory) -> None:
        """Writes the keys and values of tokens [M, R, n, width] from the memory's first place on."""
        self._projected(self.norm_attention(x), memory, 0)

    def _projected(self, x: Tensor, memory: Memory | None, begin: int) -> list[Tensor]:
        """Queries, keys and values, each [M, R, heads, n, width / heads]; the last two are kept in the memory."""
        projected = [
            part.unflatten(-1, (self.shape.heads, -1)).transpose(2, 3)
            for part in self.project(x).chunk(3, dim=-1)
        ]
        if memory is not None:
            memory.keys[..., begin : begin + x.shape[2], :] = projected[1]
            memory.values[..., begin : begin + x.shape[2], :] = projected[2]
        return projected

    def _attend(self, x: Tensor, memory: Memory | None, place: Place | None) -> Tensor:
        query, key, value = self._projected(x, memory, place.begin if place else 0)
        mask = None
        if memory is not None and place is not None:
            key, value = memory.keys[..., : place.seen, :], memory.values[..., : place.seen, :]
            mask = place.mask
        # Keys are read where they lie: rolled past each other they would be copied, all of them at each step.
        read = [
            torch.cat(
                [
                    self._read(query[stream], key[other], value[other], mask, causal=place is None)
                    for other in (*range(stream, self.streams), *range(stream))
                ],
                dim=-1,
            )
            for stream in range(self.streams)
        ]
        return self.collect(torch.stack(read) if self.streams > 1 else read[0][None])

    def _read(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        """What tokens of one stream, [R, heads, n, d], read from those of another; [R, n, width]."""
        share = self.shape.attention_dropout if self.training else 0.0
        if share and query.device.type == "cpu":
            heads = causal_with_dropout(query, key, value, share)
        else:
            heads = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=share, is_causal=causal
            )
        return heads.transpose(1, 2).flatten(2)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.shape.residual_dropout, self.training)
