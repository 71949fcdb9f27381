"""Seeds for training and for validation that share no level.

RAGEN uses 10,000 consecutive seeds for training and the following 500 for validation. Different seeds often have the
same level, the more so on smaller grids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runcatalog import record
from textgames.games.config import GameConfig
from textgames.games.interface import BANDIT, FROZENLAKE, SOKOBAN

FIRST = {SOKOBAN: 10_000, FROZENLAKE: 100_000, BANDIT: 100_000}
"""First training seed of reinforcement learning."""
FIRST_SFT = 100_000  # first seed of supervised training, for all games
TRAINING, VALIDATION = 10_000, 500
"""Number of RAGEN's seeds."""


def level_keys(config: GameConfig, seeds: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return a key of the level of every seed, bytes [n]; equal for equal grids, whatever the slips.

    A bandit has no grid; every seed is a level.
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
    # As letters: numpy ignores zeros at the end of bytes.
    letters = cells.reshape(len(seeds), -1) + np.uint8(ord("A"))
    return np.ascontiguousarray(letters).view(f"S{letters.shape[1]}")[:, 0]


def validation(config: GameConfig, count: int = VALIDATION) -> NDArray[np.int64]:
    """Return the first `count` validation seeds, int64 [count]; beyond RAGEN's 500 they continue upwards."""
    return FIRST[config.env] + TRAINING + np.arange(count, dtype=np.int64)


def training(
    config: GameConfig, count: int, first: int | None = None, excluded: int = VALIDATION
) -> NDArray[np.int64]:
    """Return training seeds in rising order, int64 [count].

    Seeds with the level of a validation seed are left out. (RAGEN keeps them.)

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
        parts.append(allowed)
        start, missing, tried = start + len(seeds), missing - len(allowed), tried + len(seeds)
        if missing and tried > 100 * count + 10_000:
            raise record.UserError(
                f"--size: on {config.side} x {config.side} cells almost all levels are among the {excluded} for "
                "validation; use more cells"
            )
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
