"""Train an agent on a stage by recurrent PPO, from random weights or from those of another stage."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from skills.learning import options


@dataclass(frozen=True)
class Config(options.Config):
    """Flags of `skill:train`."""


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
        variant = {
            "recurrent": config.recurrent, "frozen": config.frozen, "pretrained": bool(config.pretrained),
        }  # fmt: skip
        return trainer.run.finish(trainer.result(episodes) | {"variant": variant})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
