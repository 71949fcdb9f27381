"""Draws the catalog's figures of behaviour cloning from the committed records.

Run after `catalog export`: python src/cartpole/bc_redraw.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cartpole.cloning import figures as bc_figures
from cartpole.cloning import summary as bc_results
from cartpole.cloning.demonstrations import RESTRICTIONS, VARIABLES
from cartpole.cloning.summary import REPORTED, RERUN, WHOLE
from cartpole.cloning.survival import Shares
from runcatalog.model import committed
from runcatalog.model.committed import metric_values

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
    found = committed.redraw(__doc__.splitlines()[0], "cartpole", draw)
    if missing := [name for name in (*SERIES, *REMEDIES) if name not in found]:
        print(f"no record of {', '.join(missing)}")


def draw(found: committed.Records, folder: Path) -> list[Path]:
    """Draws figures from the newest record of each operation; returns the files."""
    newest = {name: runs[-1] for name, runs in found.items()}
    drawn = []
    if run := newest.get("bc:restrictions"):
        drawn += [folder / "bc_lifetimes.svg", folder / "bc_distributions.svg"]
        histograms = {name: metric_values(run, f"lifetimes/{name}") for name in RESTRICTIONS}
        bc_figures.lifetimes(drawn[-2], histograms, REPORTED)
        spread = {
            variable: metric_values(run, f"distribution/{variable}") for variable in VARIABLES
        }
        bc_figures.distributions(drawn[-1], spread, bc_results.AXES)
    if series := {title: newest[name] for name, title in SERIES.items() if name in newest}:
        shares = {title: _shares(run) for title, run in series.items()}
        drawn.append(folder / "bc_survival.svg")
        bc_figures.shares(
            drawn[-1],
            {title: {n: of.mean(1) for n, of in each.of.items()} for title, each in shares.items()},
            {title: {n: each.interval(n) for n in each.of} for title, each in shares.items()},
            [("D", "reported", REPORTED), ("s", "reported, later run", RERUN)],
        )
    if remedies := {title: newest[name] for name, title in REMEDIES.items() if name in newest}:
        names = [name for name, restriction in RESTRICTIONS.items() if restriction]
        curves = {
            name: {
                title: (
                    metric_values(run, f"labels/{name}"),
                    metric_values(run, f"survival/{name}"),
                )
                for title, run in remedies.items()
            }
            for name in names
        }
        drawn.append(folder / "bc_labels.svg")
        bc_figures.labels(drawn[-1], curves, WHOLE)
    return drawn


def _shares(run: dict[str, Any]) -> Shares:
    orders = int(run["flags"]["orders"])
    return Shares(
        {name: metric_values(run, f"survival/{name}").reshape(-1, orders) for name in RESTRICTIONS}
    )


if __name__ == "__main__":
    main()
