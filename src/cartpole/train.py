"""Trains one policy on CartPole with policy gradients; its checkpoint is what behaviour cloning copies."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cartpole.policy_gradient.options import PolicyGradientConfig, widths
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    import numpy as np

    from cartpole.policy_gradient.networks import Params

LOGGED = 200  # points of a learning curve
TOLD = 10  # lines on the terminal
GREEDY_EPISODES = 100


@dataclass(frozen=True)
class Config(PolicyGradientConfig):
    """Flags of `pg:train`."""

    save_interval: int = option(
        500, "updates between two checkpoints", low=1, high=10**6, resumable=True
    )


def main(config: Config) -> dict[str, Any]:
    """Trains, and returns what the record says."""
    import numpy as np

    from cartpole.policy_gradient.reinforce import Learner

    with record.start(config, study="cartpole") as run:
        learner = Learner([config.setting], widths(config.hidden), config.batch)
        lengths = np.zeros((config.update_count, config.batch), np.int16)
        restore(run, learner, lengths)
        while learner.updates < config.update_count:
            played = learner.update()[0]
            lengths[learner.updates - 1] = played
            if _due(learner.updates, config.update_count, LOGGED):
                record.check_finite(learner.updates, learner.tensors())
                log(run, learner.updates, lengths)
            if _due(learner.updates, config.update_count, TOLD):
                tell(run, learner.updates, lengths)
            run.progress(learner.updates, config.update_count, "update")
            if learner.updates % config.save_interval == 0:
                save(run, learner, lengths, config)
        save(run, learner, lengths, config)
        greedy = greedy_length(learner.policy, run.seeds.generator("evaluation"))
        episodes = lengths.reshape(-1)[: config.episode_count]
        return run.finish(result_of(config, episodes, int(lengths.sum()), greedy))


def restore(run: record.Run, learner: Any, lengths: np.ndarray) -> None:
    """Goes on from the newest checkpoint, if there is one."""
    checkpoint = run.restore()
    if checkpoint is None:
        return
    stacked = {name: value[None] for name, value in checkpoint.tensors.items()}
    learner.restore(stacked, checkpoint.state["learner"])
    lengths[: learner.updates] = checkpoint.state["lengths"]


def save(run: record.Run, learner: Any, lengths: np.ndarray, config: Config) -> None:
    """Writes a checkpoint: `policy.w0` [4, 8], …, and what a bit-equal continuation needs."""
    single = {name: value[0] for name, value in learner.tensors().items()}
    played = lengths[: learner.updates]
    state = {"learner": learner.state(), "lengths": played, "hidden": config.hidden}
    run.checkpoint(learner.updates, single, state)


def log(run: record.Run, updates: int, lengths: np.ndarray) -> None:
    """Logs the curve; the step is the number of episodes."""
    played = lengths[:updates].reshape(-1)
    run.log(
        {"length_mean100": played[-100:].mean(), "updates": updates, "env_steps": played.sum()},
        step=len(played),
    )


def tell(run: record.Run, updates: int, lengths: np.ndarray) -> None:
    """Says on the terminal how it goes."""
    played = lengths[:updates].reshape(-1)
    mean = played[-100:].mean()
    run.event(f"update {updates}, episode {len(played)}: mean length {mean:.1f} over the last 100")


def greedy_length(policy: Params, rng: np.random.Generator) -> float:
    """Mean length of episodes from new start states with the more probable action (evaluation)."""
    from cartpole.policy_gradient import networks
    from cartpole.policy_gradient.env import CartPoleBatch, random_starts

    env = CartPoleBatch(GREEDY_EPISODES)
    seen = env.reset(random_starts(rng, GREEDY_EPISODES))
    while env.alive.any():
        logits = networks.forward(policy, seen[None])[0]
        seen, _, _ = env.step(logits[:, 1] > logits[:, 0])
    return float(env.steps.mean())


def result_of(
    config: Config, episodes: np.ndarray, env_steps: int, greedy: float
) -> dict[str, Any]:
    """What the record says of a run with these episode lengths [N]."""
    from cartpole.policy_gradient.convergence import NEVER, plateau

    reached = int(plateau(episodes))
    update = -(-reached // config.batch)
    mean = float(episodes[-100:].mean())
    where = "no plateau" if reached == NEVER else f"plateau at episode {reached}, update {update}"
    metrics = {"length_mean100": mean, "greedy_length": greedy}
    if reached != NEVER:
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
        f"({config.update_count} updates); {where}; greedy {greedy:.1f} on {GREEDY_EPISODES} new starts",
        "metrics": metrics,
        "env_steps": env_steps,
    }


def _due(update: int, total: int, count: int) -> bool:
    """Whether this update is one of `count` evenly spaced ones, the last included."""
    return update * count // total != (update - 1) * count // total


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
