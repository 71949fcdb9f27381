"""Key-value cache of a batch of conversations that lasts over their turns: every token is computed once.

Conversations differ in length, so a column of the cache may be empty for a conversation: `valid` marks the columns in
use, and a token's position is the number of valid columns before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from textgames.models.branch_attention import SharedPrefix, is_enabled

SHARED = 64  # columns from which on conversations that begin alike keep these columns once
WASTE = 0.25  # share of empty columns above which the cache is repacked


class _Layer(DynamicLayer):
    """Keys and values of a layer in buffers that double, so that adding a token does not copy the earlier ones."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens, [n, heads, new, size] each, and return all."""
        start = self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [key_states, value_states]
        stop = start + key_states.shape[-2]
        for i, new in enumerate((key_states, value_states)):
            if not start:
                self._buffers[i] = new
                continue
            old = self._buffers[i]
            if stop > old.shape[-2]:
                n, heads, _, size = new.shape
                self._buffers[i] = new.new_empty(n, heads, max(stop, 2 * start), size)
                self._buffers[i][:, :, :start] = old[:, :, :start]
            self._buffers[i][:, :, start:stop] = new
        self._show(stop)
        return self.keys, self.values

    def take(self, rows: Tensor | None, columns: Tensor | None) -> None:
        """Keep rows [m], and the columns [m, C] of every row."""
        for i, kept in enumerate((self.keys, self.values)):
            if rows is not None:
                shape = list(self._buffers[i].shape)
                shape[0] = len(rows)
                self._buffers[i] = kept.new_empty(shape)  # keeps the spare columns
                stop = kept.shape[2]
                kept = torch.index_select(kept, 0, rows, out=self._buffers[i][:, :, :stop])
            if columns is not None:
                shape = (*kept.shape[:2], columns.shape[1], kept.shape[3])
                self._buffers[i] = kept = kept.gather(2, columns[:, None, :, None].expand(shape))
        self._show(kept.shape[2])

    def cut(self, columns: int) -> None:
        """Keep the first columns."""
        self._show(columns)

    def _show(self, stop: int) -> None:
        self.keys, self.values = (buffer[:, :, :stop] for buffer in self._buffers)


