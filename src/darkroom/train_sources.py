"""Trains a source agent for each task of a dark room, all at once, and keeps their learning histories."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.rooms import grid
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from darkroom.a2c.a2c import Settings, SourceAgents
    from darkroom.a2c.curves import Curves
    from darkroom.a2c.evaluation import Evaluation

LOGGED = 100  # points of the learning curves
TOLD = 10  # lines on the terminal
FILMED = 3  # episodes of a video


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `a2c:histories`. Defaults are the source's where it tells them."""

    size: int = option(9, "cells of a side of the room; source: 9", low=2, high=40)
    limit: int = option(
        20, "steps of an episode; the source does not tell its own", low=1, high=255
    )
    terminating: bool = option(True, "the goal ends an episode; source: yes")
    tasks: str = option(
        "all", 'goals, as "0,0 3,4" (row,column); all: every cell but the centre (source)'
    )
    test_tasks: int = option(
        23, "tasks for testing, drawn by the seed; 0: no division; source: 23", low=0
    )
    env_steps: int = option(2_500_000, "budget of a task [steps]; source: 2.5 M", low=1)
    history_steps: int = option(
        800_000, "how many of them are kept, from the first on; source: 800,000", low=1
    )
    envs: int = option(10, "environments of a task; source: 10", low=1, high=1000)
    rollout: int = option(10, "steps of each between two updates; source: 10", low=1, high=1000)
    hidden: int = option(128, "width of the embedding; source: 128", low=1, high=4096)
    lr: float = option(1e-4, "Adam's step size [1]; source: 1e-4", low=0, low_open=True, high=1)
    gamma: float = option(0.99, "discount a step; the source does not tell its own", low=0, high=1)
    entropy_coef: float = option(0.01, "weight of the entropy bonus; source: 0.01", low=0)
    value_coef: float = option(0.99, "weight of the squared value error; source: 0.99", low=0)
    max_grad_norm: float = option(
        0.5, "limit of the norm of a task's gradient; source: 0.5", low=0, low_open=True
    )
    bootstrap: bool = option(
        False, "count the value of the last cell at the limit; no: an episode's end is one"
    )
    save_interval: int = option(2500, "updates between checkpoints", low=1, resumable=True)
    video: str = option(
        "grid",
        "of the final agents: grid shows all tasks at once, each one a task too",
        choices=("grid", "each", "none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        goals = self.goals()
        if self.test_tasks and self.tasks == "all" and self.test_tasks >= len(goals):
            raise record.UserError(
                f"--test-tasks: {self.test_tasks} of {len(goals)} tasks leave none for training"
            )

    def goals(self) -> list[int]:
        """The tasks' cells, in order."""
        if self.tasks == "all":
            return grid.tasks(self.size).tolist()
        found = []
        for word in self.tasks.split():
            try:
                found.append(grid.read_cell(word.split(","), self.size))
            except ValueError:
                raise record.UserError(
                    f'--tasks: {word!r} is no row,column of a {self.size} x {self.size} room; say "0,0 3,4"'
                ) from None
        if not found or len(set(found)) < len(found):
            raise record.UserError(f"--tasks: {self.tasks!r} names no goal, or one twice")
        return sorted(found)

    @property
    def updates(self) -> int:
        """Budget in updates, rounded up."""
        return -(-self.env_steps // (self.envs * self.rollout))

    def settings(self) -> Settings:
        """The learner's."""
        from dataclasses import fields

        from darkroom.a2c.a2c import Settings

        names = {field.name for field in fields(Settings)} & {field.name for field in fields(self)}
        return Settings(**{name: getattr(self, name) for name in names})


def main(config: Config) -> dict[str, Any]:
    """Trains, and returns what the record says."""
    from darkroom.a2c.a2c import SourceAgents
    from darkroom.a2c.curves import Curves
    from darkroom.a2c.histories import About, Histories

    goals = np.array(config.goals())
    with record.start(config, study="darkroom") as run:
        about = About(
            config.size, config.limit, config.terminating, tuple(goals.tolist()), config.seed
        )
        steps = -(-min(config.history_steps, config.env_steps) // config.envs)
        histories = Histories.create(run.directory / "histories", about, config.envs, steps)
        agents = SourceAgents(goals, config.settings(), run.seeds)
        curves = Curves(len(goals), config.envs, config.updates, LOGGED)
        restore(run, agents, curves)
        divide(run, config)
        while agents.updates < config.updates:
            played = agents.update()
            histories.write((agents.updates - 1) * config.rollout, played)
            if point := curves.add(agents.updates, played):
                record.check_finite(agents.updates, tensors(agents))
                run.log(point, agents.updates * config.envs * config.rollout)
                if curves.points % max(1, LOGGED // TOLD) == 0:
                    tell(run, agents.updates, point)
            run.progress(agents.updates, config.updates, "update")
            if agents.updates % config.save_interval == 0 or agents.updates == config.updates:
                histories.flush()
                run.checkpoint(
                    agents.updates,
                    tensors(agents),
                    {"agents": agents.state(), "curves": curves.state()},
                )
        run.log(
            {"mean_return": curves.mean_return()}, agents.updates * config.envs * config.rollout
        )
        return finish_sources(run, config, agents, curves)


def restore(run: record.Run, agents: SourceAgents, curves: Curves) -> None:
    """Goes on from the newest checkpoint, if there is one."""
    checkpoint = run.restore()
    if checkpoint is not None:
        from darkroom.a2c.a2c import NAMES

        told = [checkpoint.tensors[name].numpy() for name in NAMES]
        agents.restore(told, checkpoint.state["agents"])
        curves.restore(checkpoint.state["curves"])


def tensors(agents: SourceAgents) -> dict[str, np.ndarray]:
    """The weights by name."""
    from darkroom.a2c.a2c import NAMES

    return dict(zip(NAMES, agents.parameters, strict=True))


def divide(run: record.Run, config: Config) -> None:
    """Writes which tasks are for testing."""
    from darkroom.a2c.histories import split, write_tasks

    if config.test_tasks and config.tasks == "all":
        _, test = split(config.goals(), config.test_tasks, run.seeds.generator("split"))
        write_tasks(run.artifact("test_tasks.txt"), test, config.size)


def tell(run: record.Run, update: int, point: dict[str, float]) -> None:
    """Says on the terminal how it goes."""
    run.event(
        f"update {update}: return {point['return']:.2f}, success {100 * point['success']:.1f} %, "
        f"length {point['length']:.1f}"
    )


def finish_sources(
    run: record.Run, config: Config, agents: SourceAgents, curves: Curves
) -> dict[str, Any]:
    """Evaluate the final agents on new episodes, draw the figure and the video, and end the run."""
    from darkroom.a2c.evaluation import evaluate

    evaluation = evaluate(agents, run.seeds.generator("evaluation"))
    metrics = scores(config, agents.goals, evaluation)
    steps = config.updates * config.envs * config.rollout
    _draw(run, config, agents.goals, curves, evaluation)
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


def scores(config: Config, goals: np.ndarray, evaluation: Evaluation) -> dict[str, float]:
    """Metrics of the final agents.

    `extra_steps` are those beyond the shortest way, over episodes that reached the goal.
    """
    size, limit = config.size, config.limit
    best = grid.optimal_return(size, goals, limit, terminating=config.terminating)
    normalised = grid.normalised_return(
        evaluation.returns.mean(axis=1), size, goals, limit, terminating=config.terminating
    )
    metrics = {
        "success": float(evaluation.success.mean()),
        "worst_success": float(evaluation.success.min()),
        "return": float(evaluation.returns.mean()),
        "optimal_return": float(best.mean()),
        "normalised_return": float(normalised.mean()),
        "worst_normalised_return": float(normalised.min()),
    }
    if config.terminating and (evaluation.success > 0).any():
        found = evaluation.returns > 0
        extra = np.where(found, evaluation.lengths - grid.distances(size)[goals][:, None], np.nan)
        by_task = [float(np.nanmean(row)) for row in extra if np.isfinite(row).any()]
        metrics |= {
            "length": float(evaluation.lengths[found].mean()),
            "extra_steps": float(np.mean(by_task)),
            "worst_extra_steps": max(by_task),
        }
    elif config.terminating:
        metrics |= {"extra_steps": float(limit), "worst_extra_steps": float(limit)}
    return metrics


def _draw(
    run: record.Run, config: Config, goals: np.ndarray, curves: Curves, evaluation: Evaluation
) -> None:
    with record.optional(run, "figure"):
        from darkroom.a2c.figures import sources

        steps = curves.at * config.envs * config.rollout
        sources(run.artifact("sources.svg"), config.size, goals, steps, curves, evaluation)


def _film(run: record.Run, config: Config, agents: SourceAgents) -> None:
    if config.video == "none":
        return
    with record.optional(run, "video"):
        from darkroom.a2c import video as film

        cells = film.walks(agents, run.seeds.generator("film"), FILMED)
        film.write(run.artifact("agents.mp4"), config.size, agents.goals, cells)
        if config.video == "each":
            for i, goal in enumerate(agents.goals):
                name = f"agents/{goal // config.size}_{goal % config.size}.mp4"
                film.write(
                    run.artifact(name), config.size, agents.goals[i : i + 1], cells[:, i : i + 1]
                )


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
