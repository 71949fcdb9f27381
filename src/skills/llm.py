"""Plays the composite task with a planner, mostly a language model, and an agent that carries out its sub-tasks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import RUN_ID, find_folder
from skills.learning import find, reported
from skills.learning.schedule import SCHEDULES
from skills.planner import chat

if TYPE_CHECKING:
    import numpy as np

    from skills.planner.episodes import Planned
    from skills.planner.executors import Executor
    from skills.planner.oracle import Oracle
    from skills.planner.planners import Planner

PLANNERS = (*chat.INTERFACES, "oracle", "random", "goal", "none")
AGENTS = {"ppo": "all6", "dis": "distill", "con": "continue", "moe": "moe", "nlm": "nlm2"}
SEARCH = "search"
WHOLE = ("nlm0", "nlm1", "nlm2")  # stages of the composite task
RESAMPLED = 10_000  # times, for intervals of means


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:llm`."""

    planner: str = option(
        "ollama", "who names sub-tasks: a language model behind an interface; oracle: a search that knows the level, "
        "random: any, goal: always the goal; none: nobody, the agent is told the whole task", choices=PLANNERS,
    )  # fmt: skip
    agent: str = option(
        "ppo", "who carries them out: ppo, dis, con, moe, nlm (the newest finished run of skill:all6, distill, "
        "continue, moe, nlm2), a stage, a folder of a run or checkpoint; search: shortest ways",
    )  # fmt: skip
    model: str = option(
        "", "the language model's name, as the server knows it; or the id of a run of skill:planner_model whose "
        "artifacts/model is served",
    )  # fmt: skip
    url: str = option("", f"of the server; empty: {chat.DEFAULT_URL} by the interface")
    stage: str = option("nlm2", "of the composite task", choices=WHOLE)
    shared: int = option(
        10, "levels whose rewards are told one by one, as the source did", low=2, high=500
    )
    more: int = option(200, "levels besides, for intervals", low=0, high=500)
    actions: str = option(
        "sampled", "of the agent: drawn from its policy, or the likeliest", choices=("sampled", "greedy")
    )  # fmt: skip
    patience: int = option(20, "steps after which a sub-task is given up", low=1)
    forget: bool = option(True, "the agent's memory is emptied at each sub-task")
    guard: bool = option(
        True, "the agent, which learned single verbs, is kept from what is known to end the task: opening a box, "
        "picking up a wrong thing",
    )  # fmt: skip
    timeout: float = option(120, "of a request [s]", low=0, low_open=True, resumable=True)
    retries: int = option(3, "of a request", low=0, high=20, resumable=True)
    together: int = option(4, "requests at the same time", low=1, high=256, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_one = {SEARCH, *AGENTS, *SCHEDULES} - {"nlm", *WHOLE}
        if self.agent in (needs_one if self.planner == "none" else {"nlm"}):
            raise record.UserError(
                "--planner: the agent nlm alone learned the whole task, and it plays without a planner: "
                "planner=none agent=nlm, or a stage or a folder in its place that learned it"
            )
        if self.asks and not self.model:
            raise record.UserError(
                "--model: the language model's name is missing; docs/skills.md tells how to get one"
            )
        if self.asks:
            chat.check_url(self.address)

    @property
    def asks(self) -> bool:
        """Whether a server is needed."""
        return self.planner in chat.INTERFACES

    @property
    def served(self) -> str:
        """The model's name as the server knows it; of a run's model that is where it lies."""
        folder = find_folder(self.model) if RUN_ID.fullmatch(self.model) else None
        return str(folder / "artifacts/model") if folder else self.model

    @property
    def address(self) -> str:
        """The server's."""
        return self.url or chat.DEFAULT_URL[self.planner]


def main(config: Config) -> dict[str, Any]:
    """Plays and returns what the record says."""
    from skills.agents.evaluation import TEST_SEEDS
    from skills.learning.ppo import use_one_torch_thread
    from skills.planner.episodes import Episodes, alone
    from skills.planner.oracle import Oracle

    model = None
    if config.asks:
        model = chat.Chat(
            config.planner, config.address, config.served, config.timeout, config.retries, config.seed
        )  # fmt: skip
        model.check()
    use_one_torch_thread()
    with record.start(config, study="skills") as run:
        if config.asks and (trained := trained_here(config.served)):
            run.add_parent(trained)
        seeds, oracle = TEST_SEEDS[: config.shared + config.more], Oracle()
        uniform = run.seeds.generator("actions") if config.actions == "sampled" else None
        executor, agent = carries_out(config, run, len(seeds), uniform, oracle)
        if config.planner == "none":
            planner, played = None, alone(agent, config.stage, seeds, uniform)
        else:
            planner = names(config, run, model, oracle)
            episodes = Episodes(
                config.stage, seeds, planner, executor, config.patience, guarded=config.guard
            )
            while episodes.going.any():
                episodes.step()
                run.progress(len(seeds) - int(episodes.going.sum()), len(seeds), "episode")
            played = episodes.played
        return run.finish(result(config, played, planner, run.seeds))


def trained_here(model: str) -> str:
    """The run of `skill:planner_model` in whose artifacts a model lies; empty if it lies elsewhere."""
    from runcatalog.record import journal

    above = Path(model).parents
    known = journal.read_json(above[1] / "journal/run.json") if len(above) > 2 else None
    return str((known or {}).get("id", ""))


def carries_out(
    config: Config, run: record.Run, count: int, uniform: np.random.Generator | None, oracle: Oracle
) -> tuple[Executor, Any]:
    """The executor of the flags, and its agent."""
    from skills.agents import checkpoints
    from skills.planner.executors import AgentExecutor
    from skills.planner.oracle import SearchExecutor

    if config.agent == SEARCH:
        return SearchExecutor(count, oracle), None
    word = AGENTS.get(config.agent, config.agent)
    (folder,) = find.find_agents("agent", word, run).values()
    agent = checkpoints.load(folder)
    run.add_parent(agent.run_id)
    if config.planner == "none" and agent.stage not in WHOLE:
        raise record.UserError(
            f"--agent: {config.agent} was trained on {agent.stage} last and plays with a planner; "
            f"planner=none takes one of {', '.join(WHOLE)}"
        )
    run.event(f"{config.agent}: {agent.run_id[:8]}, trained on {agent.stage} last")
    return AgentExecutor(agent, count, uniform, forgets=config.forget), agent


def names(config: Config, run: record.Run, model: chat.Chat | None, oracle: Oracle) -> Planner:
    """The planner of the flags."""
    from skills.planner import planners

    chance = planners.RandomPlanner(run.seeds)
    if model is not None:
        calls = run.artifact("calls.jsonl")
        return planners.LanguagePlanner(model, calls, chance, config.together)
    return {
        "oracle": planners.OraclePlanner(oracle), "random": chance, "goal": planners.GoalPlanner(),
    }[config.planner]  # fmt: skip


def result(
    config: Config, played: Planned, planner: Planner | None, seeds: record.Seeds
) -> dict[str, Any]:
    """Mean reward and success of the shared levels, of the others, and of both together."""
    parts = {"shared": slice(0, config.shared), "all": slice(None)}
    if config.more:
        parts["more"] = slice(config.shared, None)
    metrics = {"calls": float(played.calls.mean()), "length": float(played.steps.mean())}
    for name, part in parts.items():
        metrics[f"reward/{name}"] = float(played.reward[part].mean())
        metrics[f"success/{name}"] = float(played.success[part].mean())
    if config.asks and planner is not None:
        metrics["invalid_once"] = float(planner.corrected)
        metrics["invalid_twice"] = float(planner.replaced)
    for (verb, outcome), count in sorted(played.outcomes.items()):
        metrics[f"subtasks/{verb}/{outcome.replace(': ', ' ')}"] = float(count)
    cells = {name: told(played[part], seeds) for name, part in parts.items()}
    count, reward, success = cells["all"]
    return {
        "objective": {
            "name": "mean_reward", "value": metrics["reward/all"], "kind": "mean", "goal": "max",
            "at": int(played.steps.sum()), "axis": "step",
        },
        "summary": (
            f"mean reward {reward}, success {success} % in {count} levels; in the first {config.shared} "
            f"{metrics['reward/shared']:.2f}, {int(played.success[:config.shared].sum())} of them solved"
        ),
        "metrics": metrics,
        "env_steps": int(played.steps.sum()),
        "task": config.stage,
        "table": [one_by_one(config, played), summed_up(config, cells, metrics)],
    }  # fmt: skip


def told(played: Planned, seeds: record.Seeds) -> tuple[str, str, str]:
    """Number of levels, mean reward with its 95 % percentile bootstrap interval (Efron 1979), and success."""
    import numpy as np
    from scipy.stats import bootstrap

    from skills.learning.results import success_with_interval

    rewards = played.reward.astype(np.float64)
    found = bootstrap(
        (rewards,), np.mean, n_resamples=RESAMPLED, method="percentile", rng=seeds.generator("interval")
    )  # fmt: skip
    low, high = found.confidence_interval
    return (
        str(len(rewards)),
        f"{rewards.mean():.3f} [{low:.3f}, {high:.3f}]",
        success_with_interval(played),
    )


def one_by_one(config: Config, played: Planned) -> dict[str, Any]:
    """The rewards of the shared levels in a line, and those that the source reported."""
    rewards = played.reward[: config.shared]
    lines = [[config.planner, Path(config.agent).name, *rewards.tolist()]]
    source = reported.REWARDS.get(config.agent.upper(), ())
    if len(source) == config.shared and (config.asks or config.planner == "none"):
        lines.append(["reported", config.agent, *source])
    rows = [
        [*names, *(f"{each:.3f}" if each else "0" for each in values), f"{sum(values) / len(values):.3f}"]
        for names, values in ((line[:2], line[2:]) for line in lines)
    ]  # fmt: skip
    return {
        "columns": ["planner", "agent", *(f"level {i}" for i in range(config.shared)), "mean reward"],
        "rows": rows,
    }  # fmt: skip


def summed_up(
    config: Config, cells: dict[str, tuple[str, str, str]], metrics: dict[str, float]
) -> dict[str, Any]:
    """A line for each part of the levels."""
    calls = f"{metrics['calls']:.1f}" if config.planner != "none" else "-"
    invalid = "-"
    if config.asks:
        invalid = f"{metrics['invalid_once']:.0f} / {metrics['invalid_twice']:.0f}"
    names, last = [config.planner, Path(config.agent).name], {"all": [calls, invalid]}
    rows = [
        [*names, name, *cells[name], *last.get(name, ["", ""])]
        for name in ("shared", "more", "all")
        if name in cells
    ]  # fmt: skip
    return {
        "columns": [
            "planner", "agent", "levels", "number", "mean reward", "success [%]", "calls a level",
            "invalid once / twice",
        ],
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
