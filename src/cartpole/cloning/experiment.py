"""A cloning experiment: demonstrations, restricted data sets, training, survival test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cartpole.cloning import survival
from cartpole.cloning.behaviour_cloning import Clones, PairOrder, fit, new_clones
from cartpole.cloning.demonstrations import Pairs, demonstrate, selected
from cartpole.cloning.options import CloneConfig
from cartpole.policy_gradient.networks import Params
from runcatalog import record


@dataclass(frozen=True)
class Outcome:
    """Clones of all experts in all orders, by the name of their restriction.

    Attributes:
        params: Trained parameters, stacked over (restriction, expert, order).
        pairs: All pairs of the experts.
        selected: Number of pairs of each expert that the restriction selects, int [K].
        used: Number of pairs that the clones are trained on, int [K].
        lifetimes: Steps survived, int [K, J, S]: experts, orders, starts.
    """

    params: Params
    pairs: Pairs
    selected: dict[str, np.ndarray]
    used: dict[str, np.ndarray]
    lifetimes: dict[str, np.ndarray]

    @cached_property
    def shares(self) -> survival.Shares:
        """Shares of starts from which clones survive 500 steps."""
        shares = {name: survival.survival_rate(steps) for name, steps in self.lifetimes.items()}
        starts = next(iter(self.lifetimes.values())).shape[-1]
        return survival.Shares(shares, starts)


def clone(
    experts: Params,
    config: CloneConfig,
    run: record.Run,
    names: Sequence[str],
    *,
    equal: bool = False,
) -> Outcome:
    """Clone all experts from their pairs under several restrictions, all clones in one batch.

    Args:
        experts: Stacked policies [K, …].
        config: Flags.
        run: Provides seeds; receives the progress.
        names: Keys of `demonstrations.RESTRICTIONS`.
        equal: Reduce all data sets of an expert to the size of the smallest, so that they differ in coverage
            alone.

    Raises:
        RunFailed: A restriction selects no pairs.
    """
    pairs = demonstrate(experts, config, run.seeds)
    indices = {name: selected(pairs, name, config.scale) for name in names}
    counts = {name: np.array([len(rows) for rows in sets]) for name, sets in indices.items()}
    limits = np.full(len(experts["w0"]), config.limit or pairs.labels[0].size)
    if equal:
        limits = np.minimum(limits, np.min(list(counts.values()), axis=0))
    clones = Clones.product(len(experts["w0"]), config.orders)
    orders = [
        PairOrder(
            indices[name][expert],
            # The same stream for every restriction: unshuffled, all of them start with the same episodes.
            run.seeds.generator(f"pair order of {expert}", int(order)),
            shuffle=config.shuffle,
            limit=int(limits[expert]),
            episodes=(config.episodes, config.horizon),
        )
        for name in names
        for expert, order in zip(clones.experts, clones.orders, strict=True)
    ]
    untrained = new_clones(run.seeds, clones)
    params = {name: np.concatenate([value] * len(names)) for name, value in untrained.items()}
    observations, labels = pairs.flat()
    fit(
        params,
        observations,
        labels,
        np.tile(clones.experts, len(names)),
        orders,
        config,
        progress=lambda done: run.progress(done, config.updates, "update"),
    )
    starts = survival.held_out_starts(run.seeds, config.starts)
    run.declare_evaluation("test", "test starts", contents=starts)
    lifetimes = survival.lifetimes(params, starts)
    by_name = lifetimes.reshape(len(names), -1, config.orders, config.starts)
    return Outcome(
        params,
        pairs,
        counts,
        {name: np.minimum(count, limits) for name, count in counts.items()},
        dict(zip(names, by_name, strict=True)),
    )
