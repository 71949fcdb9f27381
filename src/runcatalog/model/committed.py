"""The committed records of runs, read by what draws figures from them.

`catalog export` writes a JSON file a run under experiments/records/STUDY/; this reads them without MLflow.
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

from runcatalog.record.errors import UserError

Records = dict[str, list[dict[str, Any]]]


def finished(folder: Path) -> Records:
    """The records of a study's finished runs by operation, oldest first.

    Raises:
        UserError: There is no such folder, or a file in it is no record.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory; `catalog export` writes records")
    found: Records = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            content["started"], content["metrics"], content["flags"]
            if content["status"] == "FINISHED":
                found[content["operation"]].append(content)
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: no record") from None
    return {name: sorted(each, key=lambda one: one["started"]) for name, each in found.items()}


def values(run: dict[str, Any], metric: str) -> np.ndarray:
    """A metric's values, in the order of its steps."""
    return np.array([value for _, value in run["metrics"][metric]["curve"]])


def redraw(about: str, study: str, draw: Callable[[Records, Path], list[Path]]) -> Records:
    """A script's whole job: reads `--experiments`, draws a study's figures, prints their paths.

    Args:
        about: The script's first line of help.
        study: Whose records are read, and whose folder `figures` is drawn into.
        draw: Draws from records into a folder; returns the files.

    Returns:
        The records, for what the script says of those that it misses.

    Raises:
        SystemExit: `draw`, or reading the records, raised a UserError; its line names the script.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--experiments", type=Path, default=Path("experiments"))
    experiments = parser.parse_args().experiments
    try:
        found = finished(experiments / "records" / study)
        folder = experiments / study / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for path in draw(found, folder):
            print(path)
    except UserError as error:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None
    return found
