"""Compare agents on the same test episodes of several stages."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from skills.learning import find, reported
from skills.learning.results import success_with_interval
from skills.learning.schedule import CURRICULA, SCHEDULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skills.agents.evaluation import Episodes

    Cells = dict[tuple[str, str], dict[str, Episodes]]
    """Episodes by agent and stage, then sampled and greedy."""

OPERATIONS = {"DIS": "distill", "CON": "continue", "MOE": "moe"}
METHODS = ("PPO", *OPERATIONS)
KINDS = ("sampled", "greedy")
LAST_STAGES = "gtg1 gto2 pkp4 tgl3 all6"  # the last stage of every verb, and of all together


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:benchmark`."""

    agents: str = option(
        "gtg1 gto2 pkp4 pkpc3 tgl3 tglc2 all6 distill continue moe",
        "stages and operations, whose newest finished run is taken, or folders of runs or checkpoints, with spaces",
    )
    same_seed: bool = option(
        False, "take runs with this run's seed, to compare agents over the seeds of their trainings"
    )  # fmt: skip
    stages: str = option(LAST_STAGES, "stages that all agents play")
    levels: str = option(
        "test", "test: the levels with which trainings end; fresh: levels that no choice has used, one set per stage, "
        "without those of the first", choices=("test", "fresh"),
    )  # fmt: skip
    episodes: int = option(
        1000, "episodes of every agent on every stage, sampled, and as many greedy", low=1, high=1000
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.agents.split():
            raise record.UserError("--agents: none")
        names = [Path(word).name for word in self.agents.split()]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise record.UserError(
                f"--agents: {min(repeated)} is the name of two; give folders with different names"
            )
        for name in self.stages.split() or [""]:
            if name not in SCHEDULES:
                raise record.UserError(
                    f"--stages: no stage {name!r}; there are {', '.join(SCHEDULES)}"
                )

    def found_agents(self, directory: Path) -> dict[str, Path]:
        """Return the folders of the agents by name, see `find_agents`."""
        return find.find_agents(
            "agents", self.agents, directory, self.seed if self.same_seed else None
        )

    look_up = found_agents


def main(config: Config) -> dict[str, Any]:
    """Play the episodes and return the record's result."""
    from skills.agents import checkpoints, evaluation
    from skills.learning import level_sets
    from skills.learning.ppo import use_one_torch_thread

    use_one_torch_thread()
    with record.start(config, study="skills") as run:
        seeds = {
            stage: level_sets.level_seeds(stage, config.levels, config.episodes)
            for stage in config.stages.split()
        }
        levels = level_sets.declare_levels(run, config.levels, seeds)
        cells: Cells = {}
        folders = config.found_agents(run.directory)
        (run.directory / "cells").mkdir(exist_ok=True)
        for done, (name, folder) in enumerate(folders.items()):
            agent = checkpoints.load(folder)
            run.add_parent(agent.run_id)
            for stage in config.stages.split():
                path = run.directory / "cells" / f"{done}_{stage}.npz"
                if not path.exists():
                    uniform = run.seeds.generator("benchmark", list(SCHEDULES).index(stage))
                    cell = evaluation.play_sampled_and_greedy(agent, stage, seeds[stage], uniform)
                    save_cell(path, cell)
                cells[name, stage] = load_cell(path)
            run.event(f"{name}: {agent.run_id[:8]}")
            run.progress(done + 1, len(folders), "agent")
        run.log(metrics_of(cells), 0)
        by_level = {"outcomes": outcomes(levels, cells)}
        return run.finish(result(config, list(folders), cells) | by_level)


def save_cell(path: Path, cell: dict[str, Episodes]) -> None:
    """Save an agent's episodes on a stage, so that a resumed benchmark does not play them again."""
    import numpy as np

    temporary = path.with_name(f".{path.name}")
    arrays = {f"{kind} {name}": array for kind in cell for name, array in vars(cell[kind]).items()}
    np.savez(temporary, **arrays)
    temporary.rename(path)


def load_cell(path: Path) -> dict[str, Episodes]:
    """Return what :func:`save_cell` saved."""
    import numpy as np

    from skills.agents.evaluation import Episodes

    with np.load(path) as arrays:
        names = Episodes.__annotations__
        return {kind: Episodes(*(arrays[f"{kind} {name}"] for name in names)) for kind in KINDS}


def metrics_of(cells: Cells) -> dict[str, float]:
    """Return success rate and mean reward of every agent on every stage."""
    metrics = {}
    for (name, stage), cell in cells.items():
        for kind, played in cell.items():
            metrics[f"success/{Path(name).name}/{stage}/{kind}"] = played.rate
            metrics[f"reward/{Path(name).name}/{stage}/{kind}"] = float(played.reward.mean())
    return metrics


def outcomes(levels: dict[str, NDArray[Any]], cells: Cells) -> list[dict[str, Any]]:
    """Return the outcomes by level, of every agent on every stage; of a single agent those of all stages together too.

    Args:
        levels: Contents of the levels by stage.
        cells: The episodes.
    """
    import numpy as np

    by_stage = [
        record.level_outcomes(
            contents,
            {
                f"success/{Path(name).name}/{stage}/{kind}": played.success
                for (name, own), cell in cells.items()
                if own == stage
                for kind, played in cell.items()
            },
        )
        for stage, contents in levels.items()
    ]
    if len(cells) > len(levels):
        return by_stage
    # Its mean is the objective, whose name does not depend on the agent: two runs can be compared.
    success = np.concatenate([cell["sampled"].success for cell in cells.values()])
    joined = [level for contents in levels.values() for level in contents]
    return [record.level_outcomes(joined, {"mean_success": success}), *by_stage]


def result(config: Config, names: list[str], cells: Cells) -> dict[str, Any]:
    """Return the record's result: mean sampled success, and the source's two tables with its own numbers."""
    rates = [cell["sampled"].rate for cell in cells.values()]
    stages = config.stages.split()
    tables = (by_agent(names, stages, cells), by_problem(names, stages, cells))
    return {
        "objective": {
            "name": "mean_success", "value": sum(rates) / len(rates), "kind": "mean", "goal": "max",
            "at": config.episodes, "axis": "episode",
        },
        "metrics": metrics_of(cells),
        "table": [table for table in tables if table],
    }  # fmt: skip


def by_agent(names: list[str], stages: list[str], cells: Cells) -> dict[str, Any]:
    """Return success of every agent on every stage, in percent: the source's first table."""
    rows = []
    for name in names:
        for kind in KINDS:
            success = (success_with_interval(cells[name, stage][kind]) for stage in stages)
            rows.append([title(name), kind, *success])
        source = reported.AGENTS.get(title(name), {})
        percents = [percent(source.get(title(stage))) for stage in stages]
        rows += [[title(name), "reported", *percents]] if any(percents) else []
    return {"columns": ["agent", "actions", *map(title, stages)], "rows": rows}


def by_problem(names: list[str], stages: list[str], cells: Cells) -> dict[str, Any]:
    """Return success of every training method by stage, in percent: the source's second table; {} for PPO alone."""
    if not set(names) & set(find.COMBINED):
        return {}
    rows = []
    for stage in stages:
        agents = agents_by_method(names, stage)
        for kind in KINDS:
            success = [
                success_with_interval(cells[agents[method], stage][kind]) if method in agents else ""
                for method in METHODS
            ]  # fmt: skip
            rows.append([title(stage), kind, *success])
        source = reported.PROBLEMS.get(title(stage), {})
        percents = [percent(source.get(method)) for method in METHODS]
        rows += [[title(stage), "reported", *percents]] if any(percents) else []
    return {"columns": ["problem", "actions", *METHODS], "rows": rows}


def agents_by_method(names: Iterable[str], stage: str) -> dict[str, str]:
    """Return the agent of every training method for a stage; PPO's is the one trained on this stage."""
    agents = {
        method: word for method, word in (("PPO", stage), *OPERATIONS.items()) if word in names
    }
    return {method: agents[method] for method in METHODS if method in agents}


def title(word: str) -> str:
    """Return the source's name of an agent or of the last stage of a chain; otherwise the word itself."""
    for method, operation in OPERATIONS.items():
        if word == operation:
            return method
    return word.rstrip("0123456789").upper() if word in CURRICULA.values() else Path(word).name


def percent(value: int | None) -> str:
    """Return a reported number as text."""
    return "" if value is None else f"{value}"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
