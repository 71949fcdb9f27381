"""Draws the catalog's figures of agents from the committed records.

Run after `catalog export`: python src/skills/redraw.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.model import committed
from skills import drawing
from skills.benchmark import WAYS, title, ways_to

DRAWN = ("skill:benchmark", "skill:moe", "skill:curriculum")


def main() -> None:
    """Draws what there are records for, and says if there are none."""
    if not committed.redraw(__doc__.splitlines()[0], "skills", draw).keys() & set(DRAWN):
        print(f"no record of {', '.join(DRAWN)}")


def draw(found: committed.Records, folder: Path) -> list[Path]:
    """Draws figures from the newest record of each operation; returns the files."""
    drawn = []
    if "skill:benchmark" in found:
        drawn += matrices(found["skill:benchmark"][-1], folder)
    if "skill:moe" in found and (shown := experts_of(found["skill:moe"][-1])):
        drawn.append(folder / "gate.svg")
        drawing.gate(drawn[-1], list(shown), episodes_of(found["skill:moe"][-1], list(shown)))
    for name, record in {r["flags"]["name"]: r for r in found.get("skill:curriculum", [])}.items():
        if (course := chain_of(record)) is not None:
            drawn.append(folder / f"chain_{name}.svg")
            drawing.chain(drawn[-1], course)
    return drawn


def matrices(benchmark: dict[str, Any], folder: Path) -> list[Path]:
    """Two heat maps of success with actions drawn: agents by stages, and stages by ways to an agent."""
    rates = _rates(benchmark)
    agents = list(dict.fromkeys(agent for agent, _ in rates))
    stages = list(dict.fromkeys(stage for _, stage in rates))
    order = {word: i for i, word in enumerate(benchmark["flags"]["agents"].split())}
    agents.sort(key=lambda name: next((i for w, i in order.items() if Path(w).name == name), 0))
    order = {word: i for i, word in enumerate(benchmark["flags"]["stages"].split())}
    stages.sort(key=order.__getitem__)
    drawn = [folder / "benchmark_agents.svg"]
    cells = [[rates[agent, stage] for stage in stages] for agent in agents]
    drawing.matrix(drawn[0], [*map(title, agents)], [*map(title, stages)], np.array(cells))
    ways = {stage: ways_to(agents, stage) for stage in stages}
    shown = [way for way in WAYS if any(way in each for each in ways.values())]
    if len(shown) > 1:
        drawn.append(folder / "benchmark_ways.svg")
        cells = [
            [rates[ways[stage][way], stage] if way in ways[stage] else np.nan for way in shown]
            for stage in stages
        ]
        drawing.matrix(drawn[1], [*map(title, stages)], shown, np.array(cells))
    return drawn


def _rates(benchmark: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Success with actions drawn, by agent and stage; of many agents there is too much for a record's result."""
    found = {}
    for name, metric in benchmark["metrics"].items():
        what, *words = name.split("/")
        if what == "success" and words[-1] == "sampled":
            found[words[0], words[1]] = metric["last"]
    return found


def experts_of(moe: dict[str, Any]) -> list[str]:
    """The experts of whose weights over an episode a record tells, in their order."""
    names = [name.split("/") for name in moe["result"]["metrics"] if name.startswith("gate/")]
    return list(dict.fromkeys(words[2] for words in names))


def episodes_of(moe: dict[str, Any], experts: list[str]) -> dict[str, np.ndarray]:
    """The gate's weights over an episode of each verb, float [steps, K]."""
    verbs = [name.split("/")[1] for name in moe["metrics"] if name.startswith("episode/")]
    return {
        verb: np.stack(
            [committed.metric_values(moe, f"episode/{verb}/{expert}") for expert in experts], axis=1
        )
        for verb in dict.fromkeys(verbs)
    }


def chain_of(curriculum: dict[str, Any]) -> drawing.Chain | None:
    """How the stages of a curriculum were learned; nothing if its record does not tell."""
    metrics = curriculum["metrics"]
    if not {"chain/success", "chain/lr"} <= metrics.keys():
        return None
    before = "chain/end/"
    ends = {
        name[len(before) :]: m["last"] for name, m in metrics.items() if name.startswith(before)
    }
    curves = (zip(*metrics[f"chain/{name}"]["curve"], strict=True) for name in ("success", "lr"))
    success, lr = (tuple(map(list, curve)) for curve in curves)
    return drawing.Chain(dict(sorted(ends.items(), key=lambda each: each[1])), success, lr)


if __name__ == "__main__":
    main()