class KVCache:
    """Keys and values of conversations, some of which end before others.

    Conversations that are equal so far, as those of a game that is played many times, share a row of the cache until
    they differ. Then they have own rows for what follows, and keep a long beginning, such as a prompt, once
    (`branch_attention.enable`).

    Args:
        model: A causal model of `transformers`.
        count: Number of conversations.

    Attributes:
        rows: Indices of the active conversations, int64 [n].
        computed: Number of tokens that were computed, without padding.
    """

    def __init__(self, model: Any, count: int) -> None:
        self.model = model
        self.rows: NDArray[np.int64] = np.arange(count)
        self.computed = 0
        self._device = next(model.parameters()).device
        self._cache = Cache(layer_class_to_replicate=_Layer)
        self._at = np.zeros(count, np.int64)  # row of the cache of a conversation
        self._valid = torch.zeros(1, 0, dtype=torch.bool, device=self._device)
        self._prefix: SharedPrefix | None = None  # of the rows of the cache, before its columns

    @property
    def columns(self) -> int:
        """Number of columns of the cache."""
        return self._valid.shape[1] + (self._prefix.columns if self._prefix else 0)

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of the active conversations, int64 [n]."""
        return self._row_lengths[self._at]

    @property
    def _row_lengths(self) -> Tensor:
        own = self._valid.sum(1)
        return own + self._prefix.lengths if self._prefix else own

    @torch.inference_mode()
    def add(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens to all active conversations.

        Args:
            chunks: New tokens of every active conversation, at least one token.

        Returns:
            Logits of the next token, float32 [n, vocabulary].
        """
        numbers: dict[tuple[int, ...], int] = {}
        first = self._branch(
            np.array([numbers.setdefault(tuple(chunk), len(numbers)) for chunk in chunks])
        )
        longest = max(map(len, chunks))
        tokens = np.zeros((len(first), longest), np.int64)
        valid = np.zeros((len(first), longest), bool)
        for row, n in enumerate(first):
            # Chunks are right-aligned, so that the last column has all logits.
            tokens[row, longest - len(chunks[n]) :] = chunks[n]
            valid[row, longest - len(chunks[n]) :] = True
        return self._forward(torch.from_numpy(tokens), torch.from_numpy(valid))[self._at]

    @torch.inference_mode()
    def add_one(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Append a token to some conversations.

        Args:
            tokens: int64 [n]; ignored outside of the mask.
            mask: The conversations to extend, bool [n].

        Returns:
            Logits of the next token, float32 [n, vocabulary].
        """
        tokens, mask = tokens.cpu() * mask.cpu(), mask.cpu()
        first = self._branch((2 * tokens + mask).numpy())
        return self._forward(tokens[first, None], mask[first, None])[self._at]

    def _branch(self, branches: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give conversations whose continuations differ rows of their own.

        Args:
            branches: Numbers, equal for equal continuations, int64 [n], 0 or more.

        Returns:
            A conversation of every row.
        """
        _, first, at = np.unique(
            self._at * (branches.max() + 1) + branches, return_index=True, return_inverse=True
        )
        rows = self._at[first]
        parted = len(rows) > len(self._valid)
        if parted and not self._prefix and self.columns >= SHARED and is_enabled(self.model):
            self._share(rows)
        else:
            self._take(rows, None)
        self._at = at
        return first

    def _share(self, rows: NDArray[np.int64]) -> None:
        """Begin new rows of the cache [m], of which the present ones are the prefixes."""
        layers = [(layer.keys, layer.values) for layer in self._cache.layers]
        self._prefix = SharedPrefix(layers, self._valid, rows)
        self._cache = Cache(layer_class_to_replicate=_Layer)
        self._valid = self._valid.new_zeros(len(rows), 0)

    def _take(self, rows: NDArray[np.int64], columns: Tensor | None) -> None:
        """Keep rows of the cache [m], and the columns [m, C] of every row."""
        chosen = None
        if len(rows) != len(self._valid) or (rows != np.arange(len(rows))).any():
            chosen = torch.from_numpy(rows).to(self._device)
            self._valid = self._valid[chosen]
            if self._prefix:
                self._prefix.take(rows)
        if columns is not None:
            self._valid = self._valid.gather(1, columns)
        if chosen is not None or columns is not None:
            for layer in self._cache.layers:
                layer.take(chosen, columns)

    def _forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        valid = valid.to(self._device)
        before = self._row_lengths[:, None]
        self._valid = torch.cat([self._valid, valid], 1)
        outputs = self.model(
            input_ids=tokens.to(self._device), attention_mask=self._valid.long(),
            position_ids=(before + valid.cumsum(1) - 1).clamp(min=0), past_key_values=self._cache, use_cache=True,
            logits_to_keep=1, **({"prefix": self._prefix} if self._prefix else {}),
        )  # fmt: skip
        self.computed += int(valid.sum())
        return outputs.logits[:, -1].float()

    @torch.inference_mode()
    def cut(self, columns: int) -> None:
        """Forget everything after the first columns."""
        own = columns
        if self._prefix:
            own = max(0, columns - self._prefix.columns)
            self._prefix.cut(columns)
        self._valid = self._valid[:, :own]
        for layer in self._cache.layers:
            layer.cut(own)

    @property
    def size(self) -> int:
        """Number of values in the cache."""
        own = sum(2 * layer.keys.numel() for layer in self._cache.layers)
        return own + (self._prefix.size if self._prefix else 0)

    @torch.inference_mode()
    def copy(self, which: NDArray[np.int64]) -> KVCache:
        """Return a cache of new conversations that begin like active ones, which have not parted yet.

        Args:
            which: Indices of active conversations, with repetitions, int64 [m].
        """
        copied = KVCache(self.model, len(which))
        used, copied._at = np.unique(self._at[which], return_inverse=True)
        chosen = torch.from_numpy(used).to(self._device)
        copied._valid = self._valid[chosen]
        for index, layer in enumerate(self._cache.layers):
            copied._cache.update(layer.keys[chosen], layer.values[chosen], index)
        return copied

    @torch.inference_mode()
    def join(self, other: KVCache) -> None:
        """Append the conversations of another cache; none may have ended or parted in either."""
        both = (self, other) if len(self.rows) else (other,)
        longest = max(cache.columns for cache in both)

        def stacked(tensors: Sequence[Tensor], columns: int) -> Tensor:
            """Concatenate rows, padded in front to the same number of columns; `columns` is their dimension."""
            wide = [
                t.new_zeros([longest if d == columns else n for d, n in enumerate(t.shape)])
                for t in tensors
            ]
            for to, t in zip(wide, tensors, strict=True):
                to.narrow(columns, longest - t.shape[columns], t.shape[columns]).copy_(t)
            return torch.cat(wide)

        self._at = np.concatenate([self._at, len(self._valid) * bool(len(self.rows)) + other._at])
        self.rows = np.arange(len(self.rows) + len(other.rows))
        self._valid = stacked([cache._valid for cache in both], 1)
        joined = Cache(layer_class_to_replicate=_Layer)
        for index in range(len(other._cache.layers)):
            layers = [cache._cache.layers[index] for cache in both]
            joined.update(
                stacked([layer.keys for layer in layers], 2), stacked([layer.values for layer in layers], 2), index
            )  # fmt: skip
        self._cache = joined

    @torch.inference_mode()
    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep some of the active conversations.

        Args:
            mask: The conversations to keep, bool [n].
        """
        self.rows = self.rows[mask]
        used, self._at = np.unique(self._at[mask], return_inverse=True)
        self._take(used, None)
        longest = int(self._valid.sum(1).max()) if len(used) else 0
        own = self._valid.shape[1]
        if longest < (1 - WASTE) * own:
            # Valid columns move to the end in their order; columns that no conversation needs are dropped in front.
            columns = self._valid.long().argsort(dim=1, stable=True)[:, own - longest :]
            self._take(np.arange(len(used)), columns)
