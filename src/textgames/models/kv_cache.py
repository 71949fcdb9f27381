"""A batch of conversations as a causal model reads and writes them, each token computed once.

Keys and values of all earlier tokens are kept over the turns (a KV cache). Conversations differ in length, so a column
of the cache may hold nothing of a conversation: `valid` says which columns count, and a token's position is the number
of valid ones before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

WASTE = 0.25  # share of columns without a token from which on the cache is packed anew


class _Layer(DynamicLayer):
    """Keys and values in buffers that double: to add a token copies none of the earlier ones."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds those of new tokens, each [n, heads, new, size]; returns all."""
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
        """Keeps rows [m], and of each its columns [m, C]."""
        for i, kept in enumerate((self.keys, self.values)):
            if rows is not None:
                shape = list(self._buffers[i].shape)
                shape[0] = len(rows)
                self._buffers[i] = kept.new_empty(shape)  # with the room that there was
                stop = kept.shape[2]
                kept = torch.index_select(kept, 0, rows, out=self._buffers[i][:, :, :stop])
            if columns is not None:
                shape = (*kept.shape[:2], columns.shape[1], kept.shape[3])
                self._buffers[i] = kept = kept.gather(2, columns[:, None, :, None].expand(shape))
        self._show(kept.shape[2])

    def cut(self, columns: int) -> None:
        """Keeps the first columns."""
        self._show(columns)

    def _show(self, stop: int) -> None:
        self.keys, self.values = (each[:, :, :stop] for each in self._buffers)


