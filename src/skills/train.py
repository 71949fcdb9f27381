"""Train an agent on a stage by recurrent PPO, from random weights or from those of another stage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.learning.options import Config
from skills.learning.results import objective_and_metrics

if TYPE_CHECKING:
    from skills.agents.evaluation import Episodes
    from skills.learning.trainer import PPOTrainer


def main(config: Config) -> dict[str, Any]:
    """Train, play the test episodes, and return the record's result."""
    from skills.learning.trainer import PPOTrainer

    if config.env:
        from skills.levels.minigrid.batch import check_environment

        check_environment(config.env)
    with PPOTrainer.start(config) as trainer:
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
        return trainer.run.finish(result(config, trainer, episodes))


def result(config: Config, trainer: PPOTrainer, episodes: dict[str, Episodes]) -> dict[str, Any]:
    """Return the record's result: the success rate in the test episodes, with sampled actions."""
    objective, metrics = objective_and_metrics(episodes, trainer.update)
    trainer.run.log(metrics, trainer.update)
    return {
        "objective": objective,
        "metrics": metrics,
        "outcomes": trainer.outcomes,
        "env_steps": trainer.steps,
        "task": config.task,
        "variant": {"recurrent": config.recurrent, "frozen": config.frozen, "pretrained": bool(config.pretrained)},
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
