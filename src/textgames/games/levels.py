"""Which seeds are for training and which are for validation, so that no level is in both.

The source takes 10,000 seeds from a first one on for training and the following 500 for validation. Different
seeds often have the same level, the more so the smaller the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runcatalog import record
from textgames.games.config import GameConfig
from textgames.games.interface import BANDIT, FROZENLAKE, SOKOBAN

FIRST = {SOKOBAN: 10_000, FROZENLAKE: 100_000, BANDIT: 100_000}
"""First seed for training in RL."""
FIRST_SFT = 100_000  # first seed for supervised training, whatever the game
TRAINING, VALIDATION = 10_000, 500
"""How many seeds the source has for either."""


def level_keys(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """What tells levels apart, bytes [n]: equal for seeds with the same grid, wherever the slips lead.

    A bandit has no grid; each seed is a level of its own.
    """
    seeds = np.asarray(seeds, np.int64)
    if config.env == BANDIT:
        return seeds.astype("S20")
    if config.env == SOKOBAN:
        from textgames.games.sokoban import generate

        cells = generate(seeds, config.side, config.boxes, config.search_depth)
    else:
        from textgames.games.frozenlake import GOAL
        from textgames.games.frozenlake import generate as lakes

        cells, player, _ = lakes(seeds, config.side, config.frozen)
        cells.reshape(len(seeds), -1)[np.arange(len(seeds)), player] = GOAL + 1
    # As letters: numpy takes zeros at the end of bytes for nothing.
    letters = cells.reshape(len(seeds), -1) + np.uint8(ord("A"))
    return np.ascontiguousarray(letters).view(f"S{letters.shape[1]}")[:, 0]


def validation(config: GameConfig, count: int = VALIDATION) -> NDArray[np.int64]:
    """The first `count` seeds of the source's validation set, and those that follow; int64 [count]."""
    return FIRST[config.env] + TRAINING + np.arange(count, dtype=np.int64)


def training(
    config: GameConfig, count: int, first: int | None = None, kept_out: int = VALIDATION
) -> NDArray[np.int64]:
    """Seeds for training, int64 [count], in rising order.

    They begin at `first`. A seed whose level is that of one of the validation's seeds is left out, and so are these
    seeds themselves; the source does not do that.

    Args:
        config: Flags.
        count: How many.
        first: The seed to begin with; None: `FIRST` of the game.
        kept_out: How many of the validation's seeds have levels that are left out.

    Raises:
        UserError: Of the seeds that were tried fewer than one in a hundred has a level for training.
    """
    held = np.unique(level_keys(config, validation(config, kept_out)))
    found: list[NDArray[np.int64]] = []
    start, missing, tried = FIRST[config.env] if first is None else first, count, 0
    while missing > 0:
        seeds = start + np.arange(max(2 * missing, 100), dtype=np.int64)
        fitting = seeds[~np.isin(level_keys(config, seeds), held)][:missing]
        found.append(fitting)
        start, missing, tried = start + len(seeds), missing - len(fitting), tried + len(seeds)
        if missing and tried > 100 * count + 10_000:
            raise record.UserError(
                f"--size: on {config.side} x {config.side} cells hardly a level is not among the {kept_out} for "
                "validation; take more cells"
            )
    return np.concatenate(found) if found else np.zeros(0, np.int64)
