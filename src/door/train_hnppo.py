"""Train a hypernetwork PPO agent (HN-PPO) on one door task, the first or the next one of a series."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from door.training import tuned_flags
from door.training.flags import (
    DoorConfig,
    entropy_option,
    schedule_option,
    target_kl_option,
    value_loss_option,
)
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from door.hypernet.agent import HyperAgent
    from door.training.trainer import Trainer


@dataclass(frozen=True)
class Config(DoorConfig):
    """Flags of `hnppo:train`."""

    lr: float = option(5e-3, "Adam's step size [1]; source: 5e-3", low=0, low_open=True, high=1)
    max_grad_norm: float = option(
        5e-5,
        "limit of the norm of the PPO gradient; source: 1e-4. With values near Adam's epsilon of 1e-5 "
        "it limits the step to about lr x norm / 1e-5",
        low=0,
        low_open=True,
    )
    lr_schedule: str = schedule_option("success")
    entropy_coef: float = entropy_option(0.01, "source: 0.01")
    target_kl: float = target_kl_option(
        "source: 0, never. A step of the hypernetwork changes all weights together"
    )
    clip_critic_apart: bool = option(
        True,
        "clip the fresh critic's gradient by its own norm; source: jointly with theta's, which leaves "
        "it too small to learn",
        unless={"freshcritic": False},
    )
    critic_grad_norm: float = option(
        0.5,
        "limit of the norm of the fresh critic's gradient if it is clipped separately",
        low=0,
        low_open=True,
        unless={"freshcritic": False, "clip_critic_apart": False},
    )
    critic_lr: float = option(
        1e-3,
        "Adam's step size of the fresh critic [1]; 0: lr (source, with joint clipping)",
        low=0,
        high=1,
        unless={"freshcritic": False},
    )
    value_loss: str = value_loss_option("clipped")
    task_id: int = option(
        -1, "place of the task in its series, from 0; -1: the next one", low=-1, high=1000
    )
    te_dim: int = option(8, "size of a task embedding; source: 8", low=1, high=4096)
    embedding_start: str = option(
        "neutral",
        "start of a further task's embedding; random: N(0, 1) (source); neutral: the one of 32 random "
        "embeddings that gives the smallest actor, with the exploration of a new network; warm: that of the "
        "earlier task whose policy opens most doors of this one, neutral if none opens half of them",
        choices=("random", "neutral", "warm"),
        unless={"pretrained": ""},
    )
    beta: float = option(
        1e-3, "strength of the regulariser [1]; source: 5e-4 to 5e-3, 0 for none", low=0
    )
    look_ahead: bool = option(
        True, "regularise at theta + Adam's next step; source: yes", unless={"beta": 0}
    )
    clip_regulariser: bool = option(
        False,
        "clip the regulariser's gradient too; source: added after clipping",
        unless={"beta": 0},
    )
    freshcritic: bool = option(
        True, "an ordinary critic, new for every task; no: generated too (source has both)"
    )
    chunked: bool = option(False, "generate 1000 weights at a time (source: chnppo)")
    hyper_width: int = option(
        0,
        "width of the hypernetwork's two hidden layers; 0: 10 x the first of network-size (source)",
        low=0,
    )


def main(config: Config) -> dict[str, Any]:
    """Train, evaluate on the 100 test worlds of all tasks so far, and return the content of `result.json`."""
    from door.training.summary import finish
    from door.training.trainer import Trainer, ppo_settings
    from rl import ppo

    with record.start(config, study="door") as run, Trainer(run, config) as trainer:
        tuned_flags.note(run, config.tuned_from())
        agent = make_agent(config, trainer)
        settings = ppo_settings(config, config.value_loss)
        trainer.start(agent)
        for update in trainer.updates():
            trainer.schedule_lr(agent)
            rollout, rewards = trainer.collect(agent)
            batch = ppo.compute_advantages(agent, rollout, rewards, settings)
            shuffling = run.seeds.generator("minibatches", update)
            statistics = ppo.update(agent, batch, settings, shuffling)
            agent.normaliser.update(rollout.raw_observations[:-1])
            statistics["regulariser"] = agent.regularisation()
            trainer.log(rollout, statistics)
            trainer.validate_if_due(agent)
            trainer.checkpoint_if_due(agent)
        method = "HN-PPO+fc" if config.freshcritic else "HN-PPO"
        return finish(trainer, agent, method, task_id=len(agent.tasks) - 1)


def make_agent(config: Config, trainer: Trainer) -> HyperAgent:
    """Return a new agent with its first task, or the pretrained one with a further task."""
    from door.hypernet.agent import HyperAgent, HyperSettings
    from door.hypernet.update import UpdateSettings
    from door.training.trainer import ADAM_EPS

    settings = HyperSettings(
        te_dim=config.te_dim,
        hyper_width=config.hyper_width,
        chunked=config.chunked,
        freshcritic=config.freshcritic,
        squash_mean=config.squash_mean,
        log_std=config.log_std,
        neutral_start=config.embedding_start != "random",
        update=UpdateSettings(
            lr=config.lr,
            critic_lr=config.critic_lr,
            adam_eps=ADAM_EPS,
            max_grad_norm=config.max_grad_norm,
            clip_critic_apart=config.clip_critic_apart,
            critic_grad_norm=config.critic_grad_norm,
            beta=config.beta,
            look_ahead=config.look_ahead,
            clip_regulariser=config.clip_regulariser,
        ),
    )
    generator = trainer.run.seeds.torch("weights")
    agent = HyperAgent(trainer.shape, settings, generator, config.task)
    if trainer.load_pretrained(agent):
        is_warm = config.embedding_start == "warm"
        like = trainer.best_policy(agent.policies(), agent.tasks) if is_warm else None
        agent.begin_task(config.task, generator, like)
    agent.normaliser.enabled = config.normalise_obs  # the current task's; the others keep theirs
    task_id = len(agent.tasks) - 1
    if config.task_id not in (-1, task_id):
        learned = ", ".join(agent.tasks[:-1]) or "nothing"
        raise record.UserError(
            f"--task-id: {config.task_id} cannot follow {learned}; use {task_id}, or another "
            "--pretrained"
        )
    trainer.tasks = agent.tasks
    return agent


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
