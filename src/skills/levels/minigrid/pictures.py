"""Pictures of levels, drawn with minigrid's own tiles."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from skills.levels.minigrid.env import SkillsEnv
from skills.levels.stages import STAGES, Stage

TILE = 16  # pixels of a cell
SEED = 28  # of the levels that are shown
OWN = [
    name for name, stage in STAGES.items() if isinstance(stage, Stage)
]  # those with levels of their own


def picture(env: SkillsEnv, tile: int = TILE) -> np.ndarray:
    """Returns the whole grid, uint8 [height * tile, width * tile, 3], without what is seen being lit up."""
    return env.grid.render(tile, env.agent_pos, env.agent_dir)


def contact_sheet(path: Path, stages: list[str], seed: int = SEED, columns: int = 6) -> None:
    """Draws a level of each stage with its mission.

    Args:
        path: PNG to write.
        stages: Names.
        seed: Of the levels.
        columns: Levels beside each other.
    """
    from matplotlib.figure import Figure

    rows = -(-len(stages) // columns)
    figure = Figure(figsize=(1.76 * columns, 2.15 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for each in axes:
        each.set_axis_off()
    for drawn, stage in zip(axes, stages, strict=False):
        env = SkillsEnv(stage)
        env.reset(seed=seed)
        drawn.imshow(picture(env))
        words = env.mission.replace(" and ", "\nand ").replace(" green goal square", " goal")
        drawn.set_title(f"{stage}: {words}", fontsize=6.5)
    figure.savefig(path, metadata={"Software": None})


def main() -> None:
    """Draws the picture of docs/skills.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("docs/skills_levels.png"))
    contact_sheet(parser.parse_args().to, OWN)


if __name__ == "__main__":
    main()
