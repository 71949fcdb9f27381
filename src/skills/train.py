"""Trains an agent on a stage by PPO, from nothing or on from another stage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.options import Config

if TYPE_CHECKING:
    from skills.playing import Played
    from skills.training import Training


def main(config: Config) -> dict[str, Any]:
    """Trains, plays 1,000 episodes that were kept out, and returns what the record says."""
    from skills.training import Training, trained

    if config.env:
        from skills.outside import check

        check(config.env)
    with trained(Training, config) as training:
        played = training.test()
        training.run.digest_weights(training.tensors())
        return training.run.finish(result(config, training, played))


def result(config: Config, training: Training, played: dict[str, Played]) -> dict[str, Any]:
    """The share of successes among episodes never trained on, with actions drawn from the policy."""
    objective, metrics = objective_of(played, training.update)
    training.run.log(metrics, training.update)
    return {
        "objective": objective,
        "metrics": metrics,
        "env_steps": training.steps,
        "task": config.task,
        "variant": {"recurrent": config.recurrent, "frozen": config.frozen, "pretrained": bool(config.pretrained)},
    }  # fmt: skip


def objective_of(played: dict[str, Played], update: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Success with actions drawn from the policy as a record tells it, and numbers of all episodes."""
    sampled, greedy = played["sampled"], played["greedy"]
    objective = {
        "name": "success", "value": sampled.rate, "kind": "rate", "count": len(sampled.success), "goal": "max",
        "at": update, "axis": "update",
        "also": [
            {"name": "success/greedy", "value": greedy.rate, "kind": "rate", "count": len(greedy.success)}
        ],
    }  # fmt: skip
    metrics = {
        name: value
        for kind, each in played.items()
        for name, value in described(kind, each).items()
    }
    return objective, metrics


def described(kind: str, played: Played) -> dict[str, float]:
    """Numbers of episodes: share of successes, mean reward, mean length [steps]."""
    return {
        f"success/{kind}": played.rate,
        f"reward/{kind}": float(played.reward.mean()),
        f"length/{kind}": float(played.steps.mean()),
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
