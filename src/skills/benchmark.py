"""Plays the same episodes with several agents on several stages."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.model.statistics import wilson
from runcatalog.record import option
from skills import finding, source
from skills.schedule import COURSES, CURRICULA

if TYPE_CHECKING:
    from skills.planning import Planned
    from skills.playing import Played

WORDS = {"DIS": "distill", "CON": "continue", "MOE": "moe"}
WAYS = ("PPO", *WORDS)
KINDS = ("sampled", "greedy")
COLUMNS = "gtg1 gto2 pkp4 tgl3 all6"  # the last stage of each verb, and of the four together


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:benchmark`."""

    agents: str = option(
        "gtg1 gto2 pkp4 pkpc3 tgl3 tglc2 all6 distill continue moe",
        "stages and operations, whose newest finished run is taken, or folders of runs or checkpoints, with spaces",
    )
    stages: str = option(COLUMNS, "what they play")
    episodes: int = option(
        1000, "of each agent on each stage, sampled and greedy each", low=1, high=1000
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.agents.split():
            raise record.UserError("--agents: none")
        for name in self.stages.split() or [""]:
            if name not in COURSES:
                raise record.UserError(
                    f"--stages: no stage {name!r}; there are {', '.join(COURSES)}"
                )


def main(config: Config) -> dict[str, Any]:
    """Plays and returns what the record says."""
    from skills import agents
    from skills.learning import one_thread

    one_thread()
    with record.start(config, study="skills") as run:
        seeds, found = agents.TEST[: config.episodes], {}
        folders = finding.located("agents", config.agents, run)
        (run.directory / "cells").mkdir(exist_ok=True)
        for done, (name, folder) in enumerate(folders.items()):
            agent = agents.load(folder)
            run.add_parent(agent.run_id)
            for stage in config.stages.split():
                path = run.directory / "cells" / f"{done}_{stage}.npz"
                if not path.exists():
                    uniform = run.seeds.generator("benchmark", list(COURSES).index(stage))
                    keep(path, agents.both(agent, stage, seeds, uniform))
                found[name, stage] = kept(path)
            run.event(f"{name}: {agent.run_id[:8]}")
            run.progress(done + 1, len(folders), "agent")
        run.log(metrics_of(found), 0)
        return run.finish(result(config, list(folders), found))


def keep(path: Path, cell: dict[str, Played]) -> None:
    """Writes an agent's episodes on a stage: a benchmark that is killed goes on after them."""
    import numpy as np

    temporary = path.with_name(f".{path.name}")
    arrays = {f"{kind} {name}": each for kind in cell for name, each in vars(cell[kind]).items()}
    np.savez(temporary, **arrays)
    temporary.rename(path)


def kept(path: Path) -> dict[str, Played]:
    """Reads what :func:`keep` wrote."""
    import numpy as np

    from skills.playing import Played

    with np.load(path) as arrays:
        names = Played.__annotations__
        return {kind: Played(*(arrays[f"{kind} {name}"] for name in names)) for kind in KINDS}


def metrics_of(found: dict[tuple[str, str], dict[str, Played]]) -> dict[str, float]:
    """Success rate and mean reward of each cell."""
    metrics = {}
    for (name, stage), cell in found.items():
        for kind, played in cell.items():
            metrics[f"success/{Path(name).name}/{stage}/{kind}"] = played.rate
            metrics[f"reward/{Path(name).name}/{stage}/{kind}"] = float(played.reward.mean())
    return metrics


def result(
    config: Config, names: list[str], found: dict[tuple[str, str], dict[str, Played]]
) -> dict[str, Any]:
    """Mean sampled success over all cells, and the source's two tables, each line with what it reported."""
    rates = [cell["sampled"].rate for cell in found.values()]
    stages = config.stages.split()
    return {
        "objective": {
            "name": "mean_success", "value": sum(rates) / len(rates), "kind": "mean", "goal": "max",
            "at": config.episodes, "axis": "episode",
        },
        "metrics": metrics_of(found),
        "table": [each for each in (by_agent(names, stages, found), by_problem(names, stages, found)) if each],
    }  # fmt: skip


def by_agent(
    names: list[str], stages: list[str], found: dict[tuple[str, str], dict[str, Played]]
) -> dict[str, Any]:
    """Each agent on each stage, in percent: the source's first table."""
    rows = []
    for name in names:
        for kind in KINDS:
            rows.append([title(name), kind, *(share(found[name, stage][kind]) for stage in stages)])
        reported = source.AGENTS.get(title(name), {})
        told = [percent(reported.get(title(stage))) for stage in stages]
        rows += [[title(name), "reported", *told]] if any(told) else []
    return {"columns": ["agent", "actions", *map(title, stages)], "rows": rows}


def by_problem(
    names: list[str], stages: list[str], found: dict[tuple[str, str], dict[str, Played]]
) -> dict[str, Any]:
    """Ways to an agent for each stage, in percent: the source's second table; nothing if PPO is the only way."""
    if not set(names) & set(finding.OTHERS):
        return {}
    rows = []
    for stage in stages:
        ways = ways_to(names, stage)
        for kind in KINDS:
            cells = [share(found[ways[way], stage][kind]) if way in ways else "" for way in WAYS]
            rows.append([title(stage), kind, *cells])
        told = [percent(source.PROBLEMS.get(title(stage), {}).get(way)) for way in WAYS]
        rows += [[title(stage), "reported", *told]] if any(told) else []
    return {"columns": ["problem", "actions", *WAYS], "rows": rows}


def ways_to(names: Iterable[str], stage: str) -> dict[str, str]:
    """The agent of each way that plays a stage: of PPO that which ended with this stage."""
    ways = {way: word for way, word in (("PPO", stage), *WORDS.items()) if word in names}
    return {way: ways[way] for way in WAYS if way in ways}


def title(word: str) -> str:
    """What the source calls an agent or a stage, where it is the last of its chain; else its own name."""
    for way, operation in WORDS.items():
        if word == operation:
            return way
    return word.rstrip("0123456789").upper() if word in CURRICULA.values() else Path(word).name


def percent(told: int | None) -> str:
    """What the source reported, as text."""
    return "" if told is None else f"{told}"


def share(played: Played | Planned) -> str:
    """Success in percent with its 95 % score interval (Wilson 1927)."""
    successes, count = int(played.success.sum()), len(played.success)
    low, high = wilson(successes, count)
    return f"{100 * successes / count:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
