"""Draw the catalog's figures of whole series from the committed records of `door:metrics`.

Run after `catalog export`: python src/door/series_redraw.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from door.continual.figures import SeriesCurves, matrix, success_curves
from runcatalog import record
from runcatalog.model import committed
from runcatalog.plots.palette import Palette

_TASK = re.compile(r"(matrix|success)/(\d+)_(\w+)")


def main() -> None:
    """Draw all figures that have records; print a line if there is no record."""
    if not newest(committed.redraw(__doc__.splitlines()[0], "door", draw_all)):
        print("no record of door:metrics")


def newest(records: committed.Records) -> committed.Records:
    """Return the newest record per seed of the operations `door:metrics_…`, in the order of seeds."""
    chosen: committed.Records = {}
    for name in sorted(records):
        if name.startswith("door:metrics_"):
            by_seed = {run["seed"]: run for run in records[name]}
            chosen[name] = [by_seed[seed] for seed in sorted(by_seed)]
    return chosen


def draw_all(records: committed.Records, folder: Path) -> list[Path]:
    """Draw the figures of all operations `door:metrics_…`; return the files."""
    return [path for name, runs in newest(records).items() for path in draw(name, runs, folder)]


def draw(operation: str, runs: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw the matrix, as a mean over seeds, and the learning curves, a line per seed; return the files.

    Raises:
        record.UserError: The records have different tasks.
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
    seeds = [SeriesCurves(_curves(run, "matrix")[0][0], _curves(run, "success")) for run in runs]
    success_curves(paths[1], tasks, seeds, Palette.read(folder.parents[1]))
    return paths


def _tasks(run: dict[str, Any]) -> list[str]:
    tasks = {int(m[2]): m[3] for name in run["metrics"] if (m := _TASK.fullmatch(name))}
    return [tasks[place] for place in sorted(tasks)]


def _curves(run: dict[str, Any], what: str) -> list[tuple[list[float], list[float]]]:
    """Return steps and values of a metric per task, in the order of learning."""
    curves = {}
    for name, metric in run["metrics"].items():
        if (match := _TASK.fullmatch(name)) and match[1] == what:
            steps, values = zip(*metric["curve"], strict=True)
            curves[int(match[2])] = (list(steps), list(values))
    return [curves[place] for place in sorted(curves)]


if __name__ == "__main__":
    main()
