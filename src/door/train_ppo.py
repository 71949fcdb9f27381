"""Trains a plain PPO agent on one door task, from nothing or on from a previous checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from door import tuned
from door.options import (
    DoorConfig,
    entropy_option,
    stop_option,
    target_kl_option,
    value_loss_option,
)
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from door.training import Training
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
    target_kl: float = target_kl_option(0.03, "0: never (source)")
    mean_gain: float = option(
        0.01,
        "orthogonal gain of the actor's last layer; source: 1, which starts with large motions",
        low=0,
        low_open=True,
    )


def main(config: Config) -> dict[str, Any]:
    """Trains, evaluates on 100 held-out worlds, and returns what the record says."""
    from door.results import finish
    from door.training import Training, ppo_settings
    from rl import ppo

    with record.start(config, study="door") as run, Training(run, config) as training:
        tuned.note(run, config.tuned_from())
        agent = make_agent(config, training)
        training.restore(agent)
        settings = ppo_settings(config, config.value_loss)
        for order in training.updates(agent):
            rollout, rewards = training.rollout(agent)
            batch = ppo.make_batch(agent, rollout, rewards, settings)
            statistics = ppo.update(agent, batch, settings, order)
            agent.normaliser.update(rollout.raw_observations[:-1])
            training.log(rollout, statistics)
        return finish(training, agent, "PPO fine-tuning" if config.pretrained else "PPO")


def make_agent(config: Config, training: Training) -> PPOAgent:
    """A new agent, or that of `pretrained` with a new optimiser."""
    from rl.agent import AgentSettings, PPOAgent

    settings = AgentSettings(
        lr=config.lr,
        max_grad_norm=config.max_grad_norm,
        squash_mean=config.squash_mean,
        mean_gain=config.mean_gain,
        log_std=config.log_std,
    )
    agent = PPOAgent(training.shape, settings, training.run.seeds.torch("weights"))
    agent.normaliser.enabled = config.normalise_obs
    if training.load_pretrained(agent) and agent.normaliser.enabled != config.normalise_obs:
        had = "yes" if agent.normaliser.enabled else "no"
        raise record.UserError(f"--normalise-obs: --pretrained was trained with {had}; use {had}")
    agent.new_optimiser()
    return agent


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
