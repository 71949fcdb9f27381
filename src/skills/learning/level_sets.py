"""Sets of levels: training, validation and test, which share no level, turned or mirrored ones included.

Levels come from seeds, and in small rooms other seeds often give the same level: 150,000 random seeds contain a fifth
of the test levels of nlm0. So the sets are made disjoint by content: a training leaves out the levels of the test sets
of every stage with one of its verbs, and its own validation levels; a validation leaves out the test levels.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runcatalog import record
from skills.agents.evaluation import TEST_SEEDS, VALIDATION_SEEDS
from skills.levels.content import NOTHING, keys, symmetric_keys, table_of
from skills.levels.engine import Engine
from skills.levels.generate import levels
from skills.levels.stages import STAGES, stage_table, stages_by_verb

FIRST_FRESH_SEED = 1 << 31  # below all training seeds, above those of validations
FRESH = 1000  # levels of the fresh test set
SETS = (FIRST_SET, FRESH_SET) = ("test", "fresh")
"""Test sets: the levels with which every training ends, and levels for frozen agents, opened once."""
VALIDATION_SET = "validation"
"""Levels for choices, among them those of validations during training."""
_VALIDATED = 500  # validation levels, of the default, that the fresh set leaves out
_BLOCK = 1500  # seeds in which fresh levels are looked for


class LeftOut(NamedTuple):
    """Tables of the levels that training and validation leave out, see `skills.levels.content`."""

    training: NDArray[np.uint64] = NOTHING
    validation: NDArray[np.uint64] = NOTHING


def left_out(stage: str, validated: int) -> LeftOut:
    """Return what training and validation on a stage leave out.

    Args:
        stage: The stage.
        validated: Number of levels of a validation.
    """
    verbs = set(stages_by_verb(stage))
    related = {stage_table(s).tobytes(): s for s in STAGES if verbs & set(stages_by_verb(s))}
    tests = [_test_keys(name) for name in related.values()]
    validation = table_of(tests)
    engine = Engine(stage, validated, auto_reset=False, left_out=validation)
    engine.reset(np.asarray(VALIDATION_SEEDS[:validated]))
    return LeftOut(table_of([*tests, symmetric_keys(engine.state())]), validation)


def without_evaluated(stage: str, seeds: range, validated: int = 0) -> NDArray[np.int64]:
    """Return the seeds whose levels are in no test set and in no validation, int64.

    Args:
        stage: The stage.
        seeds: The seeds.
        validated: Number of `validation_seeds`; the levels of a default validation are left out in any case.
    """
    drawn = np.asarray(seeds, np.int64)
    validation = symmetric_keys(levels(stage, validation_seeds(stage)[:validated])).ravel()
    evaluated = np.concatenate([left_out(stage, _VALIDATED).training, validation])
    return drawn[~np.isin(keys(levels(stage, drawn)), evaluated)]


@cache
def _test_keys(stage: str) -> NDArray[np.uint64]:
    """Return the keys of the levels of all test sets of a stage, in all positions."""
    first = levels(stage, np.asarray(TEST_SEEDS))
    return np.concatenate(
        [symmetric_keys(drawn).ravel() for drawn in (first, levels(stage, fresh_seeds(stage)))]
    )


@cache
def fresh_seeds(stage: str, count: int = FRESH) -> NDArray[np.int64]:
    """Return the seeds of a stage's fresh test set in rising order, int64 [count].

    No two have the same level, and none has one of the first test set or of the default's validations, in any position.
    """
    used = (levels(stage, np.asarray(s)) for s in (TEST_SEEDS, VALIDATION_SEEDS[:_VALIDATED]))
    known = np.concatenate([symmetric_keys(drawn).ravel() for drawn in used])
    chosen, first = np.zeros(0, np.int64), FIRST_FRESH_SEED
    while len(chosen) < count:
        seeds = first + np.arange(_BLOCK, dtype=np.int64)
        found = symmetric_keys(levels(stage, seeds))
        _, earliest = np.unique(found.min(0), return_index=True)
        seeds = seeds[np.sort(earliest[~np.isin(found[0, earliest], known)])]
        known = np.concatenate([known, found.ravel()])
        chosen, first = np.concatenate([chosen, seeds]), first + _BLOCK
    return chosen[:count]


@cache
def validation_seeds(stage: str) -> NDArray[np.int64]:
    """Return the first 1,000 seeds of validations whose levels no test set of the stage has in any position, int64."""
    seeds = np.asarray(VALIDATION_SEEDS[: 2 * FRESH])
    tested = np.isin(keys(levels(stage, seeds)), _test_keys(stage))
    return seeds[~tested][:FRESH]


def level_seeds(stage: str, which: str, count: int) -> NDArray[np.int64]:
    """Return the first seeds of a set of levels, int64 [count].

    Args:
        stage: The stage.
        which: VALIDATION_SET or one of SETS.
        count: Number of levels, at most 1000.
    """
    if which == VALIDATION_SET:
        return validation_seeds(stage)[:count]
    seeds = np.asarray(TEST_SEEDS) if which == FIRST_SET else fresh_seeds(stage)
    return seeds[:count]


def declare_levels(
    run: record.Run, which: str, seeds: dict[str, NDArray[np.int64]]
) -> dict[str, NDArray[Any]]:
    """Declare the levels on which a run is judged, and return their contents by stage.

    Args:
        run: The run.
        which: VALIDATION_SET or one of SETS.
        seeds: Seeds of the levels by stage.
    """
    split, name = {
        VALIDATION_SET: ("validation", "validation levels"),
        FIRST_SET: ("test", "test levels"),
        FRESH_SET: ("test", "fresh test levels"),
    }[which]
    contents = {stage: levels(stage, own).contents() for stage, own in seeds.items()}
    joined = np.concatenate(list(contents.values()))
    run.declare_evaluation(split, f"{name} of {' '.join(seeds)}", contents=joined)
    return contents


def training_repeats(stage: str, training: NDArray[np.int64]) -> dict[str, int]:
    """Return how many of the 1,000 levels of a stage's test sets the levels of training seeds contain, by set.

    As they are (`test_same`), and in any position (`test`, `fresh`).
    """
    tested = {name: symmetric_keys(levels(stage, level_seeds(stage, name, FRESH))) for name in SETS}
    seen = {name: np.zeros(found.shape, bool) for name, found in tested.items()}
    for part in np.array_split(training, max(1, len(training) // 50_000)):
        trained = keys(levels(stage, part))
        for name, found in tested.items():
            seen[name] |= np.isin(found, trained)
    counts = {name: int(each.any(0).sum()) for name, each in seen.items()}
    return counts | {"test_same": int(seen[FIRST_SET][0].sum())}
