"""Draw the catalog's figures of behaviour cloning from the committed records.

Run after `catalog export`: python src/cartpole/bc_redraw.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cartpole.cloning import figures, summary
from cartpole.cloning.demonstrations import RESTRICTIONS, VARIABLES
from cartpole.cloning.survival import Shares
from runcatalog.model import committed
from runcatalog.model.committed import metric_values
from runcatalog.plots.palette import Palette

# Legends of bc_survival.svg by operation.
SERIES = {
    "bc:restrictions": "source's recipe",
    "bc:restrictions_thorough": "default recipe",
    "bc:restrictions_equal": "default recipe, equal numbers",
    "bc:restrictions_episodes": "whole episodes, equal numbers",
    "bc:restrictions_narrow": "a fifth of the width",
}
# Legends of bc_labels.svg by operation.
METHODS = {"bc:dagger": "DAgger", "bc:dart": "DART", "bc:more": "expert's own episodes"}


def main() -> None:
    """Draw the figures of the existing records, and print which records are missing."""
    records = committed.redraw(__doc__.splitlines()[0], "cartpole", draw)
    if missing := [name for name in (*SERIES, *METHODS) if name not in records]:
        print(f"no record of {', '.join(missing)}")


def draw(records: committed.Records, folder: Path) -> list[Path]:
    """Draw figures from the newest record of each operation; return the files."""
    newest = {name: runs[-1] for name, runs in records.items()}
    drawn, palette = [], Palette.read(folder.parents[1])
    if run := newest.get("bc:restrictions"):
        drawn += [folder / "bc_lifetimes.svg", folder / "bc_distributions.svg"]
        histograms = {name: metric_values(run, f"lifetimes/{name}") for name in RESTRICTIONS}
        figures.lifetimes(drawn[-2], histograms, summary.REPORTED)
        by_variable = {
            variable: metric_values(run, f"distribution/{variable}") for variable in VARIABLES
        }
        figures.distributions(drawn[-1], by_variable, summary.AXES)
    if series := {title: newest[name] for name, title in SERIES.items() if name in newest}:
        shares = {title: _shares(run) for title, run in series.items()}
        drawn.append(folder / "bc_survival.svg")
        figures.shares(
            drawn[-1],
            {t: {n: v.mean(1) for n, v in share.by_name.items()} for t, share in shares.items()},
            {t: {n: share.interval(n) for n in share.by_name} for t, share in shares.items()},
            [("D", "reported", summary.REPORTED), ("s", "reported, later run", summary.RERUN)],
            palette,
        )
    if runs := records.get("bc:coverage"):
        drawn.append(folder / "bc_coverage.svg")
        figures.coverage(drawn[-1], coverage_curves(runs), palette)
    if methods := {title: newest[name] for name, title in METHODS.items() if name in newest}:
        curves = {
            name: {title: recovered(run, name) for title, run in methods.items()}
            for name, restriction in RESTRICTIONS.items()
            if restriction
        }
        drawn.append(folder / "bc_labels.svg")
        figures.labels(drawn[-1], curves, palette)
    return drawn


def coverage_curves(runs: Sequence[dict[str, Any]]) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the share that reaches 500 steps by restriction, over the width of its window, with its interval.

    Args:
        runs: Records, oldest first; of equal widths the newest counts.

    Returns:
        Widths, shares, low and high ends, float64 [i] each.
    """
    by_scale = {float(run["flags"]["scale"]): _shares(run) for run in runs}
    scales = sorted(by_scale)
    curves = {}
    for name in RESTRICTIONS:
        low, high = np.array([by_scale[scale].interval(name) for scale in scales]).T
        share = np.array([by_scale[scale].by_name[name].mean() for scale in scales])
        curves[name] = np.array(scales), share, low, high
    return curves


def recovered(
    run: dict[str, Any], restriction: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the share of clones that need at most so many labels, over the number of labels, with its interval.

    A clone without a value never survives 99 % of the starts. The interval is a bootstrap over experts and their
    clones, never narrower than Wilson's interval of the counts.

    Args:
        run: Record of an operation in METHODS.
        restriction: Name of the data set of the clones.

    Returns:
        Labels, shares, low and high ends, float64 [rounds + 1] each.
    """
    orders = int(run["flags"]["orders"])
    recorded = {
        name.partition("/")[2]: metric["curve"]
        for name, metric in run["metrics"].items()
        if name.startswith("labels_needed/")
    }
    table = run["result"]["table"]
    # "20 of 30": failed clones, and all of a data set.
    clones = int(table["rows"][0][table["columns"].index("broken")].split()[-1])
    needed = np.full(clones, np.inf)
    for clone, labels in recorded.get(restriction, ()):
        needed[int(clone)] = labels
    queried = metric_values(run, f"labels/{restriction}")
    within = Shares({f"{n:g}": (needed <= n).reshape(-1, orders) for n in queried}, clones)
    rows = [(values.mean(), *within.interval(name)) for name, values in within.by_name.items()]
    share, low, high = np.array(rows).T
    return queried, share, low, high


def _shares(run: dict[str, Any]) -> Shares:
    orders = int(run["flags"]["orders"])
    shares = {
        name: metric_values(run, f"survival/{name}").reshape(-1, orders) for name in RESTRICTIONS
    }
    return Shares(shares, int(run["flags"]["starts"]))


if __name__ == "__main__":
    main()
