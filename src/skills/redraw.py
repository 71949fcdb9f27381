"""Draw the catalog's figures of agents from the committed records.

Run after `catalog export`: python src/skills/redraw.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.model import committed
from skills.benchmark import title
from skills.figures import plots

FIRST_SET = "test"  # of levels; the fresh ones are played by single agents
DRAWN = ("skill:benchmark", "skill:curriculum")


def main() -> None:
    """Draw all figures whose records exist, or say that there is none."""
    if not committed.redraw(__doc__.splitlines()[0], "skills", draw).keys() & set(DRAWN):
        print(f"no record of {', '.join(DRAWN)}")


def draw(records: committed.Records, folder: Path) -> list[Path]:
    """Draw figures from the newest record of every operation, and return the files."""
    drawn = []
    whole = [
        benchmark
        for benchmark in records.get("skill:benchmark", ())
        if benchmark["flags"].get("levels", FIRST_SET) == FIRST_SET
    ]
    if whole:
        drawn.append(folder / "benchmark_agents.svg")
        plots.matrix(drawn[-1], *matrix_of(whole[-1]))
    for name, record in {
        r["flags"]["name"]: r for r in records.get("skill:curriculum", [])
    }.items():
        if (curves := chain_of(record, validation_episodes(record, records))) is not None:
            drawn.append(folder / f"chain_{name}.svg")
            plots.chain(drawn[-1], curves)
    return drawn


def matrix_of(benchmark: dict[str, Any]) -> tuple[list[str], list[str], np.ndarray]:
    """Return agents, stages and success with sampled actions, float [agents, stages]."""
    rates = _rates(benchmark)
    agents = list(dict.fromkeys(agent for agent, _ in rates))
    stages = list(dict.fromkeys(stage for _, stage in rates))
    order = {word: i for i, word in enumerate(benchmark["flags"]["agents"].split())}
    agents.sort(key=lambda name: next((i for w, i in order.items() if Path(w).name == name), 0))
    order = {word: i for i, word in enumerate(benchmark["flags"]["stages"].split())}
    stages.sort(key=order.__getitem__)
    cells = [[rates[agent, stage] for stage in stages] for agent in agents]
    return [*map(title, agents)], [*map(title, stages)], np.array(cells)


def _rates(benchmark: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return success with sampled actions by agent and stage, from the metrics."""
    rates = {}
    for name, metric in benchmark["metrics"].items():
        kind, *words = name.split("/")
        if kind == "success" and words[-1] == "sampled":
            rates[words[0], words[1]] = metric["last"]
    return rates


def validation_episodes(curriculum: dict[str, Any], records: committed.Records) -> int:
    """Return the number of episodes of a validation in all stages of a curriculum; 0 if it is not known."""
    stages = [
        run for runs in records.values() for run in runs if run["run"] in curriculum["parents"]
    ]
    counts = {int(stage["flags"].get("eval-episodes", 0)) for stage in stages}
    return counts.pop() if len(counts) == 1 else 0


def chain_of(curriculum: dict[str, Any], episodes: int = 0) -> plots.Chain | None:
    """Return the curves of a curriculum over all stages; None for records without them.

    Args:
        curriculum: Its record.
        episodes: Number of episodes of a validation; 0 if it is not known.
    """
    metrics = curriculum["metrics"]
    if not {"chain/success", "chain/lr"} <= metrics.keys():
        return None
    prefix = "chain/end/"
    ends = {
        name[len(prefix) :]: m["last"] for name, m in metrics.items() if name.startswith(prefix)
    }
    curves = (zip(*metrics[f"chain/{name}"]["curve"], strict=True) for name in ("success", "lr"))
    success, lr = (tuple(map(list, curve)) for curve in curves)
    return plots.Chain(dict(sorted(ends.items(), key=lambda end: end[1])), success, lr, episodes)


if __name__ == "__main__":
    main()
