"""Flags shared by all operations of behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass

from cartpole.policy_gradient.env import MAX_STEPS
from runcatalog import record
from runcatalog.record import option

ACTING = ("greedy", "sampled")


@dataclass(frozen=True)
class CloneConfig(record.Config):
    """Flags shared by all operations of behaviour cloning; with the defaults, clones survive like their experts."""

    experts: str = option("experts", "runs or checkpoints with the experts, separated by commas")
    episodes: int = option(400, "episodes that an expert plays; source: 2000", low=1, high=100_000)
    horizon: int = option(
        MAX_STEPS,
        "pairs are taken from an episode's first steps, this many; source: 100",
        low=1,
        high=MAX_STEPS,
    )
    acting: str = option(
        "greedy", "the expert's actions; labels are always greedy; source: see docs", choices=ACTING
    )
    scale: float = option(
        1.0, "factor of the restrictions' half-widths [1]; source: 1", low=0, low_open=True
    )
    limit: int = option(
        0, "use only the first pairs, this many; 0: all; source: 10000", low=0, high=10_000_000
    )
    shuffle: bool = option(True, "pairs in random order, not as played; source: no")
    batch_size: int = option(50, "pairs in one update; source: 1", low=1, high=10_000)
    updates: int = option(10_000, "updates of each clone; source: 10000", low=1, high=10_000_000)
    lr: float = option(5e-3, "Adam's step size [1]; source: 1e-3", low=0, low_open=True, high=1)
    standardise: bool = option(
        True,
        "train on inputs with mean 0 and deviation 1, then fold that into the weights; source: no",
    )
    decay: bool = option(True, "step size falls linearly to zero; source: no")
    orders: int = option(
        3, "clones per data set, with different orders of the pairs and initial weights", low=1
    )
    starts: int = option(800, "random starts on which a clone is tested; source: 800", low=1)
