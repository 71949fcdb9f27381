"""A small animation of what an agent does: `python -m skills.film RUN_DIR OUT.gif`.

One episode of each verb beside each other, in minigrid's own tiles; of a mixture also whom its gate listens to.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runcatalog import record
from runcatalog.plots import gif
from skills.levels.codes import mission_text
from skills.levels.stages import SIZE, STAGES, stages_by_verb

if TYPE_CHECKING:
    from skills.agents.policy import Agent

TILE = 12  # pixels of a cell
BAR = 14  # pixels of the weights' height
FRAME = 160  # ms, a multiple of the 10 ms that the format knows
WAIT = 6  # frames that the end is shown


def frames(agent: Agent, stage: str, seed: int, greedy: bool = True) -> list[np.ndarray]:
    """Returns pictures of an episode, uint8 [height, width, 3], and what the mission is above them.

    Args:
        agent: Acts.
        stage: Of one verb or of all.
        seed: Of the level.
        greedy: The likeliest actions, else drawn ones.
    """
    from skills.learning.mixture import Mixture
    from skills.levels.engine import Engine
    from skills.levels.minigrid.env import SkillsEnv
    from skills.levels.minigrid.pictures import picture

    engine, env, found = Engine(stage, 1, auto_reset=False), SkillsEnv(), []
    step, memory, ended = engine.reset(np.array([seed])), agent.start(1), False
    uniform = None if greedy else np.random.default_rng(seed)
    title = caption(mission_text(step.mission[0]))
    while not ended:
        level = engine.state()
        actions, memory = agent.act(step, memory, uniform)
        env.reset(options={"level": level})
        shown = [title, picture(env, TILE)]
        if isinstance(agent, Mixture):
            shown.append(bar(agent.weights[0]))
        found.append(np.concatenate(shown))
        step = engine.step(actions)
        ended = bool(step.terminated[0] or step.truncated[0])
    env.reset(options={"level": engine.state()})
    found.append(np.concatenate([title, picture(env, TILE), *shown[2:]]))
    return found


def caption(text: str) -> np.ndarray:
    """Words in black on white, uint8 [height, SIZE * TILE, 3], two lines at most."""
    from PIL import Image, ImageDraw

    words, lines = text.replace("green goal square", "goal").split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 21:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    page = Image.new("RGB", (SIZE * TILE, 26), "white")
    ImageDraw.Draw(page).multiline_text((3, 1), "\n".join(lines[:2]), fill="black", spacing=1)
    return np.asarray(page)


def bar(weights: np.ndarray) -> np.ndarray:
    """Weights [K] as stretches of a line, in the colours of `plots.gate`."""
    from matplotlib.colors import to_rgb

    from skills.figures.plots import COLOURS

    width = SIZE * TILE
    ends = np.round(np.cumsum(weights) * width)
    of = np.minimum(np.searchsorted(ends, np.arange(width), side="right"), len(weights) - 1)
    colours = np.array([[round(255 * part) for part in to_rgb(each)] for each in COLOURS])
    return np.tile(colours[of % len(COLOURS)].astype(np.uint8), (BAR, 1, 1))


def beside(episodes: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Episodes beside each other, with a white line between; one that has ended waits for the others."""
    longest = max(map(len, episodes)) + WAIT
    gap = np.full((len(episodes[0][0]), 6, 3), 255, np.uint8)
    found = []
    for t in range(longest):
        now = [part for each in episodes for part in (gap, each[min(t, len(each) - 1)])]
        found.append(np.concatenate(now[1:], axis=1))
    return found


def make(run: Path, path: Path, stage: str = "", seed: int = 0, greedy: bool = True) -> None:
    """Draws what the agent of a run does.

    Args:
        run: Folder of the run or of a checkpoint.
        path: File to write, ``.gif``.
        stage: What it plays, an episode of each of its verbs; empty: what it was trained on.
        seed: Of the levels.
        greedy: The likeliest actions, else drawn ones.

    Raises:
        record.UserError: There is no agent or no such stage, or the file has another name.
    """
    from skills.agents import checkpoints

    if path.suffix != ".gif":
        raise record.UserError(f"{path} is no name of a .gif")
    agent = checkpoints.load(run)
    if (stage := stage or agent.stage) not in STAGES:
        raise record.UserError(f"--stage: no stage {stage!r}; there are {', '.join(STAGES)}")
    played = [frames(agent, each, seed, greedy) for each in stages_by_verb(stage).values()]
    gif.write(path, beside(played), FRAME)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run or of a checkpoint")
    parser.add_argument("out", type=Path, help="file to write, .gif")
    parser.add_argument("--stage", default="", help="what it plays; default: what it learned last")
    parser.add_argument("--seed", type=int, default=0, help="of the levels")
    parser.add_argument("--sampled", action="store_true", help="draw actions, not the likeliest")
    options = parser.parse_args()
    try:
        make(options.run, options.out, options.stage, options.seed, not options.sampled)
    except record.UserError as error:
        parser.exit(2, f"skills.film: {error}\n")
    print(f"{options.out}: {options.out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
