"""Summary of rounds of new labels: which clones failed at first, and how many labels made them successful.

A clone is successful in a round if it survives the target share of starts then and in the rounds that follow, LASTING
rounds in all. These starts decide, so a clone may owe its success to them: of other starts, the test's, it has to
survive the target share, too, on average over the same rounds. In metrics and tables, `broken` counts the clones that
failed before the first round, `mended_by_deciding_starts` those of them that became successful, `mended` those that
the test confirms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cartpole.cloning.dagger import RESTRICTED, DaggerConfig
from cartpole.policy_gradient import seed_statistics as statistics
from runcatalog import record
from runcatalog.numbers import wilson

LASTING = (
    3  # rounds in a row: clones are trained anew in every round, so a single success may be chance
)


class RoundHistory:
    """Survival and number of labels of all clones, before and after every round.

    Clones are stacked over (restriction, expert, order).
    """

    def __init__(self, config: DaggerConfig, run: record.Run) -> None:
        self._config, self._run = config, run
        self._shares: list[np.ndarray] = []  # of starts survived, float64 [R], per round
        self._tested: list[np.ndarray] = []  # the same of the test's starts
        self._labels: list[np.ndarray] = []  # new labels so far, int [R], per round

    def add(
        self,
        round_: int,
        shares: np.ndarray,
        tested: np.ndarray,
        labels: np.ndarray,
        noise: np.ndarray,
    ) -> None:
        """Add and log the state after `round_` rounds.

        Args:
            round_: Number of completed rounds.
            shares: Of the deciding starts survived, float64 [R].
            tested: Of the test's starts survived, float64 [R].
            labels: New labels so far, int [R].
            noise: DART's epsilon, float64 [R].
        """
        self._shares.append(shares)
        self._tested.append(tested)
        self._labels.append(labels)
        by_name = zip(RESTRICTED, self._by_name(tested), self._by_name(labels), strict=True)
        for name, survived, queried in by_name:
            metrics = {f"survival/{name}": survived.mean(), f"labels/{name}": queried.mean()}
            if self._config.method == "dart":
                metrics["noise"] = noise.mean()
            self._run.log(metrics, round_)
        self._run.event(
            f"round {round_}: {labels.mean():.0f} labels, {100 * tested.mean():.1f} % survive"
        )

    def _by_name(self, values: np.ndarray) -> np.ndarray:
        """Return values [R] as [restrictions, K, J]."""
        return values.reshape(len(RESTRICTED), -1, self._config.orders)

    def result(self, env_steps: int) -> dict[str, Any]:
        """Return the run's result; it logs the labels that every clone needed."""
        config = self._config
        rounds = first_success(np.stack(self._shares), config.target)
        confirmed = confirmed_successes(rounds, np.stack(self._tested), config.target)
        costs, rounds = self._by_name(self._costs(rounds)), self._by_name(rounds)
        broken = rounds[rounds > 0]
        chosen, mended = int(np.isfinite(broken).sum()), int(confirmed.sum())
        final, labels = self._by_name(self._tested[-1]), self._labels[-1]
        metrics = {"broken": broken.size, "mended": mended, "mended_by_deciding_starts": chosen}
        for name, of_clones, survived in zip(RESTRICTED, costs, final, strict=True):
            metrics[f"survival/{name}"] = float(survived.mean())
            for index, cost in enumerate(of_clones.ravel()):
                if np.isfinite(cost):
                    self._run.log({f"{self._unit}_needed/{name}": cost}, index)
        total = f"{labels.mean():,.0f} labels" if labels.any() else "no label"
        return {
            "objective": {
                "name": "mended",
                "value": mended / broken.size if broken.size else 1.0,
                "kind": "rate",
                "count": broken.size or None,
                **self._interval(rounds, confirmed),
                "goal": "max",
                "at": config.rounds,
                "axis": "round",
            },
            "summary": (
                f"{chosen} of {broken.size} clones that failed from more than "
                f"{100 * (1 - config.target):g} % of {config.starts} starts become successful, for at least "
                f"{LASTING} rounds, after {_median(costs, rounds > 0)} {self._unit} (median), and {mended} of "
                f"these from {config.starts} other starts, too; of all {rounds.size}, "
                f"{100 * self._tested[0].mean():.1f} % of the other starts are survived before, "
                f"{100 * final.mean():.1f} % after {config.rounds} rounds and {total}"
            ),
            "metrics": metrics,
            "table": self._table(rounds, costs, self._by_name(confirmed), final),
            "env_steps": env_steps,
        }

    def _interval(self, rounds: np.ndarray, confirmed: np.ndarray) -> dict[str, Any]:
        """Return the interval of the share of mended clones as an entry of the objective; none without broken ones.

        Clones of one expert are not independent, so experts are resampled. Never narrower than Wilson's interval.
        """
        if not (rounds > 0).any():
            return {}
        broken, mended = (self._by_name(v).sum((0, 2)) for v in (rounds > 0, confirmed))
        rows = statistics.resampled(np.arange(len(broken)))
        counts = broken[rows].sum(1)
        shares = (mended[rows].sum(1) / np.maximum(counts, 1))[counts > 0]
        low, high = np.quantile(shares, statistics.LEVEL)
        least, most = wilson(int(mended.sum()), int(broken.sum()))
        return {"interval": [min(float(low), least), max(float(high), most)]}

    @property
    def _unit(self) -> str:
        return "rounds" if self._config.method == "again" else "labels"

    def _costs(self, rounds: np.ndarray) -> np.ndarray:
        """Return each clone's labels before success in these rounds [R] (the rounds themselves without labels)."""
        if self._config.method == "again":
            return rounds
        labels = np.stack([*self._labels, np.full(len(rounds), np.inf)])
        last = np.where(np.isfinite(rounds), rounds, len(labels) - 1).astype(int)
        return labels[last, np.arange(len(rounds))]

    def _table(
        self, rounds: np.ndarray, costs: np.ndarray, confirmed: np.ndarray, final: np.ndarray
    ) -> dict[str, Any]:
        """Return a table with one row per restriction; all arguments [restrictions, K, J]."""
        columns = ["restriction", "survive before", "broken", "successful", "mended"]
        columns += [f"{self._unit}, median of the broken", "survive after"]
        rows = []
        first = self._by_name(self._tested[0])
        for name, successes, of_clones, mended, before, after in zip(
            RESTRICTED, rounds, costs, confirmed, first, final, strict=True
        ):
            broken = successes[successes > 0]
            cells = [name.replace("_", " "), f"{100 * before.mean():.1f} %"]
            cells += [f"{broken.size} of {successes.size}", str(int(np.isfinite(broken).sum()))]
            cells += [str(int(mended.sum()))]
            rows.append([*cells, _median(of_clones, successes > 0), f"{100 * after.mean():.1f} %"])
        return {"columns": columns, "rows": rows}


