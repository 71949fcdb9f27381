"""Draw the catalog's figures of agents from the committed records.

Run after `catalog export`: python src/skills/redraw.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.model import committed
from skills.benchmark import METHODS, agents_by_method, title
from skills.figures import plots

FIRST_SET = "test"  # of levels; the fresh ones are played by single agents
DRAWN = ("skill:benchmark", "skill:moe", "skill:curriculum")


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
        drawn += matrices(whole[-1], folder)
    if "skill:moe" in records and (experts := experts_of(records["skill:moe"][-1])):
        drawn.append(folder / "gate.svg")
        plots.gate(drawn[-1], experts, episodes_of(records["skill:moe"][-1], experts))
    for name, record in {
        r["flags"]["name"]: r for r in records.get("skill:curriculum", [])
    }.items():
        if (curves := chain_of(record)) is not None:
            drawn.append(folder / f"chain_{name}.svg")
            plots.chain(drawn[-1], curves)
    return drawn


def matrices(benchmark: dict[str, Any], folder: Path) -> list[Path]:
    """Draw heat maps of success with sampled actions: agents by stages, and stages by training methods."""
    rates = _rates(benchmark)
    agents = list(dict.fromkeys(agent for agent, _ in rates))
    stages = list(dict.fromkeys(stage for _, stage in rates))
    order = {word: i for i, word in enumerate(benchmark["flags"]["agents"].split())}
    agents.sort(key=lambda name: next((i for w, i in order.items() if Path(w).name == name), 0))
    order = {word: i for i, word in enumerate(benchmark["flags"]["stages"].split())}
    stages.sort(key=order.__getitem__)
    drawn = [folder / "benchmark_agents.svg"]
    cells = [[rates[agent, stage] for stage in stages] for agent in agents]
    plots.matrix(drawn[0], [*map(title, agents)], [*map(title, stages)], np.array(cells))
    by_method = {stage: agents_by_method(agents, stage) for stage in stages}
    methods = [m for m in METHODS if any(m in by_stage for by_stage in by_method.values())]
    if len(methods) > 1:
        drawn.append(folder / "benchmark_ways.svg")
        cells = [
            [rates[by_method[s][m], s] if m in by_method[s] else np.nan for m in methods]
            for s in stages
        ]
        plots.matrix(drawn[1], [*map(title, stages)], methods, np.array(cells))
    return drawn


def _rates(benchmark: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return success with sampled actions by agent and stage, from the metrics."""
    rates = {}
    for name, metric in benchmark["metrics"].items():
        kind, *words = name.split("/")
        if kind == "success" and words[-1] == "sampled":
            rates[words[0], words[1]] = metric["last"]
    return rates


def experts_of(moe: dict[str, Any]) -> list[str]:
    """Return the names of the experts in a record of `skill:moe`, in their order."""
    names = [name.split("/") for name in moe["result"]["metrics"] if name.startswith("gate/")]
    return list(dict.fromkeys(words[2] for words in names))


def episodes_of(moe: dict[str, Any], experts: list[str]) -> dict[str, np.ndarray]:
    """Return the gate's weights in the recorded episode of every verb, float [steps, K]."""
    verbs = [name.split("/")[1] for name in moe["metrics"] if name.startswith("episode/")]
    return {
        verb: np.stack(
            [committed.metric_values(moe, f"episode/{verb}/{expert}") for expert in experts], axis=1
        )
        for verb in dict.fromkeys(verbs)
    }


def chain_of(curriculum: dict[str, Any]) -> plots.Chain | None:
    """Return the curves of a curriculum over all stages; None for records without them."""
    metrics = curriculum["metrics"]
    if not {"chain/success", "chain/lr"} <= metrics.keys():
        return None
    prefix = "chain/end/"
    ends = {
        name[len(prefix) :]: m["last"] for name, m in metrics.items() if name.startswith(prefix)
    }
    curves = (zip(*metrics[f"chain/{name}"]["curve"], strict=True) for name in ("success", "lr"))
    success, lr = (tuple(map(list, curve)) for curve in curves)
    return plots.Chain(dict(sorted(ends.items(), key=lambda end: end[1])), success, lr)


if __name__ == "__main__":
    main()
