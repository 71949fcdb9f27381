"""Improve clones of restricted data with new labels of their experts, and count the labels that this takes.

Methods, see `cartpole.cloning.dagger`: DAgger, DART, more of the expert's own episodes, and a control without new
labels. After every round new clones are trained on all data.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cartpole.cloning import expert_policies, survival
from cartpole.cloning.dagger import DaggerConfig, DataAggregation
from cartpole.cloning.dagger_summary import RoundHistory
from runcatalog import record


@dataclass(frozen=True)
class Config(DaggerConfig):
    """Flags of `bc:dagger`, `bc:dart`, `bc:more` and `bc:again`."""


def main(config: Config) -> dict[str, Any]:
    """Alternate training and queries, and return the run's result."""
    experts = expert_policies.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        data = DataAggregation(experts.policies, config, run.seeds)
        history = RoundHistory(config, run)
        deciding = survival.held_out_starts(run.seeds, config.starts)
        test = survival.unused_starts(run.seeds, config.starts)
        run.declare_evaluation("test", "starts that decide no success", contents=test)
        for round_ in range(config.rounds + 1):
            clones = data.train(round_)
            shares, tested = (
                survival.survival_rate(survival.lifetimes(clones, starts))
                for starts in (deciding, test)
            )
            history.add(round_, shares, tested, data.labels, data.noise)
            if round_ < config.rounds:
                data.query(round_, clones)
            run.progress(round_ + 1, config.rounds + 1, "round")
        run.checkpoint(config.rounds, {f"clone.{n}": v for n, v in clones.items()}, {})
        return run.finish(history.result(data.env_steps))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
