"""Clone experts from state-action pairs, under one restriction or none, and test how long the clones survive."""

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
    """Flags of `bc:train`."""

    restriction: str = option(
        "none", "which pairs are used, with the source's intervals", choices=tuple(RESTRICTIONS)
    )


def main(config: Config) -> dict[str, Any]:
    """Clone, test, and return the run's result."""
    experts = expert_policies.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        outcome = clone(experts.policies, config, run, [config.restriction])
        summary.log(run, outcome)
        run.checkpoint(config.updates, summary.tensors(outcome), {})
        summary.draw(run, outcome, config.scale)
        return run.finish(summary.result(outcome, config, config.restriction))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
