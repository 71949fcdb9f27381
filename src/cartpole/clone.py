"""Clones experts from state-action pairs, under one restriction or none, and tests how long the clones last."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cartpole.cloning import expert_policies as expert
from cartpole.cloning import summary as bc_results
from cartpole.cloning.behaviour_cloning import CloneConfig, clone
from cartpole.cloning.demonstrations import RESTRICTIONS
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(CloneConfig):
    """Flags of `bc:train`."""

    restriction: str = option(
        "none", "which pairs are left, by the source's values", choices=tuple(RESTRICTIONS)
    )


def main(config: Config) -> dict[str, Any]:
    """Clones, tests, and returns what the record says."""
    experts = expert.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        outcome = clone(experts.policies, config, run, [config.restriction])
        bc_results.log(run, outcome, config)
        run.checkpoint(config.updates, bc_results.tensors(outcome), {})
        bc_results.draw(run, outcome, config)
        return run.finish(bc_results.result(outcome, config, config.restriction))


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
