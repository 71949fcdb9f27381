"""The end of a run: the final agents are judged, drawn and filmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom import grid
from darkroom.a2c import Policies
from runcatalog import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from darkroom.a2c import SourceAgents
    from darkroom.batch import Step
    from darkroom.curves import Curves
    from darkroom.train_sources import Config

EPISODES = 100  # of a task, that its final agent is judged by
FILMED = 3  # episodes of a video


@dataclass(frozen=True)
class Judged:
    """Episodes of the final agents, float [T, EPISODES].

    Attributes:
        returns: Sum of rewards.
        lengths: Steps.
    """

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def success(self) -> np.ndarray:
        """Share of episodes that met the goal, by task."""
        return (self.returns > 0).mean(axis=1)


def judge(agents: SourceAgents, rng: np.random.Generator, episodes: int = EPISODES) -> Judged:
    """Plays whole episodes in every task with actions drawn from the final policies."""
    tasks = len(agents.goals)
    returns, lengths = np.zeros((2, tasks * episodes))
    for step, going in whole_episodes(agents, rng, episodes):
        returns += np.where(going, step.rewards, 0)
        lengths += going
    return Judged(returns.reshape(tasks, -1), lengths.reshape(tasks, -1))


def whole_episodes(
    agents: SourceAgents, rng: np.random.Generator, count: int
) -> Iterator[tuple[Step, np.ndarray]]:
    """Plays `count` episodes beside each other in every task, until the last of them ends.

    Yields:
        The step of all rooms, task by task, and in which the first episode still went on, bool.
    """
    rooms = agents.settings.rooms(np.repeat(agents.goals, count))
    policies = Policies(np.exp(agents.table()[0]), count)
    going = np.ones(len(rooms), bool)
    while going.any():
        step = rooms.step(policies.actions(rooms.cells, rng.random(len(rooms), np.float32)))
        yield step, going
        going = going & ~(step.terminated | step.truncated)


def finish_sources(
    run: record.Run, config: Config, agents: SourceAgents, curves: Curves
) -> dict[str, Any]:
    """Judges the agents on new episodes, draws, films, and ends the run."""
    from darkroom.train_sources import tensors

    judged = judge(agents, run.seeds.generator("evaluation"))
    metrics = scores(config, agents.goals, judged)
    steps = config.updates * config.envs * config.rollout
    _draw(run, config, agents.goals, curves, judged)
    _film(run, config, agents)
    run.digest_weights(tensors(agents))
    if config.terminating:
        name, kind = "success", "rate"
        also = ["worst_success", "extra_steps", "worst_extra_steps"]
    else:
        name, kind, also = "return", "mean", ["optimal_return", "worst_normalised_return"]
    return run.finish(
        {
            "objective": {
                "name": name,
                "value": metrics[name],
                "kind": kind,
                "goal": "max",
                "at": steps,
                "axis": "step",
                "also": [{"name": each, "value": metrics[each], "kind": "mean"} for each in also],
            },
            "metrics": metrics,
            "env_steps": steps * len(agents.goals),
            "variant": {"tasks": len(agents.goals), "terminating": config.terminating},
        }
    )


def scores(config: Config, goals: np.ndarray, judged: Judged) -> dict[str, float]:
    """What is reported of the final agents.

    `extra_steps` are those beyond the shortest way, over episodes that met the goal.
    """
    size, limit = config.size, config.limit
    best = grid.optimal_return(size, goals, limit, terminating=config.terminating)
    normalised = grid.normalised_return(
        judged.returns.mean(axis=1), size, goals, limit, terminating=config.terminating
    )
    metrics = {
        "success": float(judged.success.mean()),
        "worst_success": float(judged.success.min()),
        "return": float(judged.returns.mean()),
        "optimal_return": float(best.mean()),
        "normalised_return": float(normalised.mean()),
        "worst_normalised_return": float(normalised.min()),
    }
    if config.terminating and (judged.success > 0).any():
        found = judged.returns > 0
        extra = np.where(found, judged.lengths - grid.distances(size)[goals][:, None], np.nan)
        by_task = [float(np.nanmean(row)) for row in extra if np.isfinite(row).any()]
        metrics |= {
            "length": float(judged.lengths[found].mean()),
            "extra_steps": float(np.mean(by_task)),
            "worst_extra_steps": max(by_task),
        }
    elif config.terminating:
        metrics |= {"extra_steps": float(limit), "worst_extra_steps": float(limit)}
    return metrics


def _draw(
    run: record.Run, config: Config, goals: np.ndarray, curves: Curves, judged: Judged
) -> None:
    with record.optional(run, "figure"):
        from darkroom.figures import sources

        steps = curves.at * config.envs * config.rollout
        sources(run.artifact("sources.svg"), config.size, goals, steps, curves, judged)


def _film(run: record.Run, config: Config, agents: SourceAgents) -> None:
    if config.video == "none":
        return
    with record.optional(run, "video"):
        from darkroom import film

        cells = film.walks(agents, run.seeds.generator("film"), FILMED)
        film.write(run.artifact("agents.mp4"), config.size, agents.goals, cells)
        if config.video == "each":
            for i, goal in enumerate(agents.goals):
                name = f"agents/{goal // config.size}_{goal % config.size}.mp4"
                film.write(
                    run.artifact(name), config.size, agents.goals[i : i + 1], cells[:, i : i + 1]
                )
