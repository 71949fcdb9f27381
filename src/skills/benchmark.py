"""Plays the same episodes with several agents on several stages."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import record
from record import chain, option
from skills.schedule import COURSES

if TYPE_CHECKING:
    from skills.playing import Played

COLUMNS = "gtg1 gto2 pkp4 tgl3 all6"  # the last stage of each verb, and of the four together


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:benchmark`."""

    agents: str = option(
        "gtg1 gto2 pkp4 pkpc3 tgl3 tglc2 all6",
        "stages, whose newest finished run is taken, or folders of runs or checkpoints, separated by spaces",
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
        folders = located(config, run)
        for done, (name, folder) in enumerate(folders.items()):
            agent = agents.load(folder)
            run.add_parent(agent.run_id)
            for stage in config.stages.split():
                uniform = run.seeds.generator("benchmark", list(COURSES).index(stage))
                found[name, stage] = agents.both(agent, stage, seeds, uniform)
            run.event(f"{name}: {agent.run_id[:8]}")
            run.progress(done + 1, len(folders), "agent")
        run.log(metrics_of(found), 0)
        return run.finish(result(config, list(folders), found))


def located(config: Config, run: record.Run) -> dict[str, Path]:
    """The folder of each agent, by the name in the flag; kept, so that a run that goes on takes the same."""
    from record import journal

    path = run.directory / "agents.json"
    known = journal.read_json(path) or {}
    for word in config.agents.split():
        if word not in known:
            known[word] = str(_folder(word))
    journal.write_json(path, known)
    return {word: Path(known[word]) for word in config.agents.split()}


def _folder(word: str) -> Path:
    below = Path(os.environ.get("PROJECT_DIR", ".")) / word
    for path in (Path(word), below):
        if path.is_dir():
            return path.resolve()
    if word not in COURSES or not os.environ.get("GUILD_HOME"):
        raise record.UserError(f"--agents: {word!r} is neither a folder nor, under Guild, a stage")
    operation = f"skill:{word}"
    if not (found := chain.existing(operation, {})):
        raise record.UserError(
            f"--agents: no finished run of {operation}; `guild run {operation}` makes one"
        )
    return chain.Child(operation, found).directory


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
    """Mean sampled success over all cells, and a row for each agent."""
    stages = config.stages.split()
    rows = [
        [f"{Path(name).name}, {kind}", *(share(found[name, stage][kind]) for stage in stages)]
        for name in names
        for kind in ("sampled", "greedy")
    ]
    rates = [cell["sampled"].rate for cell in found.values()]
    return {
        "objective": {
            "name": "mean_success", "value": sum(rates) / len(rates), "kind": "mean", "goal": "max",
            "at": config.episodes, "axis": "episode",
        },
        "metrics": metrics_of(found),
        "table": {"columns": ["agent", *stages], "rows": rows},
    }  # fmt: skip


def share(played: Played) -> str:
    """Success in percent with its 95 % score interval (Wilson 1927)."""
    from scipy.stats import binomtest

    successes, count = int(played.success.sum()), len(played.success)
    interval = binomtest(successes, count).proportion_ci(method="wilson")
    return f"{100 * successes / count:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
