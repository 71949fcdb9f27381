"""Draws the catalog's figures of whole series from the committed records of `door:metrics`.

Run after `catalog export`: python src/door/series_redraw.py
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import record
from door.series_figures import Course, matrix, over_series

_TASK = re.compile(r"(matrix|success)/(\d+)_(\w+)")


def main() -> None:
    """Draws what there are records for, and says if there are none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=Path, default=Path("experiments"))
    experiments = parser.parse_args().experiments
    folder = experiments / "door" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    found = newest(experiments / "records" / "door")
    for operation, runs in found.items():
        for path in draw(operation, runs, folder):
            print(path)
    if not found:
        print("no record of door:metrics")


def newest(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The newest finished record of each seed, by operation `door:metrics…`.

    Raises:
        record.UserError: there is no such folder, or a file in it is no record.
    """
    if not folder.is_dir():
        raise record.UserError(f"{folder}: no such directory; `catalog export` writes records")
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            name, seed, started = content["operation"], content["seed"], content["started"]
        except (ValueError, KeyError, TypeError):
            raise record.UserError(f"{path}: no record") from None
        if content["status"] == "FINISHED" and name.startswith("door:metrics_"):
            of_seed = found.setdefault(name, {})
            if started >= of_seed.get(seed, content)["started"]:
                of_seed[seed] = content
    return {name: [of_seed[s] for s in sorted(of_seed)] for name, of_seed in sorted(found.items())}


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
    try:
        main()
    except record.UserError as error:
        raise SystemExit(f"series_redraw: {error}") from None
