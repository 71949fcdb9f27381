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
# What fetching a key costs, in places that attention could look at instead (measured on a CPU, widths 128 and 512).
GATHERING = 30


class Group(NamedTuple):
    """Texts whose attention is computed together, see `textgames.models.branch_attention`.

    Attributes:
        queries: Places of the tokens that a text does not share with earlier ones, then any, int64 [n, q].
        keys: Places of all tokens of the text, then any, int64 [n, k].
        shared: Number of its tokens before the first query, int64 [n].
    """

    queries: Ints
    keys: Ints
    shared: Ints


class Packed(NamedTuple):
    """Texts packed into rows. A place is a row times L plus a column.

    Attributes:
        tokens: int64 [R, L].
        positions: Position of every token in its text, int64 [R, L].
        places: Places of the tokens of every text, int64 [T] each.
        visible: Which places of its row a place attends to, itself included, bool [R, L, L]; None with groups.
        groups: Groups of texts, if attention is cheaper by them.
        outputs: For every place, its index among the queries of all groups, int64 [R L].
    """

    tokens: Ints
    positions: Ints
    places: list[Ints]
    visible: NDArray[np.bool_] | None
    groups: list[Group]
    outputs: Ints


@dataclass
class _Tree:
    size: int = 0
    # (number of the text, its places in the tree, number of places shared with earlier texts)
    texts: list[tuple[int, Ints, int]] = field(default_factory=list)


def pack(texts: Sequence[Ints], sharing_cost: int, *, branching: bool = False) -> Packed | None:
    """Pack texts as trees, several trees side by side in rows as long as the largest tree.

    Attention becomes more expensive with longer rows, so a text joins a tree only if the shared prefix is worth it.

    Args:
        texts: Tokens, int64 [T] each, at least one text.
        sharing_cost: Number of places that attention can look at for the price of everything else that is computed for
            a token.
        branching: The model can compute attention by groups.

    Returns:
        The rows; None if no prefix is shared.
    """
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(text.tobytes(), len(numbers)) for text in texts]
    if len(numbers) < len(texts):  # equal texts
        distinct = [np.frombuffer(text, np.int64) for text in numbers]
        packed = pack(distinct, sharing_cost, branching=branching) or _side_by_side(
            [_Tree(len(text), [(i, np.arange(len(text)), 0)]) for i, text in enumerate(distinct)],
            distinct,
            by_groups=False,
        )
        return packed._replace(places=[packed.places[i] for i in index])
    ways = []
    for by_groups in (False, True) if branching else (False,):
        trees = _trees(texts, sharing_cost, by_groups=by_groups)
        ways.append((_cost(trees, sharing_cost, by_groups=by_groups), by_groups, trees))
    _, by_groups, trees = min(ways, key=lambda way: way[0])
    if sum(tree.size for tree in trees) == sum(map(len, texts)):
        return None
    return _side_by_side(trees, texts, by_groups=by_groups)


def _trees(texts: Sequence[Ints], sharing_cost: int, *, by_groups: bool) -> list[_Tree]:
    trees: list[_Tree] = []
    for number in sorted(range(len(texts)), key=lambda i: texts[i].tobytes()):
        text, size = texts[number], len(texts[number])
        if trees:
            tree, (previous, path, _) = trees[-1], trees[-1].texts[-1]
            shared = _common_prefix(texts[previous], text)
            joined = tree.size + size - shared
            if by_groups:
                pays = shared * (sharing_cost + size) > GATHERING * size
            else:
                separate = _row_cost(tree.size, sharing_cost) + _row_cost(size, sharing_cost)
                pays = _row_cost(joined, sharing_cost) <= separate
            if pays:
                path = np.concatenate([path[:shared], np.arange(tree.size, joined)])
                tree.texts.append((number, path, shared))
                tree.size = joined
                continue
        trees.append(_Tree(size, [(number, np.arange(size), 0)]))
    return trees


def _row_cost(size: int, sharing_cost: int) -> int:
    return size * (sharing_cost + size)


def _cost(trees: Sequence[_Tree], sharing_cost: int, *, by_groups: bool) -> int:
    """Return the cost of trees, in places that attention looks at."""
    length = max(tree.size for tree in trees)
    if not by_groups:
        return sum(tree.size * (sharing_cost + length) for tree in trees)
    cost = sum(tree.size * sharing_cost for tree in trees)
    for texts in _grouped(trees):
        most_queries = max(len(path) - shared for _, path, shared in texts)
        most_keys = max(len(path) for _, path, _ in texts)
        cost += len(texts) * most_keys * (most_queries + GATHERING)
    return cost


def _grouped(trees: Sequence[_Tree]) -> list[list[tuple[int, Ints, int]]]:
    """Return the first texts of all trees, and all others."""
    groups = [[tree.texts[0] for tree in trees], [t for tree in trees for t in tree.texts[1:]]]
    return [group for group in groups if group]


def _common_prefix(a: Ints, b: Ints) -> int:
    """Return the length of the common prefix of two texts."""
    shorter = min(len(a), len(b))
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if len(differing) else shorter


def _side_by_side(trees: list[_Tree], texts: Sequence[Ints], *, by_groups: bool) -> Packed:
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
    places: list[Ints] = [np.zeros(0, np.int64)] * len(texts)
    for tree, (row, start) in zip(trees, starts, strict=True):
        for number, path, shared in tree.texts:
            at, new = start + path, slice(shared, len(path))
            tokens[row, at[new]] = texts[number][new]
            positions[row, at[new]] = np.arange(len(path))[new]
            places[number] = row * length + at
    packed = Packed(tokens, positions, places, None, [], np.zeros(0, np.int64))
    if by_groups:
        return _by_groups(packed, _grouped(trees))
    visible = np.zeros((len(used), length, length), bool)
    visible[:, np.arange(length), np.arange(length)] = True  # also padding has to see a place
    earlier = np.tri(max(map(len, texts)), dtype=bool)
    for tree, (row, start) in zip(trees, starts, strict=True):
        for _, path, shared in tree.texts:
            at, new = start + path, slice(shared, len(path))
            visible[row, at[new, None], at] = earlier[new, : len(path)]
    return packed._replace(visible=visible)


def _by_groups(packed: Packed, groups: Sequence[Sequence[tuple[int, Ints, int]]]) -> Packed:
    outputs, first = np.zeros(packed.tokens.size, np.int64), 0
    for texts in groups:
        keys = [packed.places[number] for number, _, _ in texts]
        queries = [at[shared:] for at, (_, _, shared) in zip(keys, texts, strict=True)]
        group = Group(_padded(queries), _padded(keys), np.array([shared for *_, shared in texts]))
        for row, at in enumerate(queries):
            outputs[at] = first + row * group.queries.shape[1] + np.arange(len(at))
        first += group.queries.size
        packed.groups.append(group)
    return packed._replace(outputs=outputs)


def _padded(rows: Sequence[Ints]) -> Ints:
    """Return rows of one length, each with its last number repeated."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), "edge") for row in rows])
