"""Train a source agent on every task of a dark room, all at once, and record their learning histories."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.rooms import grid
from darkroom.rooms.key_tasks import draw_key_tasks
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from darkroom.a2c.a2c import Settings, SourceAgents
    from darkroom.a2c.curves import Curves
    from darkroom.a2c.evaluation import Evaluation

POINTS = 100  # of the learning curves
PRINTED = 10  # of these points, on the terminal
VIDEO_EPISODES = 3


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `a2c:histories`; the defaults are the source's, as far as it states them."""

    size: int = option(9, "side of the room [cells]; source: 9", low=2, high=40)
    limit: int = option(20, "steps of an episode; not stated by the source", low=1, high=255)
    terminating: bool = option(True, "the goal ends an episode; source: yes")
    tasks: str = option(
        "all",
        'goals, as "0,0 3,4" (row,column), with a key "0,1,3,4" (key, door); all: every cell but the centre (source)',
    )
    key_tasks: int = option(
        0,
        "Key-To-Door: number of tasks, each with a key that must be met before the goal, a door, pays, drawn by the "
        "seed, the same as ad:explore draws; 0: none",
        low=0,
    )
    test_tasks: int = option(
        23, "number of test tasks, drawn by the seed; 0: no split; source: 23", low=0
    )
    env_steps: int = option(2_500_000, "budget of a task [steps]; source: 2.5 M", low=1)
    history_steps: int = option(
        800_000, "first steps of a task that are recorded; source: 800,000", low=1
    )
    envs: int = option(10, "environments of a task; source: 10", low=1, high=1000)
    rollout: int = option(
        10, "steps of an environment between two updates; source: 10", low=1, high=1000
    )
    hidden: int = option(128, "width of the embedding; source: 128", low=1, high=4096)
    lr: float = option(1e-4, "Adam's learning rate [1]; source: 1e-4", low=0, low_open=True, high=1)
    gamma: float = option(0.99, "discount per step; not stated by the source", low=0, high=1)
    entropy_coef: float = option(0.01, "weight of the entropy bonus; source: 0.01", low=0)
    value_coef: float = option(0.99, "weight of the squared value error; source: 0.99", low=0)
    max_grad_norm: float = option(
        0.5, "largest norm of a task's gradient; source: 0.5", low=0, low_open=True
    )
    bootstrap: bool = option(
        False,
        "an episode cut by its limit counts the value of its last cell; no: it counts as ended",
    )
    save_interval: int = option(2500, "updates between checkpoints", low=1, resumable=True)
    video: str = option(
        "grid",
        "videos of the final agents; grid: all tasks in one, each: also one per task",
        choices=("grid", "each", "none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        goals = self.goals()
        if problem := grid.reach_problem(self.size, self.limit, goals):
            raise record.UserError(f"--limit: {problem}")
        if self.test_tasks and self.tasks == "all" and self.test_tasks >= len(goals):
            raise record.UserError(
                f"--test-tasks: {self.test_tasks} of {len(goals)} tasks leave none for training"
            )

    def goals(self) -> list[int]:
        """Return the tasks, numbered as in :mod:`darkroom.rooms.grid`, in order."""
        if self.key_tasks and self.tasks != "all":
            raise record.UserError("--key-tasks: draws the tasks itself; do not give --tasks")
        if self.key_tasks:
            return draw_key_tasks(self.key_tasks, self.size, self.seed)
        if self.tasks == "all":
            return grid.tasks(self.size).tolist()
        goals = []
        for word in self.tasks.split():
            try:
                goals.append(grid.read_task(word.split(","), self.size))
            except ValueError as error:
                raise record.UserError(
                    f'--tasks: {word!r} is no task of a {self.size} x {self.size} room ({error}); say "0,0 3,4", '
                    'with a key "0,1,3,4"'
                ) from None
        if not goals or len(set(goals)) < len(goals):
            raise record.UserError(f"--tasks: {self.tasks!r} names no task, or a task twice")
        return sorted(goals)

    @property
    def updates(self) -> int:
        """Budget in updates, rounded up."""
        return -(-self.env_steps // self.steps_per_update)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of a task between two updates."""
        return self.envs * self.rollout

    def settings(self) -> Settings:
        """Return the learner's settings."""
        from darkroom.a2c.a2c import Settings

        return Settings(
            size=self.size,
            limit=self.limit,
            terminating=self.terminating,
            hidden=self.hidden,
            envs=self.envs,
            rollout=self.rollout,
            lr=self.lr,
            gamma=self.gamma,
            entropy_coef=self.entropy_coef,
            value_coef=self.value_coef,
            max_grad_norm=self.max_grad_norm,
            bootstrap=self.bootstrap,
        )


def main(config: Config) -> dict[str, Any]:
    """Train, record the histories, evaluate and return the result."""
    from darkroom.a2c.a2c import SourceAgents
    from darkroom.a2c.curves import Curves
    from darkroom.a2c.evaluation import evaluate
    from darkroom.a2c.histories import About, Histories

    goals = np.array(config.goals())
    about = About(config.size, config.limit, config.terminating, tuple(goals.tolist()), config.seed)
    recorded = -(-min(config.history_steps, config.env_steps) // config.envs)
    with record.start(config, study="darkroom") as run:
        histories = Histories.create(run.directory / "histories", about, config.envs, recorded)
        agents = SourceAgents(goals, config.settings(), run.seeds)
        curves = Curves(goals, config.size, config.envs, config.updates, POINTS)
        restore(run, agents, curves)
        split_tasks(run, config)

        while agents.updates < config.updates:
            rollout = agents.update()
            update, steps = agents.updates, agents.updates * config.steps_per_update
            histories.write((update - 1) * config.rollout, rollout)
            if means := curves.add(update, rollout):
                record.check_finite(update, weights(agents))
                run.log(means, steps)
                if curves.points % record.log_interval(POINTS, PRINTED) == 0:
                    report(run, update, means)
            run.progress(update, config.updates, "update")
            if run.checkpoint_due(update, config.save_interval, config.updates):
                histories.flush()
                state = {"agents": agents.state(), "curves": curves.state()}
                run.checkpoint(update, weights(agents), state)

        steps = agents.updates * config.steps_per_update
        run.log({"mean_return": curves.mean_return()}, steps)
        evaluation = evaluate(agents, run.seeds.generator("evaluation"))
        run.declare_evaluation("training", "new episodes of the training tasks")
        draw(run, config, agents, curves, evaluation)
        write_videos(run, config, agents)
        run.digest_weights(weights(agents))
        return run.finish(result(config, agents, evaluation))


def restore(run: record.Run, agents: SourceAgents, curves: Curves) -> None:
    """Continue from the newest checkpoint, if there is one."""
    from darkroom.a2c.a2c import PARAMETERS

    if checkpoint := run.restore():
        parameters = [checkpoint.tensors[name].numpy() for name in PARAMETERS]
        agents.restore(parameters, checkpoint.state["agents"])
        curves.restore(checkpoint.state["curves"])


def weights(agents: SourceAgents) -> dict[str, np.ndarray]:
    """Return the parameters by name."""
    from darkroom.a2c.a2c import PARAMETERS

    return dict(zip(PARAMETERS, agents.parameters, strict=True))


def split_tasks(run: record.Run, config: Config) -> None:
    """Draw the test tasks and write them as `test_tasks.txt`."""
    from darkroom.a2c.histories import split, write_tasks

    if config.test_tasks and config.tasks == "all":
        _, test = split(config.goals(), config.test_tasks, run.seeds.generator("split"))
        write_tasks(run.artifact("test_tasks.txt"), test, config.size)


def report(run: record.Run, update: int, means: dict[str, float]) -> None:
    """Print the means of a point of the curves."""
    run.event(
        f"update {update}: return {means['return']:.2f}, success {100 * means['success']:.1f} %, "
        f"length {means['length']:.1f}"
    )


def result(config: Config, agents: SourceAgents, evaluation: Evaluation) -> dict[str, Any]:
    """Return the result, whose objective is success where the goal ends an episode, and the return elsewhere."""
    from darkroom.a2c.evaluation import scores

    metrics = scores(agents, evaluation)
    steps = config.updates * config.steps_per_update
    if config.terminating:
        name, kind = "success", "rate"
        also = ["worst_success", "extra_steps", "worst_extra_steps"]
    else:
        name, kind, also = "return", "mean", ["optimal_return", "worst_normalised_return"]
    return {
        "objective": {
            "name": name,
            "value": metrics[name],
            "kind": kind,
            "goal": "max",
            "at": steps,
            "axis": "step",
            "also": [{"name": key, "value": metrics[key], "kind": "mean"} for key in also],
        },
        "metrics": metrics,
        "env_steps": steps * len(agents.goals),
        "variant": {"tasks": len(agents.goals), "terminating": config.terminating},
    }


def draw(
    run: record.Run, config: Config, agents: SourceAgents, curves: Curves, evaluation: Evaluation
) -> None:
    """Draw the learning curves and the final returns as `sources.svg`."""
    with record.optional(run, "figure"):
        from darkroom.a2c.figures import source_agents

        steps = curves.at * config.steps_per_update
        returns = evaluation.returns.mean(axis=1)
        source_agents(
            run.artifact("sources.svg"), config.size, agents.goals, steps, curves, returns
        )


def write_videos(run: record.Run, config: Config, agents: SourceAgents) -> None:
    """Write the videos of the final agents."""
    if config.video == "none":
        return
    with record.optional(run, "video"):
        from darkroom.a2c import video

        cells = video.paths(agents, run.seeds.generator("film"), VIDEO_EPISODES)
        video.write(run.artifact("agents.mp4"), config.size, agents.goals, cells)
        if config.video == "each":
            for i, goal in enumerate(agents.goals):
                name = f"agents/{grid.task_text(goal, config.size).replace(' ', '_')}.mp4"
                task = slice(i, i + 1)
                video.write(run.artifact(name), config.size, agents.goals[task], cells[:, task])


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
