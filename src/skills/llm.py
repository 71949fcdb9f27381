"""Play the composite task with a planner, such as a language model, and an agent that carries out its sub-tasks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import RUN_ID, find_folder
from skills.learning import find, reported
from skills.learning.schedule import COMPOSITE, SCHEDULES
from skills.planner import chat

if TYPE_CHECKING:
    import numpy as np

    from skills.planner.episodes import PlannedEpisodes
    from skills.planner.executors import Executor
    from skills.planner.oracle import Oracle
    from skills.planner.planners import Planner

PLANNERS = (*chat.INTERFACES, "oracle", "random", "goal", "none")
AGENTS = {
    "ppo": "all6", "dis": "distill", "con": "continue", "moe": "moe", "sub": "subtasks", "nlm": "nlm2",
}  # fmt: skip
SEARCH = "search"
FOR_SUB_TASKS = ("patience", "forget", "replay", "guard", "careful", "lay_down", "boxes_as_balls")
NOT_FOR_SEARCH = ("forget", "replay", "guard", "lay_down", "boxes_as_balls")
FOR_LANGUAGE_MODELS = ("model", "url", "timeout", "retries", "together")
_ADDRESSES = ", ".join(f"{url} for {name}" for name, url in chat.DEFAULT_URL.items())
RESAMPLES = 10_000  # of the bootstrap intervals of means


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:llm`."""

    planner: str = option(
        "ollama", "planner: a language model behind an interface; oracle: the next sub-task of a shortest solution; "
        "random: any sub-task; goal: always the goal; none: the agent's mission is the whole task", choices=PLANNERS,
    )  # fmt: skip
    agent: str = option(
        "ppo", "agent: ppo, dis, con, moe, sub, nlm (the newest finished run of skill:all6, distill, "
        "continue, moe, subtasks, nlm2), a stage, a folder of a run or checkpoint; search: shortest paths",
    )  # fmt: skip
    same_seed: bool = option(
        False, "take an agent with this run's seed, to compare over the seeds of trainings"
    )  # fmt: skip
    model: str = option(
        "", "name of the language model on the server; or the id of a run of skill:planner_model whose "
        "artifacts/model is served",
    )  # fmt: skip
    url: str = option("", f"address of the server; empty: {_ADDRESSES}")
    stage: str = option("nlm2", "stage of the composite task", choices=COMPOSITE)
    levels: str = option(
        "test", "validation: levels for choices; test: the levels with which trainings end; fresh: levels that no "
        "choice has used, without those of the other two", choices=("validation", "test", "fresh"),
    )  # fmt: skip
    shared: int = option(10, "levels whose rewards are listed, as in the source", low=2, high=500)
    more: int = option(200, "further levels, for intervals", low=0, high=500)
    actions: str = option(
        "sampled", "actions of the agent: drawn from its policy, or the most probable", choices=("sampled", "greedy")
    )  # fmt: skip
    patience: int = option(20, "steps after which a sub-task is given up", low=1)
    forget: bool = option(True, "reset the agent's memory at every sub-task")
    replay: bool = option(
        False, "make the memory anew at every sub-task, from all observations of the episode with the sub-task as "
        "mission, instead of leaving it empty; needs forget",
    )  # fmt: skip
    guard: bool = option(
        True, "mask actions known to end the task, which agents of single verbs did not learn to avoid: opening "
        "a box, picking up a wrong object",
    )  # fmt: skip
    careful: bool = option(
        False, "mask laying down a key where the sub-task is not to pick up another, and in or next to a doorway; the "
        "oracle also has a key lifted that blocks the way",
    )  # fmt: skip
    lay_down: str = option(
        "agent", "who lays down what is carried where another object is to be picked up: agent, by its own actions; "
        "rule: the nearest known way to a cell where an object cuts nothing off", choices=("agent", "rule"),
    )  # fmt: skip
    boxes_as_balls: bool = option(
        False, "show boxes that the sub-task does not name as balls: agents have learned to open boxes in their way"
    )  # fmt: skip
    timeout: float = option(120, "limit of a request [s]", low=0, low_open=True, resumable=True)
    retries: int = option(3, "repetitions of a request", low=0, high=20, resumable=True)
    together: int = option(4, "simultaneous requests", low=1, high=256, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_none = {"nlm", *COMPOSITE}
        needs_planner = {SEARCH, *AGENTS, *SCHEDULES} - needs_none
        if self.agent in (needs_planner if self.planner == "none" else needs_none):
            raise record.UserError(
                "--planner: the agent nlm was trained on the whole task and plays without a planner: "
                "planner=none agent=nlm, or a stage or folder trained on it"
            )
        if len(self.agent.split()) != 1:
            raise record.UserError(f"--agent: {self.agent!r} is no single agent; give one")
        for names, unused, why in (
            (FOR_SUB_TASKS, self.planner == "none", "without a planner there are no sub-tasks"),
            (
                NOT_FOR_SEARCH,
                self.agent == SEARCH,
                "agent=search follows shortest paths of its own",
            ),
            (
                FOR_LANGUAGE_MODELS,
                not self.uses_language_model,
                f"planner={self.planner} is no language model",
            ),
        ):
            for name in names if unused else ():
                if getattr(self, name) != getattr(Config, name):  # its default
                    raise record.UserError(
                        f"--{record.config.flag_name(name)}: {why}; leave it out"
                    )
        if self.more == 1:
            raise record.UserError("--more: a single level has no interval; give 0 or at least 2")
        if self.replay and not self.forget:
            raise record.UserError(
                "--replay: with forget=no the memory is kept; leave out one of them"
            )
        if self.uses_language_model and not self.model:
            raise record.UserError(
                "--model: the language model's name is missing; docs/skills.md says how to get one"
            )
        if self.uses_language_model:
            chat.check_url(self.address)

    def found_agents(self, directory: Path) -> dict[str, Path]:
        """Return the folder of the agent by its name, see `find_agents`; {} for shortest paths."""
        if self.agent == SEARCH:
            return {}
        seed = self.seed if self.same_seed else None
        return find.find_agents("agent", AGENTS.get(self.agent, self.agent), directory, seed)

    look_up = found_agents

    @property
    def uses_language_model(self) -> bool:
        """Whether the planner is a language model on a server."""
        return self.planner in chat.INTERFACES

    @property
    def served(self) -> str:
        """Name of the model on the server; of a run's model its folder."""
        folder = find_folder(self.model) if RUN_ID.fullmatch(self.model) else None
        return str(folder / "artifacts/model") if folder else self.model

    @property
    def address(self) -> str:
        """Address of the server."""
        return self.url or chat.DEFAULT_URL[self.planner]


def main(config: Config) -> dict[str, Any]:
    """Play the episodes and return the record's result."""
    from skills.learning.level_sets import declare_levels, level_seeds
    from skills.learning.ppo import use_one_torch_thread
    from skills.planner.episodes import EpisodeRunner, play_without_planner
    from skills.planner.oracle import Oracle

    model = None
    if config.uses_language_model:
        model = chat.Chat(
            config.planner, config.address, config.served, config.timeout, config.retries, config.seed
        )  # fmt: skip
        model.check()
    use_one_torch_thread()
    with record.start(config, study="skills") as run:
        if config.uses_language_model and (trained_by := training_run(config.served)):
            run.add_parent(trained_by)
        seeds = level_seeds(config.stage, config.levels, config.shared + config.more)
        levels = declare_levels(run, config.levels, {config.stage: seeds})[config.stage]
        oracle = Oracle(unblocks=config.careful)
        uniform = run.seeds.generator("actions") if config.actions == "sampled" else None
        executor, agent = make_executor(config, run, len(seeds), uniform, oracle)
        if config.planner == "none":
            planner, played = None, play_without_planner(agent, config.stage, seeds, uniform)
        else:
            planner = make_planner(config, run, model, oracle)
            episodes = EpisodeRunner(
                config.stage,
                seeds,
                planner,
                executor,
                config.patience,
                guarded=config.guard,
                careful=config.careful,
                lays_down=config.lay_down == "rule",
            )
            while episodes.unfinished.any():
                episodes.step()
                run.progress(len(seeds) - int(episodes.unfinished.sum()), len(seeds), "episode")
            played = episodes.played
        outcomes = record.level_outcomes(levels, {"success/all": played.success})
        return run.finish(result(config, played, planner, run.seeds) | {"outcomes": [outcomes]})


def training_run(model: str) -> str:
    """Return the id of the run of `skill:planner_model` whose artifact a model is; "" for other models."""
    from runcatalog.record.journal.files import read_json

    above = Path(model).parents
    known = read_json(above[1] / "journal/run.json") if len(above) > 2 else None
    return str((known or {}).get("id", ""))


def make_executor(
    config: Config, run: record.Run, count: int, uniform: np.random.Generator | None, oracle: Oracle
) -> tuple[Executor, Any]:
    """Return the executor that the flags name, and its agent."""
    from skills.agents import checkpoints
    from skills.planner.executors import AgentExecutor
    from skills.planner.oracle import SearchExecutor

    if config.agent == SEARCH:
        return SearchExecutor(count, oracle), None
    (folder,) = config.found_agents(run.directory).values()
    agent = checkpoints.load(folder)
    run.add_parent(agent.run_id)
    if config.planner == "none" and agent.stage not in COMPOSITE:
        raise record.UserError(
            f"--agent: {config.agent} was trained on {agent.stage} last and needs a planner; "
            f"planner=none takes one of {', '.join(COMPOSITE)}"
        )
    run.event(f"{config.agent}: {agent.run_id[:8]}, trained on {agent.stage} last")
    executor = AgentExecutor(
        agent, count, uniform, forgets=config.forget, replays=config.replay,
        boxes_as_balls=config.boxes_as_balls,
    )  # fmt: skip
    return executor, agent


def make_planner(
    config: Config, run: record.Run, model: chat.Chat | None, oracle: Oracle
) -> Planner:
    """Return the planner that the flags name."""
    from skills.planner import planners

    chance = planners.RandomPlanner(run.seeds)
    if model is not None:
        calls = run.artifact("calls.jsonl")
        return planners.LanguagePlanner(model, calls, chance, config.together)
    return {
        "oracle": planners.OraclePlanner(oracle), "random": chance, "goal": planners.GoalPlanner(),
    }[config.planner]  # fmt: skip


def result(
    config: Config, played: PlannedEpisodes, planner: Planner | None, seeds: record.Seeds
) -> dict[str, Any]:
    """Return the record's result: mean reward and success in the shared levels, the others, and all."""
    parts = {"shared": slice(0, config.shared), "all": slice(None)}
    if config.more:
        parts["more"] = slice(config.shared, None)
    metrics = {"calls": float(played.calls.mean()), "length": float(played.steps.mean())}
    for name, part in parts.items():
        metrics[f"reward/{name}"] = float(played.reward[part].mean())
        metrics[f"success/{name}"] = float(played.success[part].mean())
    at_random = ""
    if config.uses_language_model and planner is not None:
        calls = int(played.calls.sum())
        metrics["planner_calls"] = float(calls)
        metrics["invalid_once"] = float(planner.corrected)
        metrics["invalid_twice"] = float(planner.replaced)
        metrics["random_share"] = planner.replaced / calls
        at_random = (
            f"; after {planner.replaced} of {calls} calls of the planner ({100 * planner.replaced / calls:.1f} %) "
            "no answer was valid and the sub-task was drawn at random"
        )
    for (verb, outcome), count in sorted(played.outcomes.items()):
        metrics[f"subtasks/{verb}/{outcome.replace(': ', ' ')}"] = float(count)
    cells = {name: summary_cells(played[part], seeds) for name, part in parts.items()}
    count, reward, success = cells["all"]
    return {
        "objective": {
            "name": "mean_reward", "value": metrics["reward/all"], "kind": "mean", "goal": "max",
            "at": int(played.steps.sum()), "axis": "step",
        },
        "summary": (
            f"mean reward {reward}, success {success} % in {count} levels; in the first {config.shared} "
            f"{metrics['reward/shared']:.2f}, {int(played.success[:config.shared].sum())} of them solved{at_random}"
        ),
        "metrics": metrics,
        "env_steps": int(played.steps.sum()),
        "task": config.stage,
        "table": [reward_table(config, played), summary_table(config, cells, metrics)],
    }  # fmt: skip


def summary_cells(played: PlannedEpisodes, seeds: record.Seeds) -> tuple[str, str, str]:
    """Return number of levels, mean reward with its 95 % percentile bootstrap interval (Efron 1979), and success."""
    import numpy as np
    from scipy.stats import bootstrap

    from skills.learning.results import success_with_interval

    rewards = played.reward.astype(np.float64)
    interval = bootstrap(
        (rewards,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=seeds.generator("interval")
    )  # fmt: skip
    low, high = interval.confidence_interval
    return (
        str(len(rewards)),
        f"{rewards.mean():.3f} [{low:.3f}, {high:.3f}]",
        success_with_interval(played),
    )


def reward_table(config: Config, played: PlannedEpisodes) -> dict[str, Any]:
    """Return a table with the rewards of the shared levels, and those that the source reported."""
    rewards = played.reward[: config.shared]
    lines = [[config.planner, Path(config.agent).name, *rewards.tolist()]]
    source = reported.REWARDS.get(config.agent.upper(), ())
    if len(source) == config.shared and (config.uses_language_model or config.planner == "none"):
        lines.append(["reported", config.agent, *source])
    rows = [
        [*names, *(f"{value:.3f}" if value else "0" for value in values), f"{sum(values) / len(values):.3f}"]
        for names, values in ((line[:2], line[2:]) for line in lines)
    ]  # fmt: skip
    return {
        "columns": ["planner", "agent", *(f"level {i}" for i in range(config.shared)), "mean reward"],
        "rows": rows,
    }  # fmt: skip


def summary_table(
    config: Config, cells: dict[str, tuple[str, str, str]], metrics: dict[str, float]
) -> dict[str, Any]:
    """Return a table with a row per part of the levels."""
    calls = f"{metrics['calls']:.1f}" if config.planner != "none" else "-"
    invalid = "-"
    if config.uses_language_model:
        counts = (metrics[name] for name in ("invalid_once", "invalid_twice", "planner_calls"))
        invalid = "{:.0f} / {:.0f} of {:.0f}".format(*counts)
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
