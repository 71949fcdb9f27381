"""Draws the catalog's figures of behaviour cloning from the committed records.

Run after `catalog export`: python src/cartpole/bc_redraw.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import record
from cartpole import bc_figures, bc_results
from cartpole.demonstrations import RESTRICTIONS, VARIABLES
from cartpole.restrictions import REPORTED, RERUN, WHOLE
from cartpole.survival import Shares

# The series of bc_survival.svg: what is learned from, by operation.
SERIES = {
    "bc:restrictions": "source's recipe",
    "bc:restrictions_thorough": "learned well",
    "bc:restrictions_equal": "learned well, equal numbers",
    "bc:restrictions_episodes": "whole episodes, equal numbers",
    "bc:restrictions_narrow": "a fifth of the width",
}
REMEDIES = {"bc:dagger": "DAgger", "bc:dart": "DART", "bc:more": "more of the same"}


def main() -> None:
    """Draws what there are records for, and says what there are none for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=Path, default=Path("experiments"))
    experiments = parser.parse_args().experiments
    found = newest(experiments / "records" / "cartpole")
    folder = experiments / "cartpole" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for path in draw(found, folder):
        print(path)
    if missing := [name for name in (*SERIES, *REMEDIES) if name not in found]:
        print(f"no record of {', '.join(missing)}")


def newest(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest finished record of each operation.

    Raises:
        UserError: There is no such folder, or a file in it is no record.
    """
    if not folder.is_dir():
        raise record.UserError(f"{folder}: no such directory; `catalog export` writes records")
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            name, started = content["operation"], content["started"]
        except (ValueError, KeyError, TypeError):
            raise record.UserError(f"{path}: no record") from None
        if content["status"] == "FINISHED" and started >= found.get(name, content)["started"]:
            found[name] = content
    return found


def draw(found: dict[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Draws figures from records by operation; returns the files."""
    drawn = []
    if "bc:restrictions" in found:
        run = found["bc:restrictions"]
        drawn += [folder / "bc_lifetimes.svg", folder / "bc_distributions.svg"]
        histograms = {name: _curve(run, f"lifetimes/{name}") for name in RESTRICTIONS}
        bc_figures.lifetimes(drawn[-2], histograms, REPORTED)
        spread = {variable: _curve(run, f"distribution/{variable}") for variable in VARIABLES}
        bc_figures.distributions(drawn[-1], spread, bc_results.AXES)
    if series := {title: found[name] for name, title in SERIES.items() if name in found}:
        shares = {title: _shares(run) for title, run in series.items()}
        drawn.append(folder / "bc_survival.svg")
        bc_figures.shares(
            drawn[-1],
            {title: {n: of.mean(1) for n, of in each.of.items()} for title, each in shares.items()},
            {title: {n: each.interval(n) for n in each.of} for title, each in shares.items()},
            [("D", "reported", REPORTED), ("s", "reported, later run", RERUN)],
        )
    if remedies := {title: found[name] for name, title in REMEDIES.items() if name in found}:
        names = [name for name, restriction in RESTRICTIONS.items() if restriction]
        curves = {
            name: {
                title: (_curve(run, f"labels/{name}"), _curve(run, f"survival/{name}"))
                for title, run in remedies.items()
            }
            for name in names
        }
        drawn.append(folder / "bc_labels.svg")
        bc_figures.labels(drawn[-1], curves, WHOLE)
    return drawn


def _curve(run: dict[str, Any], metric: str) -> np.ndarray:
    return np.array([value for _, value in run["metrics"][metric]["curve"]])


def _shares(run: dict[str, Any]) -> Shares:
    orders = int(run["flags"]["orders"])
    return Shares(
        {name: _curve(run, f"survival/{name}").reshape(-1, orders) for name in RESTRICTIONS}
    )


if __name__ == "__main__":
    try:
        main()
    except record.UserError as error:
        raise SystemExit(f"bc_redraw: {error}") from None
