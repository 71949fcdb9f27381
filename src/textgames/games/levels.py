"""Seeds for training, validation and tests that share no level.

RAGEN uses 10,000 consecutive seeds for training and the following 500 for validation. Different seeds often have the
same level, the more so on smaller grids. The test sets are this project's: no level of theirs is, turned or mirrored,
one of the levels that a training may have used.
"""

from __future__ import annotations

import contextlib
import functools

import numpy as np
from numpy.typing import NDArray

from runcatalog import record
from textgames.games.config import (
    DISJOINT_VALIDATION_SET,
    HARD_TEST_SET,
    VALIDATION_SET,
    GameConfig,
)
from textgames.games.interface import BANDIT, FROZENLAKE, SOKOBAN

FIRST = {SOKOBAN: 10_000, FROZENLAKE: 100_000, BANDIT: 100_000}
"""First training seed of reinforcement learning."""
FIRST_SFT = 100_000  # first seed of supervised training, for all games
TRAINING, VALIDATION = 10_000, 500
"""Number of RAGEN's seeds."""
FIRST_TEST = 1 << 31  # first seed of the test sets
USED = 40_000  # seeds from each first one on whose levels the test sets leave out
HARD = 3  # moves that a level of the hard test set needs at least
BLOCK, MOST_TRIED = 10_000, 1_000_000  # seeds in which the levels of a test set are looked for


