"""The set on which a run's objective was computed: split, name and content, and the outcome on each of its levels."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

TRAINING, VALIDATION, TEST = SPLITS = ("training", "validation", "test")
"""Training: weights are fitted to it. Validation: early stopping, choice of variants, searches. Test: only reported."""
_ROUNDING = 5e-5  # of a rate as scripts report it
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
    return _digest(sorted(_bytes(contents)))


def _bytes(contents: Iterable[Any]) -> list[bytes]:
    return [i.tobytes() if hasattr(i, "tobytes") else str(i).encode() for i in contents]


def _digest(items: Iterable[bytes]) -> str:
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


@dataclass(frozen=True)
class LevelOutcomes:
    """Successes on the levels of a fixed set.

    Attributes:
        levels: Digest of the levels in their order: equal digests can be compared level by level.
        shape: Number of levels, and of games of each level.
        bits: A bit for each game, the games of a level one after the other, the first in the highest bit.
    """

    levels: str
    shape: tuple[int, int]
    bits: bytes

    @property
    def success(self) -> NDArray[np.bool_]:
        """bool [levels, games of each level]."""
        return _unpacked(self.bits, self.shape)


def level_outcomes(levels: Iterable[Any], success: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """Return an entry of the list `outcomes` of a result: the outcome on every level of a set, a bit for each game.

    1,000 games take 168 characters of the run's record.

    Args:
        levels: The levels in their order, in a form as for :func:`content_digest`.
        success: By the name of the metric or objective that is their mean: bool [levels], or [levels × games] with the
            games of a level one after the other; equally many of every level.

    Returns:
        `levels`, the digest; `count` of levels; `games` of each level; `success`, by name the bits in base64.

    Raises:
        ValueError: The number of outcomes is no multiple of the number of levels, or is not the same for all names.
    """
    import numpy as np

    items = _bytes(levels)
    outcomes = {name: np.asarray(values, bool).ravel() for name, values in success.items()}
    sizes = {len(bits) for bits in outcomes.values()}
    if not items or len(sizes) != 1 or max(sizes) % len(items):
        raise ValueError(f"{sorted(sizes)} outcomes of {len(items)} levels")
    packed = {
        name: base64.b64encode(np.packbits(bits).tobytes()).decode()
        for name, bits in outcomes.items()
    }
    games = sizes.pop() // len(items)
    return {"levels": _digest(items), "count": len(items), "games": games, "success": packed}


def outcomes_of(result: Mapping[str, Any] | None) -> dict[str, LevelOutcomes]:
    """Return the outcomes on levels that a result has, by the names of their means; {} without any."""
    entries = (result or {}).get("outcomes")
    outcomes: dict[str, LevelOutcomes] = {}
    for entry in entries if isinstance(entries, list) else []:
        try:
            shape = int(entry["count"]), int(entry["games"])
            for name, text in entry["success"].items():
                outcomes[str(name)] = LevelOutcomes(str(entry["levels"]), shape, _bits(text, shape))
        except (TypeError, KeyError, ValueError, AttributeError):
            continue  # a script's own entry of this name
    return outcomes


def independent_games(objectives: Sequence[Mapping[str, Any]]) -> float:
    """Return how many independent games the mean of objectives over seeds is worth; 0 if successes were not counted.

    Where the outcomes on every level are known, it is the effective number of games, see
    :func:`effective_games`; else all games count.
    """
    sides = [o.get("outcomes", {}).get(o.get("name")) for o in objectives]
    if all(sides) and len({(side.levels, side.shape) for side in sides}) == 1:
        games = effective_games(tuple(sides), tuple(o["value"] for o in objectives))
        if games:
            return games
    counts = [counted(o) for o in objectives]
    return sum(counts) if all(counts) else 0


def counted(objective: Mapping[str, Any]) -> int:
    """Return the number of games behind a counted rate; 0 for any other objective."""
    count: Any = objective.get("count")
    usable = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    rate = objective.get("kind") == "rate"
    return count if rate and usable and 0 <= objective["value"] <= 1 else 0


@lru_cache(1000)  # the cells of a row ask for the same interval several times
def effective_games(sides: tuple[LevelOutcomes, ...], rates: tuple[float, ...]) -> float:
    """Return how many independent games the mean rate of runs on the same levels is worth, at most all of them.

    Seeds that play the same levels, and several games of a level, are not independent. The number is that of the games
    whose mean has the variance of this mean over levels and seeds (effective sample size: Korn and Graubard 1998,
    Survey Methodology 24, 193-201; variance components of two crossed factors: Searle, Casella and McCulloch 1992,
    *Variance Components*, chapter 4). Where all games have the same outcome, which leaves no variance, it is the
    number of levels.

    Args:
        sides: Outcomes of the runs, on the same levels and equally many games.
        rates: Their rates; 0 is returned if the outcomes have other ones.
    """
    import numpy as np

    by_level = np.stack([side.success.mean(axis=1) for side in sides])  # [seeds, levels]
    seeds, levels = by_level.shape
    of_seeds, of_levels, rate = by_level.mean(axis=1), by_level.mean(axis=0), by_level.mean()
    if np.abs(of_seeds - rates).max() > _ROUNDING:
        return 0
    games = seeds * levels * sides[0].shape[1]
    variance = of_levels.var() / levels
    if seeds > 1:
        rest = by_level - of_seeds[:, None] - of_levels + rate
        variance += of_seeds.var(ddof=1) / seeds - rest.var() / (seeds - 1) / levels
    independent = rate * (1 - rate) / games
    return float(games * independent / max(variance, independent)) if independent else levels


def _bits(text: str, shape: tuple[int, int]) -> bytes:
    bits = base64.b64decode(text, validate=True)
    if min(shape) < 1 or len(bits) != -(-shape[0] * shape[1] // 8):
        raise ValueError(f"{len(bits)} bytes for {shape[0]} x {shape[1]} games")
    return bits


@lru_cache(1000)  # a page asks for the outcomes of a run several times
def _unpacked(bits: bytes, shape: tuple[int, int]) -> NDArray[np.bool_]:
    import numpy as np

    packed = np.frombuffer(bits, np.uint8)
    success = np.unpackbits(packed, count=shape[0] * shape[1]).astype(bool).reshape(shape)
    success.flags.writeable = False
    return success