class Reading:
    """Conversations that a model is in, some of which end before others.

    Those that are the same so far, as of a game that is played many times, are computed once: they have a row of the
    cache together until they differ.

    Args:
        model: A causal model of `transformers`.
        count: Conversations.

    Attributes:
        rows: Which conversations are going on, int64 [n].
        read: Tokens that were computed, those without a conversation not counted.
    """

    def __init__(self, model: Any, count: int) -> None:
        self.model = model
        self.rows: NDArray[np.int64] = np.arange(count)
        self.read = 0
        self._device = next(model.parameters()).device
        self._cache = Cache(layer_class_to_replicate=_Layer)
        self._at = np.zeros(count, np.int64)  # row of the cache that a conversation has
        self._valid = torch.zeros(1, 0, dtype=torch.bool, device=self._device)

    @property
    def columns(self) -> int:
        """How many columns the cache has."""
        return self._valid.shape[1]

    @property
    def lengths(self) -> Tensor:
        """Tokens of each conversation that is going on, int64 [n]."""
        return self._valid.sum(1)[self._at]

    @torch.inference_mode()
    def add(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Reads on, at least a token each.

        Args:
            chunks: For each conversation that is going on its next tokens.

        Returns:
            Logits of the token after them, float32 [n, vocabulary].
        """
        names: dict[tuple[int, ...], int] = {}
        first = self._branch(
            np.array([names.setdefault(tuple(chunk), len(names)) for chunk in chunks])
        )
        longest = max(map(len, chunks))
        tokens = np.zeros((len(first), longest), np.int64)
        valid = np.zeros((len(first), longest), bool)
        for row, n in enumerate(first):
            # The last tokens stand in one column, so that one column has all logits.
            tokens[row, longest - len(chunks[n]) :] = chunks[n]
            valid[row, longest - len(chunks[n]) :] = True
        return self._forward(torch.from_numpy(tokens), torch.from_numpy(valid))[self._at]

    @torch.inference_mode()
    def add_one(self, tokens: Tensor, of: Tensor) -> Tensor:
        """Reads a token more of some conversations.

        Args:
            tokens: int64 [n]; those of other conversations mean nothing.
            of: Of which, bool [n].

        Returns:
            Logits of the token after it, float32 [n, vocabulary].
        """
        tokens, of = tokens.cpu() * of.cpu(), of.cpu()
        first = self._branch((2 * tokens + of).numpy())
        return self._forward(tokens[first, None], of[first, None])[self._at]

    def _branch(self, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives conversations that go on in different ways rows of their own.

        Args:
            names: Equal where conversations go on alike, int64 [n], 0 or more.

        Returns:
            For each row a conversation that has it.
        """
        _, first, at = np.unique(
            self._at * (names.max() + 1) + names, return_index=True, return_inverse=True
        )
        self._take(self._at[first], None)
        self._at = at
        return first

    def _take(self, rows: NDArray[np.int64], columns: Tensor | None) -> None:
        """Keeps rows of the cache [m], and of each its columns [m, C]."""
        chosen = None
        if len(rows) != len(self._valid) or (rows != np.arange(len(rows))).any():
            chosen = torch.from_numpy(rows).to(self._device)
            self._valid = self._valid[chosen]
        if columns is not None:
            self._valid = self._valid.gather(1, columns)
        if chosen is not None or columns is not None:
            for layer in self._cache.layers:
                layer.take(chosen, columns)

    def _forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        valid = valid.to(self._device)
        before = self._valid.sum(1, keepdim=True)
        self._valid = torch.cat([self._valid, valid], 1)
        found = self.model(
            input_ids=tokens.to(self._device), attention_mask=self._valid.long(),
            position_ids=(before + valid.cumsum(1) - 1).clamp(min=0), past_key_values=self._cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        self.read += int(valid.sum())
        return found.logits[:, -1].float()

    @torch.inference_mode()
    def cut(self, columns: int) -> None:
        """Forgets all that was read after the first columns."""
        self._valid = self._valid[:, :columns]
        for layer in self._cache.layers:
            layer.cut(columns)

    @property
    def size(self) -> int:
        """How many numbers the cache holds."""
        return sum(2 * layer.keys.numel() for layer in self._cache.layers)

    @torch.inference_mode()
    def copy(self, which: NDArray[np.int64]) -> Reading:
        """Returns conversations of their own that begin like some of those that are going on.

        Args:
            which: Of those that are going on, each as often as one likes, int64 [m].
        """
        found = Reading(self.model, len(which))
        used, found._at = np.unique(self._at[which], return_inverse=True)
        chosen = torch.from_numpy(used).to(self._device)
        found._valid = self._valid[chosen]
        for index, layer in enumerate(self._cache.layers):
            found._cache.update(layer.keys[chosen], layer.values[chosen], index)
        return found

    @torch.inference_mode()
    def join(self, other: Reading) -> None:
        """Goes on with another reading's conversations, too, which come behind; there is none that ended in either."""
        both = (self, other) if len(self.rows) else (other,)
        longest = max(each.columns for each in both)

        def beside(tensors: Sequence[Tensor], columns: int) -> Tensor:
            """One below the other, each with empty columns in front; `columns` is the dimension they are in."""
            wide = [
                each.new_zeros([longest if d == columns else n for d, n in enumerate(each.shape)])
                for each in tensors
            ]
            for to, each in zip(wide, tensors, strict=True):
                to.narrow(columns, longest - each.shape[columns], each.shape[columns]).copy_(each)
            return torch.cat(wide)

        self._at = np.concatenate([self._at, len(self._valid) * bool(len(self.rows)) + other._at])
        self.rows = np.arange(len(self.rows) + len(other.rows))
        self._valid = beside([each._valid for each in both], 1)
        cache = Cache(layer_class_to_replicate=_Layer)
        for index in range(len(other._cache.layers)):
            layers = [each._cache.layers[index] for each in both]
            cache.update(
                beside([each.keys for each in layers], 2), beside([each.values for each in layers], 2), index
            )  # fmt: skip
        self._cache = cache

    @torch.inference_mode()
    def keep(self, going: NDArray[np.bool_]) -> None:
        """Goes on with some conversations.

        Args:
            going: Which of those that are going on, bool [n].
        """
        self.rows = self.rows[going]
        used, self._at = np.unique(self._at[going], return_inverse=True)
        self._take(used, None)
        longest = int(self._valid.sum(1).max()) if len(used) else 0
        if longest < (1 - WASTE) * self.columns:
            # Valid columns last, in their order: a column that no conversation needs is dropped in front.
            columns = self._valid.long().argsort(dim=1, stable=True)[:, self.columns - longest :]
            self._take(np.arange(len(used)), columns)
