"""Draw an animation of a run's last policy: `python -m door.gif RUN_DIR OUT.gif`.

The same policy gives the same bytes on machines with the same renderer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from runcatalog import record


def make(run: Path, path: Path, task: str = "", episodes: int = 2) -> None:
    """Draw the last policy of a finished training run in its first test worlds.

    Args:
        run: The run's directory.
        path: File to write, ``.gif``.
        task: A task of the run; empty: the last.
        episodes: Number of worlds, one episode in every world, cut 0.6 s after success.

    Raises:
        record.UserError: The run has no policies or no such task, the folder of the file is missing, or the machine
            cannot render.
    """
    from door.continual import steps
    from door.env import render
    from door.training import snapshots

    if path.suffix != ".gif":
        raise record.UserError(f"{path} does not end in .gif")
    if not path.parent.is_dir():
        raise record.UserError(f"{path}: there is no folder {path.parent}")
    if episodes < 1:
        raise record.UserError(f"--episodes: {episodes} is not 1 or more")
    step = steps.read_one(run)
    policies = dict(snapshots.load(step.snapshots[-1][1]))
    task = task or list(policies)[-1]
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
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a finished training run")
    parser.add_argument("out", type=Path, help="file to write, .gif")
    parser.add_argument("--task", default="", help="a task of the run; default: the last")
    parser.add_argument(
        "--episodes", type=int, default=2, help="number of test worlds, one episode per world"
    )
    options = parser.parse_args()
    try:
        make(options.run, options.out, options.task, options.episodes)
    except record.UserError as error:
        parser.exit(2, f"door.gif: {error}\n")
    print(f"{options.out}: {options.out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
