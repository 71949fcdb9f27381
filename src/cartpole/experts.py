"""Trains the experts of behaviour cloning: several runs of `pg:train algo=rloo` in one process."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.cloning import expert_policies as expert
from cartpole.cloning.survival import lifetimes, whole
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, random_starts
from cartpole.policy_gradient.reinforce import Learner, Setting
from runcatalog import record
from runcatalog.record import option

EPISODES = 10  # of one update, as `pg:train algo=rloo`
GOOD = 0.99  # share of starts from which an expert has to last 500 steps


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `bc:experts`."""

    count: int = option(10, "experts; their seeds are seed, seed + 1, …", low=1, high=1000)
    updates: int = option(2000, "updates of 10 episodes; source: 2000", low=1, high=1_000_000)
    lr: float = option(1e-3, "Adam's step size [1]; source: 1e-3", low=0, low_open=True, high=1)
    gamma: float = option(0.99, "discount [1]; source: 0.99", low=0, high=1)
    validate: int = option(50, "updates between two validations", low=1)
    starts: int = option(800, "start states of a validation and of the test", low=1, high=100_000)
    save_interval: int = option(200, "updates between two checkpoints", low=1)


def main(config: Config) -> dict[str, Any]:
    """Trains, keeps each expert's best policy, and returns what the record says."""
    with record.start(config, study="cartpole") as run:
        chosen = _train(run, config)
        test = random_starts(run.seeds.generator("test starts"), config.starts)
        shares = whole(lifetimes(chosen.policies, test))
        for index, share in enumerate(shares):
            run.log({"survival_of_expert": share, "chosen_update": chosen.updates[index]}, index)
        run.digest_weights(chosen.policies)
        good = int((shares >= GOOD).sum())
        return run.finish(
            {
                "objective": {
                    "name": "survival",
                    "value": float(shares.mean()),
                    "kind": "rate",
                    "count": config.count * config.starts,
                    "goal": "max",
                    "at": config.updates,
                    "axis": "update",
                },
                "summary": (
                    f"{good} of {config.count} experts last {MAX_STEPS} steps from at least "
                    f"{100 * GOOD:.0f} % of {config.starts} random starts; the least does from "
                    f"{100 * shares.min():.1f} %"
                ),
                "metrics": {
                    "survival": float(shares.mean()),
                    "least_survival": float(shares.min()),
                },
                "env_steps": chosen.steps,
                "variant": {"reset": "random"},
            }
        )


class Chosen:
    """Each expert's policy that lasted longest in validation, the latest of equals.

    A policy-gradient run that has found a plateau still leaves it now and then; what is cloned is to be
    an expert.
    """

    def __init__(self, policies: networks.Params) -> None:
        count = len(policies["w0"])
        self.policies = networks.take(policies, slice(None))
        self.lived = np.full(count, -1.0)
        self.updates = np.zeros(count, np.int64)
        self.steps = 0

    def look(self, policies: networks.Params, lived: np.ndarray, update: int) -> None:
        """Takes over what is at least as good; `lived` is the mean lifetime [K]."""
        better = lived >= self.lived
        for name, value in self.policies.items():
            value[better] = policies[name][better]
        self.lived[better], self.updates[better] = lived[better], update

    def state(self) -> dict[str, Any]:
        """What, with the policies, a checkpoint holds."""
        return {"lived": self.lived, "updates": self.updates, "steps": self.steps}

    def restore(self, policies: networks.Params, state: dict[str, Any]) -> None:
        """Goes on from a :meth:`state`."""
        self.policies = policies
        self.lived, self.updates = np.array(state["lived"]), np.array(state["updates"])
        self.steps = int(state["steps"])


def _train(run: record.Run, config: Config) -> Chosen:
    settings = [
        Setting(expert.ALGORITHM, config.seed + k, config.lr, config.gamma, reset="random")
        for k in range(config.count)
    ]
    learner = Learner(settings, episodes=EPISODES)
    chosen = Chosen(learner.policy)
    if found := run.restore():
        learner.restore(_of(found.tensors, "policy.", keep=True), found.state["learner"])
        chosen.restore(_of(found.tensors, "expert."), found.state["chosen"])
    validation = random_starts(run.seeds.generator("validation starts"), config.starts)
    while learner.updates < config.updates:
        lengths = learner.update()
        update, last = learner.updates, learner.updates == config.updates
        chosen.steps += int(lengths.sum())
        if update % config.validate == 0 or last:
            lived = lifetimes(learner.policy, validation)
            chosen.look(learner.policy, lived.mean(1), update)
            names = {"episode_length": lengths.mean(), "validation_survival": whole(lived).mean()}
            run.log({**names, "least_validation_survival": whole(lived).min()}, update)
        if update % config.save_interval == 0 or last:
            tensors = learner.tensors() | {f"expert.{n}": v for n, v in chosen.policies.items()}
            run.checkpoint(update, tensors, {"learner": learner.state(), "chosen": chosen.state()})
        run.progress(update, config.updates, "update")
    return chosen


def _of(tensors: dict[str, Any], prefix: str, keep: bool = False) -> dict[str, np.ndarray]:
    """The tensors of one network as arrays, by name with or without the prefix."""
    return {
        name if keep else name.removeprefix(prefix): np.asarray(value).copy()
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
