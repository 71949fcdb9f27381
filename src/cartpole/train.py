"""Train one CartPole policy with REINFORCE; its checkpoint can serve as an expert for behaviour cloning."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient.convergence import NO_PLATEAU, plateau_episode
from cartpole.policy_gradient.env import CartPoleBatch, random_starts
from cartpole.policy_gradient.options import PolicyGradientConfig
from cartpole.policy_gradient.reinforce import Learner
from runcatalog import record
from runcatalog.record import option

CURVE_POINTS = 200
CONSOLE_LINES = 10
GREEDY_EPISODES = 100


@dataclass(frozen=True)
class Config(PolicyGradientConfig):
    """Flags of `pg:train`."""

    save_interval: int = option(
        500, "updates between two checkpoints", low=1, high=10**6, resumable=True
    )


def main(config: Config) -> dict[str, Any]:
    """Train a policy and return the run's result."""
    with record.start(config, study="cartpole") as run:
        learner = Learner([config.run_settings], config.widths, config.batch)
        lengths = np.zeros((config.update_count, config.batch), np.int16)  # of all episodes
        restore(run, learner, lengths)
        while learner.updates < config.update_count:
            rollout = learner.collect()
            learner.update(rollout)
            lengths[learner.updates - 1] = rollout.lengths[0]
            if is_point(learner.updates, config.update_count, CURVE_POINTS):
                record.check_finite(learner.updates, learner.tensors())
                log(run, learner.updates, lengths)
            if is_point(learner.updates, config.update_count, CONSOLE_LINES):
                print_progress(run, learner.updates, lengths)
            run.progress(learner.updates, config.update_count, "update")
            if run.checkpoint_due(learner.updates, config.save_interval, config.update_count):
                save(run, learner, lengths, config)
        greedy = greedy_length(learner.policy, run.seeds.generator("evaluation"))
        run.declare_evaluation("training", "last 100 episodes of the training")
        return run.finish(result_of(config, lengths.reshape(-1), greedy))


def restore(run: record.Run, learner: Learner, lengths: np.ndarray) -> None:
    """Restore the newest checkpoint, if there is one."""
    checkpoint = run.restore()
    if checkpoint is None:
        return
    stacked = {name: value[None] for name, value in checkpoint.tensors.items()}
    learner.restore(stacked, checkpoint.state["learner"])
    lengths[: learner.updates] = checkpoint.state["lengths"]


def save(run: record.Run, learner: Learner, lengths: np.ndarray, config: Config) -> None:
    """Write a checkpoint: weights `policy.w0` [4, 8], …, and the state for a bit-equal continuation."""
    single = {name: value[0] for name, value in learner.tensors().items()}
    played = lengths[: learner.updates]
    state = {"learner": learner.state(), "lengths": played, "hidden": config.hidden}
    run.checkpoint(learner.updates, single, state)


def log(run: record.Run, updates: int, lengths: np.ndarray) -> None:
    """Log a point of the learning curve; the step is the number of episodes."""
    played = lengths[:updates].reshape(-1)
    run.log(
        {"length_mean100": played[-100:].mean(), "updates": updates, "env_steps": played.sum()},
        step=len(played),
    )


def print_progress(run: record.Run, updates: int, lengths: np.ndarray) -> None:
    """Print the mean length of the last 100 episodes."""
    played = lengths[:updates].reshape(-1)
    mean = played[-100:].mean()
    run.event(f"update {updates}, episode {len(played)}: mean length {mean:.1f} over the last 100")


def is_point(update: int, total: int, points: int) -> bool:
    """Return whether an update is one of `points` evenly spaced updates; the last update is."""
    return update * points // total != (update - 1) * points // total


def greedy_length(policy: networks.Params, rng: np.random.Generator) -> float:
    """Return the mean length of episodes with greedy actions from new random start states."""
    env = CartPoleBatch(GREEDY_EPISODES)
    observed = env.reset(random_starts(rng, GREEDY_EPISODES))
    while env.alive.any():
        push_right = networks.greedy(policy, observed[None])[0]
        observed, _, _ = env.step(push_right)
    return float(env.steps.mean())


def result_of(config: Config, episodes: np.ndarray, greedy: float) -> dict[str, Any]:
    """Return the result of a run with these episode lengths [N], of all its updates."""
    reached = int(plateau_episode(episodes))
    update = -(-reached // config.batch)
    mean = float(episodes[-100:].mean())
    metrics = {"length_mean100": mean, "greedy_length": greedy}
    if reached == NO_PLATEAU:
        plateau = "no plateau"
    else:
        plateau = f"plateau at episode {reached}, update {update}"
        metrics |= {"plateau_episode": reached, "plateau_update": update}
    return {
        "objective": {
            "name": "length_mean100",
            "value": mean,
            "kind": "mean",
            "goal": "max",
            "at": len(episodes),
            "axis": "episode",
        },
        "summary": f"mean length {mean:.1f} over the last 100 of {len(episodes)} episodes "
        f"({config.update_count} updates); {plateau}; "
        f"greedy {greedy:.1f} on {GREEDY_EPISODES} new starts",
        "metrics": metrics,
        "env_steps": int(episodes.sum()),
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
