"""Train an agent to carry out a planner's sub-tasks, by recurrent PPO from the weights of another agent."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from skills.learning.options import SubtaskConfig


@dataclass(frozen=True)
class Config(SubtaskConfig):
    """Flags of `skill:subtasks`."""


def main(config: Config) -> dict[str, Any]:
    """Train, carry out the sub-tasks of test levels, and return the record's result."""
    from skills.learning.subtasks import SubtaskTrainer

    with SubtaskTrainer.start(config) as trainer:
        ppo = trainer.learner
        for update in trainer.updates():
            ppo.collect(update)  # `rollout` steps in all `envs` environments
            ppo.compute_advantages()
            statistics = ppo.optimise(update, trainer.learning_rate())
            trainer.log(statistics)
            trainer.validate()  # every eval_interval updates; ends the loop at stop_at
            trainer.checkpoint()  # every save_interval updates
        episodes = trainer.test()
        trainer.run.digest_weights(trainer.tensors())
        return trainer.run.finish(trainer.result(episodes))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
