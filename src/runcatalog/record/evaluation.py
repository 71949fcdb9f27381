"""The set on which a run's objective was computed: its split, name and content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TRAINING, VALIDATION, TEST = SPLITS = ("training", "validation", "test")
"""Training: weights are fitted to it. Validation: early stopping, choice of variants, searches. Test: only reported."""
_DIGITS = 16  # of the SHA-256 of a set's content


@dataclass(frozen=True)
class EvaluationSet:
    """The set that a run declares by :meth:`runcatalog.record.Run.declare_evaluation`.

    Attributes:
        split: One of SPLITS.
        name: What the set contains, such as "levels of seeds 0 to 999".
        digest: Digest of its content; "" if unknown.
        chosen: What was chosen by the numbers on this very set, such as "best of 5 checkpoints"; "" if nothing was.
    """

    split: str
    name: str
    digest: str = ""
    chosen: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the entry `evaluation` of a result, without empty fields."""
        return {name: value for name, value in vars(self).items() if value}


def content_digest(contents: Iterable[Any]) -> str:
    """Return a digest of a set's content, which depends neither on the order of the items nor on how they were chosen.

    Args:
        contents: The items: rows of an array, numpy scalars, or values that are compared as text.
    """
    items = sorted(
        item.tobytes() if hasattr(item, "tobytes") else str(item).encode() for item in contents
    )
    digest = hashlib.sha256()
    for item in items:
        digest.update(len(item).to_bytes(8, "little") + item)
    return digest.hexdigest()[:_DIGITS]


def evaluation_set(
    split: str, name: str, contents: Iterable[Any] | None, chosen: str
) -> EvaluationSet:
    """Return the set of a declaration.

    Raises:
        ValueError: The split is unknown, the name is empty, or a test set has no content.
    """
    if split not in SPLITS:
        raise ValueError(f"split: one of {', '.join(SPLITS)} is expected, not {split!r}")
    if not name:
        raise ValueError(f"a {split} set needs a name")
    if split == TEST and contents is None:
        raise ValueError("a test set needs its contents, whose digest distinguishes test sets")
    digest = "" if contents is None else content_digest(contents)
    return EvaluationSet(split, name, digest, chosen)


def declared(result: Mapping[str, Any] | None) -> EvaluationSet | None:
    """Return the set that a result declares; None if it declares none.

    Older results of `ragen:evaluate` have the name alone, as `split`: validation, test or test_hard.
    """
    entry = (result or {}).get("evaluation")
    if isinstance(entry, Mapping):
        texts = {name: str(entry.get(name, "")) for name in EvaluationSet.__dataclass_fields__}
        return EvaluationSet(**texts) if texts["split"] in SPLITS else None
    name = (result or {}).get("split")
    split = name.partition("_")[0] if isinstance(name, str) else ""
    return EvaluationSet(split, str(name)) if split in SPLITS else None
