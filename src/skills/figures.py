"""Pictures of levels, drawn with minigrid's own tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from skills.env import SkillsEnv

TILE = 16  # pixels of a cell


def picture(env: SkillsEnv, tile: int = TILE) -> np.ndarray:
    """Returns the whole grid, uint8 [height * tile, width * tile, 3], without what is seen being lit up."""
    return env.grid.render(tile, env.agent_pos, env.agent_dir)


def contact_sheet(path: Path, stages: list[str], seeds: np.ndarray, columns: int = 3) -> None:
    """Draws levels of each stage with their missions.

    Args:
        path: PNG to write.
        stages: Names.
        seeds: Of each stage's levels, int [k].
        columns: Stages of a row.
    """
    from matplotlib.figure import Figure

    rows = -(-len(stages) // columns)
    across = columns * len(seeds)
    figure = Figure(figsize=(1.75 * across, 2.15 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, across, squeeze=False)
    for each in axes.flat:
        each.set_axis_off()
    for index, stage in enumerate(stages):
        env = SkillsEnv(stage)
        for place, seed in enumerate(seeds):
            drawn = axes[index // columns, index % columns * len(seeds) + place]
            env.reset(seed=int(seed))
            drawn.imshow(picture(env))
            words = env.mission.replace(" and ", "\nand ").replace(" green goal square", " goal")
            drawn.set_title(f"{stage}: {words}" if place == 0 else words, fontsize=6)
    figure.savefig(path, metadata={"Software": None})
