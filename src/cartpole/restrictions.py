"""Clones experts from all their pairs and from what each restriction leaves: where cloning breaks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cartpole.cloning import expert_policies as expert
from cartpole.cloning import summary as bc_results
from cartpole.cloning.behaviour_cloning import CloneConfig, Outcome, clone
from cartpole.cloning.demonstrations import RESTRICTIONS
from cartpole.cloning.summary import REPORTED, RERUN, WHOLE
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(CloneConfig):
    """Flags of `bc:restrictions`."""

    equal: bool = option(
        False, "all data sets of an expert as small as its smallest, drawn at random"
    )


def main(config: Config) -> dict[str, Any]:
    """Clones, tests, compares, and returns what the record says."""
    experts = expert.load(config.experts)
    with record.start(config, study="cartpole") as run:
        for parent in experts.parents:
            run.add_parent(parent)
        outcome = clone(experts.policies, config, run, list(RESTRICTIONS), equal=config.equal)
        bc_results.log(run, outcome, config)
        run.checkpoint(config.updates, bc_results.tensors(outcome), {})
        bc_results.draw(run, outcome, config, REPORTED)
        result = bc_results.result(outcome, config, "none")
        result["summary"] = _summary(outcome)
        result["metrics"] |= _comparisons(outcome)
        result["table"] = _table(outcome, config.scale)
        return run.finish(result)


def _summary(outcome: Outcome) -> str:
    shares = outcome.shares
    told = [f"{_words(name)} {bc_results.share_text(shares, name)}" for name in RESTRICTIONS]
    order, probability = shares.order(list(RESTRICTIONS))
    return (
        f"share that reaches 500 steps: {', '.join(told)}; worst to best "
        f"{', '.join(map(_words, order))} in {100 * probability:.0f} % of resamples, the source's order in "
        f"{100 * shares.ordered(list(REPORTED)):.0f} %, angular velocity below position in "
        f"{100 * shares.less('angular_velocity', 'position'):.0f} %"
    )


def _table(outcome: Outcome, scale: float) -> dict[str, Any]:
    """A line for each restriction, for the catalog."""
    shares, rows = outcome.shares, []
    for name, restriction in RESTRICTIONS.items():
        of, used = shares.of[name], outcome.used[name]
        rows.append(
            [
                _words(name),
                str(restriction.scaled(scale)) if restriction else "everything",
                bc_results.share_text(shares, name),
                f"{int((of >= WHOLE).sum())} of {of.size}",
                f"{100 * of.mean(1).min():.0f} to {100 * of.mean(1).max():.0f} %",
                f"{outcome.left[name].mean():,.0f}, {used.mean():,.0f}",
                f"{100 * REPORTED[name]:.0f} %",
            ]
        )
    columns = [
        "restriction",
        "kept",
        "reach 500 steps",
        f"clones that do from {100 * WHOLE:.0f} %",
        "by expert",
        "pairs left, used",
        "source",
    ]
    return {"columns": columns, "rows": rows}


def _comparisons(outcome: Outcome) -> dict[str, float]:
    """How probable each pair's order is, and those of the source's two runs."""
    shares, names = outcome.shares, list(RESTRICTIONS)
    found = {
        f"probability/{a} below {b}": shares.less(a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    found["probability/order as reported"] = shares.ordered(list(REPORTED))
    found["probability/order as in the rerun"] = shares.ordered(list(RERUN))
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
