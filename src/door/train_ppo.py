"""Train a plain PPO agent on one door task, from scratch or from the checkpoint of a previous task."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from door.training import tuned_flags
from door.training.flags import (
    DoorConfig,
    entropy_option,
    stop_option,
    target_kl_option,
    value_loss_option,
)
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from door.training.trainer import Trainer
    from rl.agent import PPOAgent


@dataclass(frozen=True)
class Config(DoorConfig):
    """Flags of `ppo:train`."""

    stop_at: float = stop_option(0.99)
    max_grad_norm: float = option(
        0.5, "limit of the gradient's norm; source: 0.5", low=0, low_open=True
    )
    value_loss: str = value_loss_option("max")
    entropy_coef: float = entropy_option(0.02, "source: 0 (series 7 and 8)")
    target_kl: float = target_kl_option("0: never (source)")
    mean_gain: float = option(
        0.01,
        "orthogonal gain of the actor's last layer; source: 1, which starts with large motions",
        low=0,
        low_open=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean_gain", "log_std"):
            if self.pretrained and getattr(self, name) != getattr(Config, name):  # its default
                raise record.UserError(
                    f"--{record.config.flag_name(name)}: for new weights alone, not those of "
                    "--pretrained; leave it out"
                )


def main(config: Config) -> dict[str, Any]:
    """Train, evaluate on the 100 test worlds, and return the content of `result.json`."""
    from door.training.summary import finish
    from door.training.trainer import Trainer
    from rl.agent import PPOAgent

    with record.start(config, study="door") as run, Trainer(run, config) as trainer:
        tuned_flags.note(run, config.tuned_from())
        agent = make_agent(config, trainer, PPOAgent)
        train(config, trainer, agent)
        return finish(trainer, agent, "PPO fine-tuning" if config.pretrained else "PPO")


def train(config: Config, trainer: Trainer, agent: PPOAgent) -> None:
    """Train the agent from the run's newest checkpoint, or from its first update, to the end."""
    from door.training.trainer import ppo_settings
    from rl import ppo

    settings = ppo_settings(config, config.value_loss)
    trainer.start(agent)
    for update in trainer.updates():
        trainer.schedule_lr(agent)
        rollout, rewards = trainer.collect(agent)
        batch = ppo.compute_advantages(agent, rollout, rewards, settings)
        shuffling = trainer.run.seeds.generator("minibatches", update)
        statistics = ppo.update(agent, batch, settings, shuffling)
        agent.normaliser.update(rollout.raw_observations[:-1])
        trainer.log(rollout, statistics)
        trainer.validate_if_due(agent)
        trainer.checkpoint_if_due(agent)


def make_agent(config: Config, trainer: Trainer, kind: Callable[..., PPOAgent]) -> PPOAgent:
    """Return a new agent, or the pretrained one with a new optimiser.

    Args:
        config: Flags.
        trainer: Of the run.
        kind: `PPOAgent`, or a function with its arguments.
    """
    from door.training.trainer import ADAM_EPS
    from rl.agent import AgentSettings

    settings = AgentSettings(
        lr=config.lr,
        max_grad_norm=config.max_grad_norm,
        adam_eps=ADAM_EPS,
        squash_mean=config.squash_mean,
        mean_gain=config.mean_gain,
        log_std=config.log_std,
    )
    agent = kind(trainer.shape, settings, trainer.run.seeds.torch("weights"))
    agent.normaliser.enabled = config.normalise_obs
    if trainer.load_pretrained(agent) and agent.normaliser.enabled != config.normalise_obs:
        had = "yes" if agent.normaliser.enabled else "no"
        raise record.UserError(f"--normalise-obs: --pretrained was trained with {had}; use {had}")
    agent.new_optimiser()
    return agent


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
