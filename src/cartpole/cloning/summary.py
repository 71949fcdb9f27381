"""What a run of behaviour cloning leaves: metrics by clone, histograms, weights, the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cartpole.cloning.behaviour_cloning import CloneConfig, Outcome
from cartpole.cloning.demonstrations import VARIABLES
from cartpole.cloning.survival import Shares, whole
from cartpole.policy_gradient.env import MAX_STEPS
from runcatalog import record

# Shares that the source reported (fact sheet, section 5: read from its histograms of 800 episodes), worst
# first: its order is the claim that is tested.
REPORTED = {
    "angular_velocity": 285 / 800,
    "position": 582 / 800,
    "angle": 652 / 800,
    "none": 718 / 800,
    "velocity": 790 / 800,
}
# Its later run, with which the order turned: middles of what the sheet gives.
RERUN = {"angle": 0.725, "none": 0.875, "velocity": 0.97, "angular_velocity": 0.975}

WHOLE = 0.99  # share of starts from which a clone that is whole reaches 500 steps

LIFETIME_BIN = 10  # steps, as in the source's histograms
# Half of each variable's axis, in its unit, and its number of bins; what lies beyond is put into the
# outermost bin.
AXES = {"position": 0.5, "velocity": 0.8, "angle": 0.08, "angular_velocity": 0.6}
BINS = 80


def lifetime_histogram(lived: np.ndarray) -> np.ndarray:
    """Shares of lifetimes by tens of steps, [51]; the last bin holds those that reached 500."""
    counts = np.bincount(lived.ravel() // LIFETIME_BIN, minlength=MAX_STEPS // LIFETIME_BIN + 1)
    return counts / lived.size


def distribution(values: np.ndarray, variable: str) -> np.ndarray:
    """Shares of values in BINS equal bins of [-a, a], a = AXES[variable]."""
    scaled = (values + AXES[variable]) / (2 * AXES[variable]) * BINS
    bins = np.clip(np.floor(scaled), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS) / values.size


def log(run: record.Run, outcome: Outcome, config: CloneConfig) -> None:
    """Journals what figures and tables are made of.

    `survival/NAME` at step i is clone i (expert i // orders, order i % orders); `lifetimes/NAME` at step b
    is the share of lifetimes in [b, b + 10); `distribution/VARIABLE` at step b is the share of all pairs in
    bin b; `left/NAME` and `used/NAME` at step k are the pairs of expert k.
    """
    for name, lived in outcome.lived.items():
        for index, share in enumerate(whole(lived).ravel()):
            run.log({f"survival/{name}": share}, index)
        for index, share in enumerate(lifetime_histogram(lived)):
            run.log({f"lifetimes/{name}": share}, LIFETIME_BIN * index)
        for index, (there, used) in enumerate(
            zip(outcome.left[name], outcome.used[name], strict=True)
        ):
            run.log({f"left/{name}": there, f"used/{name}": used}, index)
    observations = outcome.pairs.observations[outcome.pairs.happened]
    for column, variable in enumerate(VARIABLES):
        for index, share in enumerate(distribution(observations[:, column], variable)):
            run.log({f"distribution/{variable}": share}, index)


def tensors(outcome: Outcome) -> dict[str, np.ndarray]:
    """The clones' weights for a checkpoint."""
    return {f"clone.{name}": value for name, value in outcome.params.items()}


def share_text(shares: Shares, name: str) -> str:
    """A mean share with its interval: "91.2 % [80.1, 99.0]"."""
    low, high = shares.interval(name)
    return f"{100 * shares.of[name].mean():.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def result(outcome: Outcome, config: CloneConfig, name: str) -> dict[str, Any]:
    """The result with the share of the clones of data set `name` as objective."""
    shares = outcome.shares
    experts, orders, starts = outcome.lived[name].shape
    metrics = {f"survival/{each}": float(of.mean()) for each, of in shares.of.items()}
    metrics |= {f"left/{n}": float(v.mean()) for n, v in outcome.left.items()}
    return {
        "objective": {
            "name": "survival",
            "value": float(shares.of[name].mean()),
            "kind": "rate",
            "count": experts * orders * starts,
            "goal": "max",
            "at": config.updates,
            "axis": "update",
        },
        "summary": (
            f"{share_text(shares, name)} of {starts} starts reach {MAX_STEPS} steps, "
            f"{experts} experts x {orders} orders; {outcome.used[name].mean():,.0f} pairs each"
        ),
        "metrics": metrics,
        "env_steps": int(outcome.pairs.happened.sum()),
    }


def draw(
    run: record.Run,
    outcome: Outcome,
    config: CloneConfig,
    reported: Mapping[str, float] | None = None,
) -> None:
    """Figures as artifacts. One that cannot be drawn is a remark, never the end of a run."""
    with record.optional(run, "figure"):
        from cartpole.cloning import figures as bc_figures

        histograms = {n: lifetime_histogram(lived) for n, lived in outcome.lived.items()}
        bc_figures.lifetimes(run.artifact("lifetimes.svg"), histograms, reported or {})
        observations = outcome.pairs.observations[outcome.pairs.happened]
        spread = {
            variable: distribution(observations[:, column], variable)
            for column, variable in enumerate(VARIABLES)
        }
        bc_figures.distributions(run.artifact("distributions.svg"), spread, AXES, config.scale)
