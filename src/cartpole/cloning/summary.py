"""Summary of a cloning experiment: metrics by clone, histograms, weights, result, figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cartpole.cloning import figures
from cartpole.cloning.demonstrations import RESTRICTIONS, VARIABLES
from cartpole.cloning.experiment import Outcome
from cartpole.cloning.options import CloneConfig
from cartpole.cloning.survival import Shares, survival_rate
from cartpole.policy_gradient.env import MAX_STEPS
from runcatalog import record

# Shares that the source reported, read from its histograms of 800 episodes, worst first: its claim is this order.
REPORTED = {
    "angular_velocity": 285 / 800,
    "position": 582 / 800,
    "angle": 652 / 800,
    "none": 718 / 800,
    "velocity": 790 / 800,
}
# The source's later run has another order; midpoints of the ranges read from its histograms.
RERUN = {"angle": 0.725, "none": 0.875, "velocity": 0.97, "angular_velocity": 0.975}

FULL_SURVIVAL = 0.99  # share of starts from which a fully successful clone reaches 500 steps
LIFETIME_BIN = 10  # steps, as in the source's histograms
# Half of each variable's axis, in its unit, and the number of bins; values beyond are counted in the outermost bin.
AXES = {"position": 0.5, "velocity": 0.8, "angle": 0.08, "angular_velocity": 0.6}
BINS = 80


def lifetime_histogram(steps: np.ndarray) -> np.ndarray:
    """Return shares of lifetimes in bins of ten steps, [51]; the last bin is 500 steps."""
    counts = np.bincount(steps.ravel() // LIFETIME_BIN, minlength=MAX_STEPS // LIFETIME_BIN + 1)
    return counts / steps.size


def distribution(values: np.ndarray, variable: str) -> np.ndarray:
    """Return shares of values in BINS equal bins of [-a, a] with a = AXES[variable]."""
    scaled = (values + AXES[variable]) / (2 * AXES[variable]) * BINS
    bins = np.clip(np.floor(scaled), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS) / values.size


def log(run: record.Run, outcome: Outcome) -> None:
    """Log the data of figures and tables.

    `survival/NAME` at step i is clone i (expert i // orders, order i % orders); `lifetimes/NAME` at step b
    is the share of lifetimes in [b, b + 10); `distribution/VARIABLE` at step b is the share of all pairs in
    bin b; `left/NAME` and `used/NAME` at step k are the numbers of pairs of expert k, selected and used.
    """
    for name, steps in outcome.lifetimes.items():
        for index, share in enumerate(survival_rate(steps).ravel()):
            run.log({f"survival/{name}": share}, index)
        for index, share in enumerate(lifetime_histogram(steps)):
            run.log({f"lifetimes/{name}": share}, LIFETIME_BIN * index)
        for index, (selected, used) in enumerate(
            zip(outcome.selected[name], outcome.used[name], strict=True)
        ):
            run.log({f"left/{name}": selected, f"used/{name}": used}, index)
    observations = outcome.pairs.observations[outcome.pairs.valid]
    for column, variable in enumerate(VARIABLES):
        for index, share in enumerate(distribution(observations[:, column], variable)):
            run.log({f"distribution/{variable}": share}, index)


def tensors(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return the clones' weights for a checkpoint."""
    return {f"clone.{name}": value for name, value in outcome.params.items()}


def share_text(shares: Shares, name: str) -> str:
    """Return a mean share with its interval: "91.2 % [80.1, 99.0]"."""
    low, high = shares.interval(name)
    return f"{100 * shares.by_name[name].mean():.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def result(outcome: Outcome, config: CloneConfig, name: str) -> dict[str, Any]:
    """Return the result; its objective is the mean share of the clones of data set `name`."""
    shares = outcome.shares
    experts, orders, starts = outcome.lifetimes[name].shape
    metrics = {f"survival/{n}": float(share.mean()) for n, share in shares.by_name.items()}
    metrics |= {f"left/{n}": float(count.mean()) for n, count in outcome.selected.items()}
    return {
        "objective": {
            "name": "survival",
            "value": float(shares.by_name[name].mean()),
            "kind": "rate",
            "count": experts * orders * starts,
            # All clones are tested on the same starts, so the count alone would give too narrow an interval.
            "interval": list(shares.interval(name)),
            "goal": "max",
            "at": config.updates,
            "axis": "update",
        },
        "summary": (
            f"{share_text(shares, name)} of {starts} starts reach {MAX_STEPS} steps, "
            f"{experts} experts x {orders} orders; {outcome.used[name].mean():,.0f} pairs each"
        ),
        "metrics": metrics,
        "env_steps": int(outcome.pairs.valid.sum()),
    }


def restrictions_result(outcome: Outcome, config: CloneConfig) -> dict[str, Any]:
    """Return the result of a comparison of all restrictions, with its table."""
    restrictions = result(outcome, config, "none")
    restrictions["summary"] = _restrictions_sentence(outcome.shares)
    restrictions["metrics"] |= _order_probabilities(outcome.shares)
    restrictions["table"] = _restrictions_table(outcome, config.scale)
    return restrictions


def _restrictions_sentence(shares: Shares) -> str:
    parts = [f"{_words(name)} {share_text(shares, name)}" for name in RESTRICTIONS]
    order, probability = shares.most_frequent_order(list(RESTRICTIONS))
    return (
        f"share that reaches 500 steps: {', '.join(parts)}; worst to best "
        f"{', '.join(map(_words, order))} in {100 * probability:.0f} % of resamples, the source's order in "
        f"{100 * shares.probability_of_order(list(REPORTED)):.0f} %, angular velocity below position in "
        f"{100 * shares.probability_below('angular_velocity', 'position'):.0f} %"
    )


def _restrictions_table(outcome: Outcome, scale: float) -> dict[str, Any]:
    """Return a table with one row per restriction."""
    rows = []
    for name, restriction in RESTRICTIONS.items():
        share, used = outcome.shares.by_name[name], outcome.used[name]
        by_expert = share.mean(1)
        rows.append(
            [
                _words(name),
                str(restriction.scaled(scale)) if restriction else "everything",
                share_text(outcome.shares, name),
                f"{int((share >= FULL_SURVIVAL).sum())} of {share.size}",
                f"{100 * by_expert.min():.0f} to {100 * by_expert.max():.0f} %",
                f"{outcome.selected[name].mean():,.0f}, {used.mean():,.0f}",
                f"{100 * REPORTED[name]:.0f} %",
            ]
        )
    columns = [
        "restriction",
        "kept",
        "reach 500 steps",
        f"clones that do from {100 * FULL_SURVIVAL:.0f} %",
        "by expert",
        "pairs left, used",
        "source",
    ]
    return {"columns": columns, "rows": rows}


def _order_probabilities(shares: Shares) -> dict[str, float]:
    """Return the probability of the order of every two restrictions, and of the source's two orders."""
    names = list(RESTRICTIONS)
    probabilities = {
        f"probability/{a} below {b}": shares.probability_below(a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    probabilities["probability/order as reported"] = shares.probability_of_order(list(REPORTED))
    probabilities["probability/order as in the rerun"] = shares.probability_of_order(list(RERUN))
    return probabilities


def _words(name: str) -> str:
    return name.replace("_", " ")


def draw(
    run: record.Run, outcome: Outcome, scale: float, reported: Mapping[str, float] | None = None
) -> None:
    """Draw the figures as artifacts; a failure is logged and does not fail the run.

    Args:
        run: The run.
        outcome: Its clones.
        scale: Factor of the restrictions' half-widths.
        reported: Reported shares by restriction.
    """
    with record.optional(run, "figure"):
        histograms = {n: lifetime_histogram(steps) for n, steps in outcome.lifetimes.items()}
        figures.lifetimes(run.artifact("lifetimes.svg"), histograms, reported or {})
        observations = outcome.pairs.observations[outcome.pairs.valid]
        by_variable = {
            variable: distribution(observations[:, column], variable)
            for column, variable in enumerate(VARIABLES)
        }
        figures.distributions(run.artifact("distributions.svg"), by_variable, AXES, scale)
