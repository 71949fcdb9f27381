"""Texts that begin alike, as trees: what they share is computed once.

A game that is played many times gives texts with the same beginning. In a row of a batch each distinct beginning has
one place, and each token sees only those that stand before it in its own text. That is exact for a causal model: what
it computes at a token depends on the tokens before it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Packed(NamedTuple):
    """Texts in rows of places.

    Attributes:
        tokens: int64 [R, L].
        positions: Of each token in its text, int64 [R, L].
        seen: Which places of its row each place sees, itself among them, bool [R, L, L].
        places: Of each text's tokens, int64 [T] each: row times L plus place.
    """

    tokens: Ints
    positions: Ints
    seen: NDArray[np.bool_]
    places: list[Ints]


@dataclass
class _Tree:
    size: int = 0
    texts: list[tuple[int, Ints, int]] = field(
        default_factory=list
    )  # which, its places, how many are shared


def packed(texts: Sequence[Ints], balance: int) -> Packed | None:
    """Texts as trees, trees side by side in rows that are as long as the largest one.

    Attention to all of a row costs more the longer the row is; a text joins a tree if what is shared is worth it.

    Args:
        texts: Tokens, int64 [T] each, at least one.
        balance: How many places a token can look at for the price of all else that is computed of it.

    Returns:
        The rows; None where nothing is shared.
    """
    names: dict[bytes, int] = {}
    of = [names.setdefault(text.tobytes(), len(names)) for text in texts]
    if len(names) < len(texts):  # the same text several times
        different = [np.frombuffer(text, np.int64) for text in names]
        found = packed(different, balance) or _side_by_side(
            [_Tree(len(text), [(i, np.arange(len(text)), 0)]) for i, text in enumerate(different)],
            different,
        )
        return found._replace(places=[found.places[i] for i in of])
    trees: list[_Tree] = []
    for which in sorted(range(len(texts)), key=lambda i: texts[i].tobytes()):
        text = texts[which]
        if trees:
            tree, (before, path, _) = trees[-1], trees[-1].texts[-1]
            shared = _alike(texts[before], text)
            joined = tree.size + len(text) - shared
            if _cost(joined, balance) <= _cost(tree.size, balance) + _cost(len(text), balance):
                path = np.concatenate([path[:shared], np.arange(tree.size, joined)])
                tree.texts.append((which, path, shared))
                tree.size = joined
                continue
        trees.append(_Tree(len(text), [(which, np.arange(len(text)), 0)]))
    if sum(tree.size for tree in trees) == sum(map(len, texts)):
        return None
    return _side_by_side(trees, texts)


def _cost(size: int, balance: int) -> int:
    return size * (balance + size)


def _alike(a: Ints, b: Ints) -> int:
    """How many tokens two texts begin with alike."""
    least = min(len(a), len(b))
    apart = np.flatnonzero(a[:least] != b[:least])
    return int(apart[0]) if len(apart) else least


def _side_by_side(trees: list[_Tree], texts: Sequence[Ints]) -> Packed:
    trees = sorted(trees, key=lambda tree: -tree.size)
    longest, used, where = trees[0].size, [], []
    for tree in trees:  # each into the first row with room
        row = next((r for r, size in enumerate(used) if size + tree.size <= longest), len(used))
        if row == len(used):
            used.append(0)
        where.append((row, used[row]))
        used[row] += tree.size
    tokens = np.zeros((len(used), longest), np.int64)
    positions = np.zeros_like(tokens)
    seen = np.zeros((len(used), longest, longest), bool)
    seen[:, np.arange(longest), np.arange(longest)] = True  # no place sees nothing
    most = max(map(len, texts))
    earlier = np.tri(most, dtype=bool)
    places: list[Ints] = [np.zeros(0, np.int64)] * len(texts)
    for tree, (row, start) in zip(trees, where, strict=True):
        for which, path, shared in tree.texts:
            at, new = start + path, slice(shared, len(path))
            tokens[row, at[new]] = texts[which][new]
            positions[row, at[new]] = np.arange(len(path))[new]
            seen[row, at[new, None], at] = earlier[new, : len(path)]
            places[which] = row * longest + at
    return Packed(tokens, positions, seen, places)
