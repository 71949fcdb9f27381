"""Videos of agents in dark rooms, the rooms side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from darkroom.a2c.evaluation import complete_episodes
from darkroom.rooms.grid import NO_KEY, centre, key_and_goal

if TYPE_CHECKING:
    from darkroom.a2c.a2c import SourceAgents

FPS = 5
WIDTH = 960  # approximate width of a picture [pixels]
_FLOOR, _WALL = (255, 255, 255), (90, 90, 90)
_GOAL, _KEY, _AGENT, _BOTH = (213, 94, 0), (240, 228, 66), (0, 114, 178), (0, 158, 115)


def paths(agents: SourceAgents, rng: np.random.Generator, episodes: int) -> np.ndarray:
    """Return the agents' cells in some episodes, int [steps, T]; after its end an episode waits for the others."""
    frames = []
    for _ in range(episodes):
        cells = np.full(len(agents.goals), centre(agents.settings.size), np.int32)
        frames.append(cells)
        for step, running in complete_episodes(agents, rng, 1):
            cells = np.where(running, step.final, cells)
            frames.append(cells)
    return np.stack(frames)


def picture(size: int, tasks: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return a picture of rooms side by side, uint8 [height, width, 3] with even sides.

    Args:
        size: Side of the rooms [cells].
        tasks: Task of every room, int [n].
        cells: Agent's cell in every room, int [n].
    """
    count, ideal = len(tasks), math.sqrt(len(tasks) * 4 / 3)
    # About 4:3, with few empty places in the last row.
    across = min(
        range(max(1, int(0.8 * ideal)), math.ceil(1.2 * ideal) + 1),
        key=lambda columns: (-count % columns + 2 * abs(columns - ideal), columns),
    )
    down = math.ceil(count / across)
    pixels = max(2, WIDTH // (across * (size + 1)))
    page = np.full((down * (size + 1) + 1, across * (size + 1) + 1, 3), _WALL, np.uint8)
    for i, (task, cell) in enumerate(zip(tasks, cells, strict=True)):
        room = np.full((size * size, 3), _FLOOR, np.uint8)
        key, goal = key_and_goal(task, size)
        if key != NO_KEY:
            room[key] = _KEY
        room[goal], room[cell] = _GOAL, _BOTH if goal == cell else _AGENT
        top, left = (i // across) * (size + 1) + 1, (i % across) * (size + 1) + 1
        page[top : top + size, left : left + size] = room.reshape(size, size, 3)
    large = page.repeat(pixels, axis=0).repeat(pixels, axis=1)
    return large[: large.shape[0] // 2 * 2, : large.shape[1] // 2 * 2]


def write(path: Path, size: int, tasks: np.ndarray, cells: np.ndarray) -> None:
    """Write a video of paths, int [steps, n], with ffmpeg."""
    import imageio.v2 as imageio

    # A single thread: pictures of flat squares are encoded faster than others could start.
    options = ["-preset", "veryfast", "-crf", "20", "-threads", "1", "-movflags", "+faststart"]
    with imageio.get_writer(
        path, format="FFMPEG", fps=FPS, codec="libx264", macro_block_size=2, quality=None, output_params=options,
    ) as writer:  # fmt: skip
        for frame in cells:
            writer.append_data(picture(size, tasks, frame))