def first_success(shares: np.ndarray, target: float) -> np.ndarray:
    """Return the round in which each clone becomes successful, float64 [R]; infinite if it does not.

    It is 0 for clones that reach the target before the first round, whatever follows; any other success has to
    last for LASTING rounds.

    Args:
        shares: Of starts survived, before and after each round, [rounds + 1, R].
        target: Share of starts that a successful clone survives.
    """
    reached = shares >= target
    first = np.full(shares.shape[1], np.inf)
    for round_ in range(len(shares) - LASTING, 0, -1):
        first[reached[round_ : round_ + LASTING].all(0)] = round_
    first[reached[0]] = 0
    return first


def confirmed_successes(rounds: np.ndarray, tested: np.ndarray, target: float) -> np.ndarray:
    """Return which clones have become successful, and survive the target share of the test's starts, bool [R].

    Args:
        rounds: See :func:`first_success`; clones that failed at no time do not count.
        tested: Of the test's starts survived, before and after each round, [rounds + 1, R].
        target: Share of starts.
    """
    confirmed = np.zeros(len(rounds), bool)
    for clone in np.flatnonzero((rounds > 0) & np.isfinite(rounds)):
        first = int(rounds[clone])
        shares = tested[first : first + LASTING, clone].tolist()
        confirmed[clone] = record.reached_target(shares, target, LASTING)
    return confirmed


def _median(costs: np.ndarray, broken: np.ndarray) -> str:
    """Return the median cost of the broken clones and its 95 % interval: "987 [494, 1,487]".

    Clones of one expert are not independent, so experts are resampled; of a single expert there is no interval.

    Args:
        costs: [..., K, J]: experts, orders.
        broken: Which clones failed before the first round, bool [..., K, J].
    """
    experts = broken.shape[-2]
    by_expert = np.where(broken, costs, np.nan).swapaxes(0, -2).reshape(experts, -1)
    middle = _medians(by_expert[None])
    if not middle.size:
        return "no"
    ends: tuple[float, ...] = ()
    if experts > 1:
        samples = by_expert[statistics.resampled(np.arange(experts))]
        ends = statistics.percentile_interval(_medians(samples))
    text, *interval = (f"{v:,.0f}" if np.isfinite(v) else "never" for v in (middle[0], *ends))
    return f"{text} [{', '.join(interval)}]" if interval else text


def _medians(samples: np.ndarray) -> np.ndarray:
    """Return the median of each sample [n, ...] without its NaNs, of those that have another value."""
    values = samples.reshape(len(samples), -1)
    return np.nanmedian(values[~np.isnan(values).all(axis=1)], axis=1)
