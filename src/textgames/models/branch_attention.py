"""Attention of texts that begin alike: the keys and values of a shared prefix are computed and kept once.

In packed texts (`Branches`), attention with a mask over a whole row computes every pair of its places and drops those
of other texts. Here the new tokens of every text are a row of queries, and the places of its text a row of keys. While
replies are generated (`SharedPrefix`), the queries of all conversations with a prefix are multiplied with its keys at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.compat import attention_implementation
from textgames.models.prefix_sharing import Group, Ints

NAME = "shared_prefixes"
"""Name of the attention, by which a model's configuration chooses it."""


class Branches(NamedTuple):
    """What the places of packed rows look at.

    Attributes:
        groups: Queries int64 [n, q], keys int64 [n, k] and the mask bool [n, 1, q, k] of the texts of a group.
        outputs: For every place of the rows, its index among the queries of all groups, int64 [R L].
    """

    groups: tuple[tuple[Tensor, Tensor, Tensor], ...]
    outputs: Tensor

    @classmethod
    def of(cls, groups: list[Group], outputs: Ints) -> Branches:
        """Return the tensors of groups, see `prefix_sharing.Packed`."""
        tensors = []
        for group in groups:
            queries, keys, shared = map(torch.from_numpy, group)
            at = torch.arange(queries.shape[1]) + shared[:, None]
            mask = torch.arange(keys.shape[1]) <= at[:, :, None]
            tensors.append((queries, keys, mask[:, None]))
        return cls(tuple(tensors), torch.from_numpy(outputs))

    def to(self, device: torch.device) -> Branches:
        """Return them on a device."""
        groups = tuple(tuple(part.to(device) for part in group) for group in self.groups)
        return Branches(groups, self.outputs.to(device))