def level_keys(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return a key of the level of every seed, bytes [n]; equal for equal grids, whatever the slips.

    A bandit has no grid; every seed is a level.
    """
    seeds = np.asarray(seeds, np.int64)
    return seeds.astype("S20") if config.env == BANDIT else _keys(_grids(config, seeds))


def symmetric_keys(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return keys as `level_keys`, equal also for grids that are turned or mirrored, bytes [n]."""
    seeds = np.asarray(seeds, np.int64)
    if config.env == BANDIT:
        return level_keys(config, seeds)
    cells = _grids(config, seeds)
    turned = [np.rot90(cells, quarters, (1, 2)) for quarters in range(4)]
    keys = [_keys(each) for grid in turned for each in (grid, grid[:, :, ::-1])]
    return np.sort(keys, axis=0)[0]


def _grids(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the grids of seeds with the player, uint8 [n, side, side]."""
    if config.env == SOKOBAN:
        from textgames.games.sokoban import generate

        return generate(seeds, config.side, config.boxes, config.search_depth)
    from textgames.games.frozenlake import GOAL
    from textgames.games.frozenlake import generate as lakes

    cells, player, _ = lakes(seeds, config.side, config.frozen)
    cells.reshape(len(seeds), -1)[np.arange(len(seeds)), player] = GOAL + 1
    return cells.reshape(len(seeds), config.side, config.side)


def _keys(cells: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    # As letters: numpy ignores zeros at the end of bytes.
    letters = np.ascontiguousarray(cells.reshape(len(cells), -1) + np.uint8(ord("A")))
    return letters.view(f"S{letters.shape[1]}")[:, 0]


def validation(config: GameConfig, count: int = VALIDATION) -> NDArray[np.int64]:
    """Return the first `count` validation seeds, int64 [count]; beyond RAGEN's 500 they continue upwards."""
    return FIRST[config.env] + TRAINING + np.arange(count, dtype=np.int64)


def training(
    config: GameConfig, count: int, first: int | None = None, excluded: int = VALIDATION
) -> NDArray[np.int64]:
    """Return training seeds in rising order, int64 [count].

    Seeds with the level of a validation seed are left out. (RAGEN keeps them.) So are those with a level of a test set,
    which only seeds beyond the first `USED` can have.

    Args:
        config: The flags.
        count: Number of seeds.
        first: Lowest seed; None: `FIRST` of the game.
        excluded: Number of validation seeds whose levels are excluded.

    Raises:
        UserError: Fewer than 1 % of the seeds have a level that is not excluded.
    """
    excluded_keys = np.unique(level_keys(config, validation(config, excluded)))
    parts: list[NDArray[np.int64]] = []
    start, missing, tried = FIRST[config.env] if first is None else first, count, 0
    while missing > 0:
        seeds = start + np.arange(max(2 * missing, 100), dtype=np.int64)
        allowed = seeds[~np.isin(level_keys(config, seeds), excluded_keys)][:missing]
        start = int(allowed[-1] if len(allowed) == missing else seeds[-1]) + 1
        allowed = _without_held_out(config, allowed, excluded)
        parts.append(allowed)
        missing, tried = missing - len(allowed), tried + len(seeds)
        if missing and tried > 100 * count + 10_000:
            raise record.UserError(
                f"--size: on {config.side} x {config.side} cells almost all levels are among the {excluded} for "
                "validation; use more cells"
            )
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _without_held_out(
    config: GameConfig, seeds: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return the seeds without a level, turned or mirrored, of the first `count` of a test set."""
    ranges = [(first <= seeds) & (seeds < first + USED) for first in _firsts(config)]
    beyond = ~np.any(ranges, axis=0)
    if config.env == BANDIT or not beyond.any():
        return seeds
    beyond[beyond] = np.isin(symmetric_keys(config, seeds[beyond]), _held_out_keys(config, count))
    return seeds[~beyond]


@functools.lru_cache(maxsize=1)  # seeds are looked for in several parts
def _held_out_keys(config: GameConfig, count: int) -> NDArray[np.bytes_]:
    """Return keys, see `symmetric_keys`, of the first `count` levels of the test sets and of `validation_disjoint`.

    Of a set with fewer levels all.
    """
    found = [_look_for(config, count), _look_for(config, count, hard=True)]
    with contextlib.suppress(record.UserError):  # without such levels nothing is chosen by them
        found.append(_look_for(config, count, after=_last_hard(config, count)))
    seeds = np.concatenate(found)
    return symmetric_keys(config, seeds) if len(seeds) else np.zeros(0, "S1")


def evaluation(config: GameConfig, name: str, count: int = VALIDATION) -> NDArray[np.int64]:
    """Return the first `count` seeds of a set that models are judged on, int64 [count].

    Args:
        config: The flags.
        name: One of `config.SETS`.
        count: Number of seeds.

    Raises:
        UserError: See `held_out`; or so many levels of a test set would be some of `validation_disjoint` too.
    """
    if name == VALIDATION_SET:
        return validation(config, count)
    if name == DISJOINT_VALIDATION_SET:
        return disjoint_validation(config, count)
    seeds = held_out(config, count, hard=name == HARD_TEST_SET)
    if count > VALIDATION and (most := _before_choices(config, seeds)) < count:
        raise record.UserError(
            f"--val-data-num: {count}, but from the level {most + 1} of {name} on they are those of "
            f"validation_disjoint, by which settings are chosen; give {most} or fewer"
        )
    return seeds


def _before_choices(config: GameConfig, seeds: NDArray[np.int64]) -> int:
    """Return how many seeds are below those of `validation_disjoint`; all where that has no levels."""
    try:
        return int((seeds < disjoint_validation(config, 1)[0]).sum())
    except record.UserError:
        return len(seeds)


def disjoint_validation(config: GameConfig, count: int = VALIDATION) -> NDArray[np.int64]:
    """Return seeds for choices on levels like those of the test sets: no training has them, and no test, int64 [count].

    Raises:
        UserError: See `held_out`.
    """
    if config.env == BANDIT:
        return 2 * FIRST_TEST + np.arange(count, dtype=np.int64)
    return held_out(config, count, after=_last_hard(config, count))


def _last_hard(config: GameConfig, count: int) -> int:
    """Return the last of the first `VALIDATION` seeds of the hard test set, behind which those for choices begin.

    Raises:
        UserError: The hard test set has fewer, so that none of the `count` levels for choices is left.
    """
    hard = _look_for(config, VALIDATION, hard=True)
    if len(hard) < VALIDATION:
        raise _too_few(count, 0)
    return int(hard[-1])


def held_out(
    config: GameConfig, count: int = VALIDATION, *, hard: bool = False, after: int = 0
) -> NDArray[np.int64]:
    """Return seeds of a test set in rising order, int64 [count]; no two have the same level.

    Levels among the first `USED` seeds of reinforcement learning, of validation and of supervised training are left
    out, turned and mirrored ones too.

    Args:
        config: The flags.
        count: Number of seeds.
        hard: Leave out levels that a shortest solution of less than `HARD` moves solves (without slips).
        after: Only seeds above this one.

    Raises:
        UserError: There are fewer such levels among `MOST_TRIED` seeds.
    """
    if config.env == BANDIT:
        if hard:
            raise record.UserError(
                "--levels, --final-levels: the bandit has no hard test set, every game is a pull"
            )
        return FIRST_TEST + np.arange(count, dtype=np.int64)
    found = _look_for(config, count, hard=hard, after=after)
    if len(found) < count:
        raise _too_few(count, len(found))
    return found


def _too_few(count: int, found: int) -> record.UserError:
    fewer = f"only {found} levels of this kind are in no training; give fewer, or use more cells"
    none = "every level of this kind is in a training or a test set; use more cells"
    return record.UserError(f"--val-data-num: {count}, but {fewer if found else none}")


@functools.lru_cache(maxsize=8)  # a result's levels are looked for before a training and after it
def _look_for(
    config: GameConfig, count: int, *, hard: bool = False, after: int = 0
) -> NDArray[np.int64]:
    """Return seeds as `held_out`, int64 [count]; fewer if `MOST_TRIED` seeds have no more."""
    known = _used_keys(config)
    found = np.zeros(0, np.int64)
    for start in range(FIRST_TEST, FIRST_TEST + MOST_TRIED, BLOCK):
        seeds = start + np.arange(BLOCK, dtype=np.int64)
        keys, first_of_key = np.unique(symmetric_keys(config, seeds), return_index=True)
        new = ~np.isin(keys, known)
        known = np.union1d(known, keys)
        seeds = np.sort(seeds[first_of_key[new]])
        seeds = seeds[seeds > after]
        if hard:
            seeds = seeds[_moves(config, seeds) >= HARD]
        found = np.concatenate([found, seeds])
        if len(found) >= count:
            break
    return found[:count]


def _firsts(config: GameConfig) -> list[int]:
    """Return the first seeds of reinforcement learning and of supervised training."""
    return sorted({FIRST[config.env], FIRST_SFT})


@functools.lru_cache(maxsize=1)  # a run looks for the levels of several sets
def _used_keys(config: GameConfig) -> NDArray[np.bytes_]:
    """Return the keys, see `symmetric_keys`, of the levels that a test set leaves out."""
    used = [
        symmetric_keys(config, first + np.arange(USED, dtype=np.int64)) for first in _firsts(config)
    ]
    return np.unique(np.concatenate(used))


def _moves(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of a shortest solution without slips, int64 [n]; 0 where there is none."""
    from textgames.games.solver import solutions

    found = solutions(config, seeds, safe=True)
    return np.array([0 if moves is None else len(moves) for moves in found], np.int64)
