"""Train one PPO agent on several door tasks at once, with the task as a one-hot input: multi-task training."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

from door import train_ppo
from door.env.tasks import TASKS
from door.training import tuned_flags
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(train_ppo.Config):
    """Flags of `ppo:multitask`, those of `ppo:train` with other defaults."""

    task: str = option(
        "pull pull_left lever lever_left lever_push lever_push_left",
        "kinds of doors, separated by spaces",
    )
    env_steps: int = option(6_000_000, "budget of all tasks together [decisions of 0.08 s]", low=1)
    num_envs: int = option(
        96, "parallel environments, an equal number for each task", low=1, high=4096
    )
    eval_interval: int = option(
        20, "updates between validations, each in the worlds of all tasks; 0: none", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        tasks = self.task.split()
        if not tasks or not set(tasks) <= set(TASKS) or len(set(tasks)) < len(tasks):
            raise record.UserError(
                f"--task: {self.task!r} is not a list of different tasks of {', '.join(TASKS)}"
            )
        if self.num_envs % len(tasks):
            raise record.UserError(
                f"--num-envs: {self.num_envs} is not a multiple of the number of tasks, {len(tasks)}"
            )


def main(config: Config) -> dict[str, Any]:
    """Train as `ppo:train` does, evaluate on 100 test worlds of each task, and return the content of `result.json`."""
    from door.training.multitask import MultitaskAgent, MultitaskTrainer
    from door.training.summary import finish

    with record.start(config, study="door") as run, MultitaskTrainer(run, config) as trainer:
        tuned_flags.note(run, config.tuned_from())
        agent = train_ppo.make_agent(config, trainer, partial(MultitaskAgent, tasks=trainer.tasks))
        train_ppo.train(config, trainer, agent)
        return finish(trainer, agent, "PPO, all tasks at once")


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
