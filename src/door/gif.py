"""A small animation of what a run learned: `python -m door.gif RUN_DIR OUT.gif`.

The same policy gives the same bytes on machines that render alike.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from runcatalog import record


def make(run: Path, path: Path, task: str = "", episodes: int = 2) -> None:
    """Draws a finished training run's last policy in its first test worlds.

    Args:
        run: The run's directory.
        path: File to write, ``.gif``.
        task: One of those that the run knows; empty means the last.
        episodes: Number of worlds, one episode each, cut 0.6 s after success.

    Raises:
        record.UserError: the run kept no policies or knows no such task, or nothing here can render.
    """
    from door.continual import steps
    from door.env import render
    from door.training import snapshots

    if path.suffix != ".gif":
        raise record.UserError(f"{path} is no name of a .gif")
    step = steps.read_one(run)
    policies = dict(snapshots.load(step.snapshots[-1][1]))
    task = task or step.task
    if task not in policies:
        raise record.UserError(f"--task: that run learned {', '.join(policies)}, not {task}")
    scene = render.film(
        policies[task],
        task,
        step.robot,
        seeds=record.Seeds(step.seed),
        episodes=episodes,
        start=step.start,
    )
    video = render.draw(scene, path)
    if video.path is None:
        raise record.UserError(video.reason)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a finished training run")
    parser.add_argument("out", type=Path, help="file to write, .gif")
    parser.add_argument(
        "--task", default="", help="of those that the run learned; default: the last"
    )
    parser.add_argument("--episodes", type=int, default=2, help="test worlds, one episode each")
    options = parser.parse_args()
    try:
        make(options.run, options.out, options.task, options.episodes)
    except record.UserError as error:
        parser.exit(2, f"door.gif: {error}\n")
    print(f"{options.out}: {options.out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
