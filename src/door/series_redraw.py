"""Draws the catalog's figures of whole series from the committed records of `door:metrics`.

Run after `catalog export`: python src/door/series_redraw.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from door.series_figures import Course, matrix, over_series
from runcatalog import record
from runcatalog.model import committed

_TASK = re.compile(r"(matrix|success)/(\d+)_(\w+)")


def main() -> None:
    """Draws what there are records for, and says if there are none."""
    if not newest(committed.redraw(__doc__.splitlines()[0], "door", draw_all)):
        print("no record of door:metrics")


def newest(found: committed.Records) -> committed.Records:
    """The newest record of each seed, of each operation `door:metrics_…`, in the order of seeds."""
    chosen: committed.Records = {}
    for name in sorted(found):
        if name.startswith("door:metrics_"):
            of_seed = {run["seed"]: run for run in found[name]}
            chosen[name] = [of_seed[seed] for seed in sorted(of_seed)]
    return chosen


def draw_all(found: committed.Records, folder: Path) -> list[Path]:
    """Draws the figures of every operation `door:metrics_…`; returns the files."""
    return [path for name, runs in newest(found).items() for path in draw(name, runs, folder)]


def draw(operation: str, runs: list[dict[str, Any]], folder: Path) -> list[Path]:
    """The matrix, a mean over seeds, and the course of success, a line for each; returns the files.

    Raises:
        record.UserError: the records are of different tasks.
    """
    tasks = _tasks(runs[0])
    for run in runs:
        if _tasks(run) != tasks:
            raise record.UserError(
                f"{operation}: {run['run'][:8]} learned {', '.join(_tasks(run))}, "
                f"{runs[0]['run'][:8]} {', '.join(tasks)}: not one series"
            )
    name = operation.rpartition(":")[2]
    paths = [folder / f"{name}_matrix.svg", folder / f"{name}_success.svg"]
    rates = [[values for _, values in _curves(run, "matrix")] for run in runs]
    matrix(paths[0], tasks, np.mean(rates, axis=0).T)
    courses = [Course(_curves(run, "matrix")[0][0], _curves(run, "success")) for run in runs]
    over_series(paths[1], tasks, courses)
    return paths


def _tasks(run: dict[str, Any]) -> list[str]:
    found = {int(m[2]): m[3] for name in run["metrics"] if (m := _TASK.fullmatch(name))}
    return [found[place] for place in sorted(found)]


def _curves(run: dict[str, Any], what: str) -> list[tuple[list[float], list[float]]]:
    """Steps and values of a metric of each task, in the order of learning."""
    found = {}
    for name, metric in run["metrics"].items():
        if (match := _TASK.fullmatch(name)) and match[1] == what:
            steps, values = zip(*metric["curve"], strict=True)
            found[int(match[2])] = (list(steps), list(values))
    return [found[place] for place in sorted(found)]


if __name__ == "__main__":
    main()
