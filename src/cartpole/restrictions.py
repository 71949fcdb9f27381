"""Clone experts from all their pairs and under four restrictions: which data does cloning need?"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cartpole.cloning import expert_policies, summary
from cartpole.cloning.demonstrations import RESTRICTIONS
from cartpole.cloning.experiment import clone
from cartpole.cloning.options import CloneConfig
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(CloneConfig):
    """Flags of `bc:restrictions` and its variants."""

    equal: bool = option(
        False, "reduce all data sets of an expert to its smallest, pairs drawn at random"
    )


def main(config: Config) -> dict[str, Any]:
    """Clone under all restrictions, test, and return the run's result."""
    experts = expert_policies.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        outcome = clone(experts.policies, config, run, list(RESTRICTIONS), equal=config.equal)
        summary.log(run, outcome)
        run.checkpoint(config.updates, summary.tensors(outcome), {})
        summary.draw(run, outcome, config.scale, summary.REPORTED)
        return run.finish(summary.restrictions_result(outcome, config))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
