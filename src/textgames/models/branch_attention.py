"""Attention of packed texts, in which a token after a shared prefix looks at the places of its own text alone.

Attention with a mask over a whole row computes every pair of its places and drops those of other texts. Here the new
tokens of every text are a row of queries, and the places of its text a row of keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
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
        return Branches(groups, self.outputs.to(device))  # type: ignore[arg-type]


def is_enabled(model: Any) -> bool:
    """Return whether a model computes batches with `Branches`."""
    return attention_implementation(model.config) == NAME


def enable(model: Any) -> None:
    """Let a model whose attention is torch's compute batches with `Branches`, too; all others as before."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if attention_implementation(model.config) == "sdpa":
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
        more: Arguments of transformers' function.
    """
    from transformers import AttentionInterface

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
