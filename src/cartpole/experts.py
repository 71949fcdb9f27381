"""Train the experts of behaviour cloning: several runs of `pg:train algo=rloo` in one process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.cloning.behaviour_cloning import HIDDEN
from cartpole.cloning.expert_policies import ALGORITHM
from cartpole.cloning.survival import Shares, held_out_starts, lifetimes, survival_rate
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, random_starts
from cartpole.policy_gradient.reinforce import EPISODES_PER_UPDATE, Learner, RunSettings
from runcatalog import record
from runcatalog.record import option

GOOD = 0.99  # share of starts from which an expert should survive 500 steps


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
    """Train all experts, test their best policies, and return the run's result."""
    with record.start(config, study="cartpole") as run:
        best, env_steps = train(run, config)
        test_starts = held_out_starts(run.seeds, config.starts)
        shares = survival_rate(lifetimes(best.policies, test_starts))
        run.declare_evaluation("test", "test starts", contents=test_starts)
        for index, share in enumerate(shares):
            run.log({"survival_of_expert": share, "chosen_update": best.updates[index]}, index)
        run.digest_weights(best.policies)
        return run.finish(result_of(config, shares, env_steps))


def train(run: record.Run, config: Config) -> tuple[BestPolicies, int]:
    """Train all experts in lockstep; return their best policies and the number of environment steps."""
    settings = [
        RunSettings(
            algo=ALGORITHM,
            seed=config.seed + k,
            lr=config.lr,
            gamma=config.gamma,
            entropy=0.0,
            normalise=False,
            reset="random",
        )
        for k in range(config.count)
    ]
    learner = Learner(settings, HIDDEN, EPISODES_PER_UPDATE[ALGORITHM])
    best, env_steps = BestPolicies(learner.policy), 0
    if checkpoint := run.restore():
        learner.restore(_select(checkpoint.tensors, "policy."), checkpoint.state["learner"])
        state = checkpoint.state["chosen"]
        experts = _select(checkpoint.tensors, "expert.")
        best.restore({n.removeprefix("expert."): v for n, v in experts.items()}, state)
        env_steps = int(state["steps"])
    validation_starts = random_starts(run.seeds.generator("validation starts"), config.starts)
    while learner.updates < config.updates:
        rollout = learner.collect()
        learner.update(rollout)
        update = learner.updates
        env_steps += int(rollout.lengths.sum())
        if record.is_due(update, config.validate, config.updates):
            steps = lifetimes(learner.policy, validation_starts)
            best.update(learner.policy, steps.mean(1), update)
            shares = survival_rate(steps)
            run.log(
                {
                    "episode_length": rollout.lengths.mean(),
                    "validation_survival": shares.mean(),
                    "least_validation_survival": shares.min(),
                },
                update,
            )
        if run.checkpoint_due(update, config.save_interval, config.updates):
            tensors = learner.tensors() | {f"expert.{n}": v for n, v in best.policies.items()}
            state = {"learner": learner.state(), "chosen": best.state() | {"steps": env_steps}}
            run.checkpoint(update, tensors, state)
        run.progress(update, config.updates, "update")
    return best, env_steps


class BestPolicies:
    """The policy of each run with the longest validation lifetime, the latest of equals.

    A policy-gradient run can leave its plateau again; only a policy from the plateau is an expert.

    Attributes:
        policies: Stacked parameters [K, …].
        lifetimes: Their mean lifetimes in validation, float64 [K].
        updates: The updates after which they were validated, int [K].
    """

    def __init__(self, policies: networks.Params) -> None:
        count = len(policies["w0"])
        self.policies = networks.take(policies, slice(None))
        self.lifetimes = np.full(count, -1.0)
        self.updates = np.zeros(count, np.int64)

    def update(self, policies: networks.Params, lifetimes: np.ndarray, update: int) -> None:
        """Copy the policies whose mean lifetimes [K] are at least as long as the best so far."""
        better = lifetimes >= self.lifetimes
        for name, value in self.policies.items():
            value[better] = policies[name][better]
        self.lifetimes[better], self.updates[better] = lifetimes[better], update

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the policies."""
        return {"lived": self.lifetimes, "updates": self.updates}

    def restore(self, policies: networks.Params, state: Mapping[str, Any]) -> None:
        """Restore policies and a :meth:`state`."""
        self.policies = policies
        self.lifetimes, self.updates = np.array(state["lived"]), np.array(state["updates"])


def _select(tensors: Mapping[str, Any], prefix: str) -> dict[str, np.ndarray]:
    """Return copies of the tensors whose names have a prefix, as arrays."""
    return {
        name: np.asarray(value).copy() for name, value in tensors.items() if name.startswith(prefix)
    }


def result_of(config: Config, shares: np.ndarray, env_steps: int) -> dict[str, Any]:
    """Return the result of a run whose experts survive these shares of the test starts [K]."""
    return {
        "objective": {
            "name": "survival",
            "value": float(shares.mean()),
            "kind": "rate",
            "count": config.count * config.starts,
            # All experts are tested on the same starts, so the count alone would give too narrow an interval.
            "interval": list(
                Shares({"experts": shares[:, None]}, config.starts).interval("experts")
            ),
            "goal": "max",
            "at": config.updates,
            "axis": "update",
        },
        "summary": (
            f"{int((shares >= GOOD).sum())} of {config.count} experts last {MAX_STEPS} steps from at "
            f"least {100 * GOOD:.0f} % of {config.starts} random starts; the least does from "
            f"{100 * shares.min():.1f} %"
        ),
        "metrics": {"survival": float(shares.mean()), "least_survival": float(shares.min())},
        "env_steps": env_steps,
        "variant": {"reset": "random"},
    }


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
