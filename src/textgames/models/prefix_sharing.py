"""Texts with common prefixes, packed as trees so that a prefix is computed once.

A game that is played many times gives texts with the same beginning. In a row of a packed batch a common prefix has one
place, and a token sees only the places before it in its own text. For a causal model this is exact: its output at a
token depends on the earlier tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Packed(NamedTuple):
    """Texts packed into rows.

    Attributes:
        tokens: int64 [R, L].
        positions: Position of every token in its text, int64 [R, L].
        visible: Which places of its row a place attends to, itself included, bool [R, L, L].
        places: Places of the tokens of every text, row times L plus column, int64 [T] each.
    """

    tokens: Ints
    positions: Ints
    visible: NDArray[np.bool_]
    places: list[Ints]


@dataclass
class _Tree:
    size: int = 0
    # (number of the text, its places in the tree, number of places shared with earlier texts)
    texts: list[tuple[int, Ints, int]] = field(default_factory=list)


def pack(texts: Sequence[Ints], sharing_cost: int) -> Packed | None:
    """Pack texts as trees, several trees side by side in rows as long as the largest tree.

    Attention becomes more expensive with longer rows, so a text joins a tree only if the shared prefix is worth it.

    Args:
        texts: Tokens, int64 [T] each, at least one text.
        sharing_cost: Number of places that attention can look at for the price of everything else that is computed for
            a token.

    Returns:
        The rows; None if no prefix is shared.
    """
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(text.tobytes(), len(numbers)) for text in texts]
    if len(numbers) < len(texts):  # equal texts
        distinct = [np.frombuffer(text, np.int64) for text in numbers]
        packed = pack(distinct, sharing_cost) or _side_by_side(
            [_Tree(len(text), [(i, np.arange(len(text)), 0)]) for i, text in enumerate(distinct)],
            distinct,
        )
        return packed._replace(places=[packed.places[i] for i in index])
    trees: list[_Tree] = []
    for number in sorted(range(len(texts)), key=lambda i: texts[i].tobytes()):
        text = texts[number]
        if trees:
            tree, (previous, path, _) = trees[-1], trees[-1].texts[-1]
            shared = _common_prefix(texts[previous], text)
            joined = tree.size + len(text) - shared
            separate = _cost(tree.size, sharing_cost) + _cost(len(text), sharing_cost)
            if _cost(joined, sharing_cost) <= separate:
                path = np.concatenate([path[:shared], np.arange(tree.size, joined)])
                tree.texts.append((number, path, shared))
                tree.size = joined
                continue
        trees.append(_Tree(len(text), [(number, np.arange(len(text)), 0)]))
    if sum(tree.size for tree in trees) == sum(map(len, texts)):
        return None
    return _side_by_side(trees, texts)


def _cost(size: int, sharing_cost: int) -> int:
    return size * (sharing_cost + size)


def _common_prefix(a: Ints, b: Ints) -> int:
    """Return the length of the common prefix of two texts."""
    shorter = min(len(a), len(b))
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if len(differing) else shorter


def _side_by_side(trees: list[_Tree], texts: Sequence[Ints]) -> Packed:
    trees = sorted(trees, key=lambda tree: -tree.size)
    length, used, starts = trees[0].size, [], []
    for tree in trees:  # first fit
        row = next((r for r, size in enumerate(used) if size + tree.size <= length), len(used))
        if row == len(used):
            used.append(0)
        starts.append((row, used[row]))
        used[row] += tree.size
    tokens = np.zeros((len(used), length), np.int64)
    positions = np.zeros_like(tokens)
    visible = np.zeros((len(used), length, length), bool)
    visible[:, np.arange(length), np.arange(length)] = True  # also padding has to see a place
    earlier = np.tri(max(map(len, texts)), dtype=bool)
    places: list[Ints] = [np.zeros(0, np.int64)] * len(texts)
    for tree, (row, start) in zip(trees, starts, strict=True):
        for number, path, shared in tree.texts:
            at, new = start + path, slice(shared, len(path))
            tokens[row, at[new]] = texts[number][new]
            positions[row, at[new]] = np.arange(len(path))[new]
            visible[row, at[new, None], at] = earlier[new, : len(path)]
            places[number] = row * length + at
    return Packed(tokens, positions, visible, places)
