"""Animations of an agent's episodes: `python -m skills.figures.gif RUN_DIR OUT.gif`.

One episode per verb, side by side, in minigrid's tiles; below a mixture's episode the weights of its gate.
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

TILE = 12  # side of a cell [pixels]
BAR = 14  # height of the bar of weights [pixels]
FRAME = 160  # duration of a frame [ms], a multiple of the format's 10 ms
WAIT = 6  # frames that show the end


def frames(agent: Agent, stage: str, seed: int, greedy: bool = True) -> list[np.ndarray]:
    """Return the frames of an episode with the mission above, uint8 [height, width, 3].

    Args:
        agent: The agent.
        stage: Stage of the level.
        seed: Seed of the level.
        greedy: Whether to take the most probable actions.
    """
    from skills.agents.mixture import Mixture
    from skills.levels.engine import Engine
    from skills.levels.minigrid.env import SkillsEnv
    from skills.levels.minigrid.pictures import picture

    engine, env, pictures = Engine(stage, 1, auto_reset=False), SkillsEnv(), []
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
        pictures.append(np.concatenate(shown))
        step = engine.step(actions)
        ended = bool(step.terminated[0] or step.truncated[0])
    env.reset(options={"level": engine.state()})
    pictures.append(np.concatenate([title, picture(env, TILE), *shown[2:]]))
    return pictures


def caption(text: str) -> np.ndarray:
    """Return black text on white in at most two lines, uint8 [height, SIZE * TILE, 3]."""
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
    """Return a bar of weights [K] in the colours of `plots.gate`, uint8 [BAR, width, 3]."""
    from matplotlib.colors import to_rgb

    from skills.figures.plots import COLOURS

    width = SIZE * TILE
    ends = np.round(np.cumsum(weights) * width)
    expert = np.minimum(np.searchsorted(ends, np.arange(width), side="right"), len(weights) - 1)
    colours = np.array([[round(255 * part) for part in to_rgb(colour)] for colour in COLOURS])
    return np.tile(colours[expert % len(COLOURS)].astype(np.uint8), (BAR, 1, 1))


def side_by_side(episodes: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return frames with all episodes side by side; a finished episode shows its last frame."""
    longest = max(map(len, episodes)) + WAIT
    gap = np.full((len(episodes[0][0]), 6, 3), 255, np.uint8)
    joined = []
    for t in range(longest):
        now = [part for frames in episodes for part in (gap, frames[min(t, len(frames) - 1)])]
        joined.append(np.concatenate(now[1:], axis=1))
    return joined


def make(run: Path, path: Path, stage: str = "", seed: int = 0, greedy: bool = True) -> None:
    """Draw the episodes of a run's agent.

    Args:
        run: Folder of the run or checkpoint.
        path: File to write, ``.gif``.
        stage: Stage, of whose verbs one episode each is shown; "": the stage of the training.
        seed: Seed of the levels.
        greedy: Whether to take the most probable actions.

    Raises:
        record.UserError: There is no agent, an unknown stage, another suffix, a missing folder, or no such seed.
    """
    from skills.agents import checkpoints

    if path.suffix != ".gif":
        raise record.UserError(f"{path} is no name of a .gif")
    if not path.parent.is_dir():
        raise record.UserError(f"{path}: there is no folder {path.parent}")
    if not 0 <= seed < 1 << 63:
        raise record.UserError(f"--seed: {seed} is no integer from 0 to 2^63 - 1")
    agent = checkpoints.load(run)
    if (stage := stage or agent.stage) not in STAGES:
        raise record.UserError(f"--stage: no stage {stage!r}; there are {', '.join(STAGES)}")
    episodes = [frames(agent, part, seed, greedy) for part in stages_by_verb(stage).values()]
    gif.write(path, side_by_side(episodes), FRAME)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run or of a checkpoint")
    parser.add_argument("out", type=Path, help="file to write, .gif")
    parser.add_argument(
        "--stage", default="", help="stage to play; default: the stage of the training"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the levels")
    parser.add_argument(
        "--sampled", action="store_true", help="sampled actions instead of the most probable"
    )
    options = parser.parse_args()
    try:
        make(options.run, options.out, options.stage, options.seed, not options.sampled)
    except record.UserError as error:
        parser.exit(2, f"skills.figures.gif: {error}\n")
    print(f"{options.out}: {options.out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