class SharedPrefix:
    """Keys and values with which several conversations begin, kept once for all of them.

    Args:
        layers: Keys and values of every layer, [P, K, c, D] each.
        visible: The columns in use, bool [P, c].
        owner: Prefix of every conversation, int64 [n].
    """

    def __init__(
        self, layers: Sequence[tuple[Tensor, Tensor]], visible: Tensor, owner: NDArray[np.int64]
    ) -> None:
        self._layers = list(layers)
        self._show(visible)
        self._assign(owner)

    @property
    def columns(self) -> int:
        """Number of columns of the prefixes."""
        return self._visible.shape[1]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens in every conversation's prefix, int64 [n]."""
        return self._visible.sum(1)[self._owner]

    @property
    def size(self) -> int:
        """Number of kept values."""
        return sum(part.numel() for layer in self._layers for part in layer)

    def take(self, rows: NDArray[np.int64]) -> None:
        """Keep conversations, int64 [m], with repetitions, and the prefixes of these."""
        self._assign(self._owner.cpu().numpy()[rows])

    def cut(self, columns: int) -> None:
        """Keep the first columns."""
        self._show(self._visible[:, :columns])
        self._layers = [
            (keys[:, :, :columns], values[:, :, :columns]) for keys, values in self._layers
        ]

    def _show(self, visible: Tensor) -> None:
        self._visible = visible
        self._hidden = None if visible.all() else ~visible

    def _assign(self, owner: NDArray[np.int64]) -> None:
        used, owner = np.unique(owner, return_inverse=True)
        device = self._visible.device
        if len(used) < len(self._visible):
            kept = torch.from_numpy(used).to(device)
            self._show(self._visible[kept])
            self._layers = [(keys[kept], values[kept]) for keys, values in self._layers]
        # The conversations of every prefix, padded to the same number, and where a conversation is among them.
        counts = np.bincount(owner)
        order = np.argsort(owner, kind="stable")
        rank = np.empty_like(owner)
        rank[order] = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)
        slots = np.zeros((len(used), counts.max(initial=0)), np.int64)
        slots[owner, rank] = np.arange(len(owner))
        places = owner * slots.shape[1] + rank
        self._owner, self._slots, self._places = (
            torch.from_numpy(part).to(device) for part in (owner, slots, places)
        )

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
    ) -> Tensor:
        """Return the outputs of attention to a conversation's prefix and its own tokens, [n, L, H, D].

        Args:
            layer: Index of the layer.
            query: Of new tokens [n, H, L, D].
            key: Of a conversation's own tokens, the new ones last [n, K, o, D].
            value: [n, K, o, D].
            mask: Which own tokens a new one looks at, bool [n, 1, L, o]; None: those up to itself.
            scaling: Factor of the scores.
        """
        n, heads, length, _ = query.shape
        times = heads // key.shape[1]  # heads with the same keys
        queries = scaling * query.unflatten(1, (-1, times)).flatten(2, 3)  # [n, K, times L, D]
        keys, values = self._layers[layer]
        earlier = _product(self._grouped(queries), keys.transpose(-1, -2))
        if self._hidden is not None:
            earlier = earlier.masked_fill(self._hidden[:, None, None], -torch.inf)
        own = _product(queries, key.transpose(-1, -2))
        if mask is None and length > 1:
            seen = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device)
            mask = seen.tril(key.shape[2] - length)[None, None]
        if mask is not None:
            own = own.masked_fill(~mask.repeat(1, 1, times, 1), -torch.inf)
        # Own scores move to those of the prefixes, which are many more.
        scores = torch.cat([earlier, self._grouped(own)], -1)
        weights = scores.softmax(-1, torch.float32).to(value.dtype)
        of_prefix, of_own = weights.split([self.columns, key.shape[2]], -1)
        outputs = self._ungrouped(_product(of_prefix, values))
        outputs = outputs + _product(self._ungrouped(of_own), value)
        return outputs.view(n, heads, length, -1).transpose(1, 2)

    def _grouped(self, parts: Tensor) -> Tensor:
        """Return conversations [n, K, r, D] as rows of their prefixes, [P, K, m r, D]."""
        return parts[self._slots].transpose(1, 2).flatten(2, 3)

    def _ungrouped(self, parts: Tensor) -> Tensor:
        """Return rows of the prefixes [P, K, m r, D] as conversations, [n, K, r, D]."""
        by_slot = parts.unflatten(2, (self._slots.shape[1], -1)).transpose(1, 2)
        return by_slot.flatten(0, 1)[self._places]


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Return the matrix products [n, K, r, s] of two batches; `matmul` would copy the spare columns of a cache."""
    product = torch.bmm(one.flatten(0, 1), other.flatten(0, 1))
    return product.unflatten(0, one.shape[:2])


def is_enabled(model: Any) -> bool:
    """Return whether a model computes with `Branches` and `SharedPrefix`."""
    return attention_implementation(model.config) == NAME


def enable(model: Any) -> None:
    """Let a model whose attention is torch's compute with `Branches` and `SharedPrefix`, too; all others as before."""
    from transformers import AttentionInterface, AttentionMaskInterface

    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    # In a window, a token looks at the last tokens alone.
    windows = any(kind != "full_attention" for kind in kinds)
    if attention_implementation(model.config) == "sdpa" and not windows:
        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, AttentionMaskInterface()["sdpa"])
        model.set_attn_implementation(NAME)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    branches: Branches | None = None,
    prefix: SharedPrefix | None = None,
    **more: Any,
) -> tuple[Tensor, Any]:
    """Return the outputs of attention [R, L, H, D] as transformers' own function for torch's attention.

    Args:
        module: The layer.
        query: [R, H, L, D].
        key: [R, K, L, D].
        value: [R, K, L, D].
        attention_mask: Which places a place looks at; not used with branches.
        branches: What the places look at.
        prefix: What conversations begin with, before the keys.
        more: Arguments of transformers' function.
    """
    from transformers import AttentionInterface

    if prefix is not None:
        scaling = more.get("scaling") or query.shape[-1] ** -0.5
        return prefix.attend(module.layer_idx, query, key, value, attention_mask, scaling), None
    attend = AttentionInterface()["sdpa"]
    if branches is None:
        return attend(module, query, key, value, attention_mask, **more)
    places = [part.transpose(1, 2).flatten(0, 1) for part in (query, key, value)]
    found = []
    for queries, keys, mask in branches.groups:
        parts = [
            part[at].transpose(1, 2) for part, at in zip(places, (queries, keys, keys), strict=True)
        ]
        found.append(attend(module, *parts, mask, **more)[0].flatten(0, 1))
    outputs = torch.cat(found)[branches.outputs]
    return outputs.view(query.shape[0], query.shape[2], *outputs.shape[1:]), None
