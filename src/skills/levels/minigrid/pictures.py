"""Pictures of levels with minigrid's tiles: `python -m skills.levels.minigrid.pictures`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from skills.levels.minigrid.env import SkillsEnv
from skills.levels.stages import STAGES, Stage

TILE = 16  # pixels of a cell
SEED = 28  # of the levels in the picture of docs/skills.md
# Stages with their own generator parameters
OWN_STAGES = [name for name, stage in STAGES.items() if isinstance(stage, Stage)]


def picture(env: SkillsEnv, tile: int = TILE) -> np.ndarray:
    """Return a picture of the whole grid without the highlighted view, uint8 [height * tile, width * tile, 3]."""
    return env.grid.render(tile, env.agent_pos, env.agent_dir)


def contact_sheet(path: Path, stages: list[str]) -> None:
    """Draw one level of every stage with its mission.

    Args:
        path: PNG to write.
        stages: Names of the stages.
    """
    from matplotlib.figure import Figure

    columns = 6
    rows = -(-len(stages) // columns)
    figure = Figure(figsize=(1.76 * columns, 2.15 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.set_axis_off()
    for axis, stage in zip(axes, stages, strict=False):
        env = SkillsEnv(stage)
        env.reset(seed=SEED)
        axis.imshow(picture(env))
        words = env.mission.replace(" and ", "\nand ").replace(" green goal square", " goal")
        axis.set_title(f"{stage}: {words}", fontsize=6.5)
    figure.savefig(path, metadata={"Software": None})


def main() -> None:
    """Draw the picture of docs/skills.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("docs/images/skills_levels.png"))
    contact_sheet(parser.parse_args().to, OWN_STAGES)


if __name__ == "__main__":
    main()
