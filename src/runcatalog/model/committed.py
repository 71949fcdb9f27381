"""Reader of committed records for scripts that draw figures, without MLflow.

`catalog export` writes a JSON file per run to experiments/records/STUDY/.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.model import values
from runcatalog.record.errors import UserError

Records = dict[str, list[dict[str, Any]]]


def finished_runs(folder: Path) -> Records:
    """Return the records of a study's finished runs by operation, oldest first; none that is superseded or retracted.

    Raises:
        UserError: The folder is missing, or a file in it is not a record.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory; `catalog export` writes records")
    by_operation: Records = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            content["started"], content["metrics"], content["flags"]
            is_marked = content.get("superseded_by") or content.get("retracted")
            if content["status"] == "FINISHED" and not is_marked:
                by_operation[content["operation"]].append(content)
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not a record") from None
    # An imported run may have no start.
    return {
        name: sorted(runs, key=lambda run: run["started"] or 0)
        for name, runs in by_operation.items()
    }


def without_batches(records: Records) -> Records:
    """Return the records of single runs: a batch has neither flags nor metrics, its trials have."""
    return {
        name: single
        for name, runs in records.items()
        if (single := [run for run in runs if not (run.get("result") or {}).get("batch")])
    }


def metric_values(run: dict[str, Any], metric: str) -> np.ndarray:
    """Return a metric's values in the order of its steps, float64 of shape (points,)."""
    return np.array([values.number(value) for _, value in run["metrics"][metric]["curve"]], float)


def redraw(about: str, study: str, draw: Callable[[Records, Path], list[Path]]) -> Records:
    """Main function of a script that draws a study's figures: parse `--experiments`, draw, print the paths.

    Args:
        about: First line of the script's help.
        study: Name of the study; figures go to its folder `figures`.
        draw: Draws from records of single runs into a folder; returns the files.

    Returns:
        The records, so that the script can report missing ones.

    Raises:
        SystemExit: `draw` or the reader raised a UserError; the message names the script.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--experiments", type=Path, default=Path("experiments"))
    experiments = parser.parse_args().experiments
    try:
        records = without_batches(finished_runs(experiments / "records" / study))
        folder = experiments / study / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for path in draw(records, folder):
            print(path)
    except UserError as error:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None
    return records
