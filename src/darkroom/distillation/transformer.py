"""The transformer P(a_t | a_0, r_0, ..., s_t): from a window of steps to logits of the next action.

The causal sequence model of Algorithm Distillation (Laskin et al. 2022, arXiv 2210.14215, section 3): Decision
Transformer (Chen et al. 2021, arXiv 2106.01345) with the reward received in place of the return to go and the episode's
time in place of the history's. Pre-norm blocks as in GPT-2 (Radford et al. 2019):

    x = x + attention(norm(x));  x = x + feed_forward(norm(x))

The layouts `one` and `three` are one stream of tokens. `cross` has three (action, reward, state), each with its own
weights, which attend to their own past and, by cross-attention, to the past of the other two. At every step all three
are known before the agent acts, so all see all up to the present step.

Names of modules and parameters are part of the checkpoint format.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom.distillation.context import Context
from darkroom.distillation.embedding import TokenEmbedding
from darkroom.distillation.shape import TOKENS, Shape
from darkroom.rooms.grid import ACTIONS

STREAMS = {"one": 1, "three": 1, "cross": 3}
DECAYED = ("weight", "places", "others", "positions")  # ends of the names of matrices and tables
INITIAL_DEVIATION = 0.02  # of matrices and tables, as in GPT-2 and Decision Transformer
TILE = 128  # queries at a time in `causal_attention_with_dropout`


@dataclass
class KeyValueCache:
    """Keys and values of a block, float32 [M, R, heads, positions, width / heads], M streams."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class CacheSlot:
    """Where new tokens are written in a cache, and what they attend to.

    Attributes:
        begin: First position that is written.
        end: End of the positions that are attended to.
        mask: Which of these a new token sees, bool [new, end]; None: all.
    """

    begin: int
    end: int
    mask: Tensor | None


class Transformer(nn.Module):
    """Predictor of actions.

    Args:
        shape: Sizes and layout.
        generator: Source of the initial weights.
    """

    def __init__(self, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.tables = TokenEmbedding(shape)
        positions = TOKENS[shape.layout] * shape.window if shape.positions == "learned" else 0
        self.positions = nn.Parameter(torch.empty(positions, shape.width))
        self.norm_tokens = StreamLayerNorm(STREAMS[shape.layout], shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm_last = StreamLayerNorm(1, shape.width)
        self.head = nn.Linear(shape.width, ACTIONS)
        for name, parameter in self.named_parameters():
            if name.endswith(DECAYED):
                nn.init.normal_(parameter, std=INITIAL_DEVIATION, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        context: Context,
        caches: list[KeyValueCache] | None = None,
        slot: CacheSlot | None = None,
        *,
        first: int = 0,
        coordinates: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the action at every step, float32 [R, n, 5].

        Args:
            context: n steps of R windows.
            caches: Cache of every block, to which new keys and values are written.
            slot: Where to; None for windows from their beginning.
            first: Position of the first step in the window.
            coordinates: See :class:`darkroom.distillation.embedding.TokenEmbedding`.
        """
        x = self._tokens(context, first, coordinates)
        for index, block in enumerate(self.blocks):
            x = block(x, caches[index] if caches is not None else None, slot)
        # The state is the last token of a step.
        tokens = TOKENS[self.shape.layout]
        states = x[-1:, :, tokens - 1 :: tokens]
        return self.head(self.norm_last(states))[0]

    def policy(self, logits: Tensor) -> Tensor:
        """Return the probabilities of actions, [..., 5], with label smoothing undone.

        The smoothed targets (1 - e) p + e / 5 (Szegedy et al. 2016, arXiv 1512.00567, section 7) are fitted best by
        q = (1 - e) p + e / 5; so p = (q - e / 5) / (1 - e), clipped at 0.
        """
        probabilities = torch.softmax(logits, dim=-1)
        if share := self.shape.label_smoothing:
            probabilities = (probabilities - share / ACTIONS).clamp(min=0)
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        return probabilities

    def fill(self, context: Context, caches: list[KeyValueCache]) -> None:
        """Write the keys and values of windows to empty caches, without computing logits."""
        x = self._tokens(context, 0, None)
        for block, cache in zip(self.blocks[:-1], caches[:-1], strict=True):
            x = block(x, cache)
        self.blocks[-1].fill(x, caches[-1])

    def _tokens(self, context: Context, first: int, coordinates: Tensor | None) -> Tensor:
        x = self.tables(context, coordinates)
        if len(self.positions):
            begin = first * TOKENS[self.shape.layout]
            x = x + self.positions[begin : begin + x.shape[-2]]
        x = x if self.shape.layout == "cross" else x[None]
        return F.dropout(self.norm_tokens(x), self.shape.embedding_dropout, self.training)

    def hidden_matrices(self) -> list[tuple[nn.Parameter, int]]:
        """Return the weights between hidden layers, and how many matrices are concatenated in each."""
        return [
            (layer.weight, count)
            for block in self.blocks
            for layer, count in (
                (block.project, 3), (block.collect, 1), (block.feed_in, 1), (block.feed_out, 1)
            )
        ]  # fmt: skip

    def empty_caches(self, rows: int) -> list[KeyValueCache]:
        """Return an empty cache per block, for `rows` windows."""
        shape = self.shape
        positions = TOKENS[shape.layout] * shape.window
        size = STREAMS[shape.layout], rows, shape.heads, positions, shape.width // shape.heads
        device = self.head.weight.device
        return [
            KeyValueCache(torch.zeros(size, device=device), torch.zeros(size, device=device))
            for _ in self.blocks
        ]


class Block(nn.Module):
    """Attention and a feed-forward layer, with residual connections.

    Args:
        shape: The transformer's shape.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        streams, width = STREAMS[shape.layout], shape.width
        self.shape, self.streams = shape, streams
        self.norm_attention = StreamLayerNorm(streams, width)
        self.norm_feed = StreamLayerNorm(streams, width)
        self.project = StreamLinear(streams, width, 3 * width)
        # A stream has own weights for what it reads from itself, from the next and from the one after that.
        self.collect = StreamLinear(streams, streams * width, width)
        self.feed_in = StreamLinear(streams, width, shape.feed_forward)
        self.feed_out = StreamLinear(streams, shape.feed_forward, width)

    def forward(
        self, x: Tensor, cache: KeyValueCache | None = None, slot: CacheSlot | None = None
    ) -> Tensor:
        """Return [M, R, n, width].

        Args:
            x: Tokens, [M, R, n, width].
            cache: Keys and values of earlier tokens, to which those of `x` are added; None without earlier ones.
            slot: Where to; None for the first n positions.
        """
        x = x + self._dropout(self._attend(self.norm_attention(x), cache, slot))
        return x + self._dropout(self.feed_out(F.gelu(self.feed_in(self.norm_feed(x)))))

    def fill(self, x: Tensor, cache: KeyValueCache) -> None:
        """Write the keys and values of tokens [M, R, n, width] to the first positions of the cache."""
        self._project(self.norm_attention(x), cache, 0)

    def _project(self, x: Tensor, cache: KeyValueCache | None, begin: int) -> list[Tensor]:
        """Return queries, keys and values, each [M, R, heads, n, width / heads]; the last two go to the cache."""
        projected = [
            part.unflatten(-1, (self.shape.heads, -1)).transpose(2, 3)
            for part in self.project(x).chunk(3, dim=-1)
        ]
        if cache is not None:
            cache.keys[..., begin : begin + x.shape[2], :] = projected[1]
            cache.values[..., begin : begin + x.shape[2], :] = projected[2]
        return projected

    def _attend(self, x: Tensor, cache: KeyValueCache | None, slot: CacheSlot | None) -> Tensor:
        query, key, value = self._project(x, cache, slot.begin if slot else 0)
        mask = None
        if cache is not None and slot is not None:
            key, value = cache.keys[..., : slot.end, :], cache.values[..., : slot.end, :]
            mask = slot.mask
        # Keys are read in place; torch.roll over the streams would copy the whole cache at every step.
        read = [
            torch.cat(
                [
                    self._read(query[stream], key[other], value[other], mask, causal=slot is None)
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
        """Return what one stream's queries [R, heads, n, d] read from another's keys and values, [R, n, width]."""
        dropout = self.shape.attention_dropout if self.training else 0.0
        if dropout and query.device.type == "cpu":
            heads = causal_attention_with_dropout(query, key, value, dropout)
        else:
            heads = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
            )
        return heads.transpose(1, 2).flatten(2)

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.shape.residual_dropout, self.training)


class StreamLinear(nn.Module):
    """A linear layer per stream: [M, ..., inputs] to [M, ..., outputs]."""

    def __init__(self, streams: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(streams, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(streams, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight + bias, stream by stream."""
        if len(x) == 1:
            return F.linear(x, self.weight[0].T, self.bias[0, 0])
        flat = torch.baddbmm(self.bias, x.flatten(1, -2), self.weight)
        return flat.view(*x.shape[:-1], -1)


class StreamLayerNorm(nn.Module):
    """A layer normalisation per stream of [M, R, n, width]."""

    def __init__(self, streams: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(streams, width))
        self.shift = nn.Parameter(torch.zeros(streams, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tokens, scaled and shifted."""
        if len(x) == 1:
            return F.layer_norm(x, x.shape[-1:], self.scale[0], self.shift[0])
        normal = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.shift[:, None, None], normal, self.scale[:, None, None])


def causal_attention_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Tensor:
    """Return causal attention with dropout of its weights, for a CPU, where torch has no fast kernel for it.

    Equals, but for the random numbers,

        weights = softmax(query @ key.T / sqrt(d), masked where key comes after query)
        return F.dropout(weights, round(256 dropout) / 256) @ value

    in tiles of queries, which skip later keys, with one random byte per weight.

    Args:
        query, key, value: float32 [R, heads, n, d].
        dropout: Share of the weights that become zero, rounded to 256ths.

    Returns:
        float32 [R, heads, n, d].
    """
    steps = query.shape[2]
    threshold = round(256 * dropout)
    later = torch.ones(TILE, TILE, dtype=torch.bool).triu(1)
    query = query * (query.shape[3] ** -0.5)
    tiles = []
    for begin in range(0, steps, TILE):
        end = min(begin + TILE, steps)
        scores = query[:, :, begin:end] @ key[:, :, :end].transpose(2, 3)
        scores[..., begin:].masked_fill_(later[: end - begin, : end - begin], float("-inf"))
        weights = scores.softmax(dim=-1)
        drawn = torch.empty(-(-weights.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        kept = drawn.view(torch.uint8)[: weights.numel()].view(weights.shape) >= threshold
        tiles.append((weights * kept) @ value[:, :, :end] / (1 - threshold / 256))
    return torch.cat(tiles, dim=2)
