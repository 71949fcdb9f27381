"""What a study says: curves for the journal, a table with intervals, one sentence, one number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.policy_gradient import seed_statistics as intervals
from cartpole.policy_gradient.convergence import NEVER, cost, plateau, recent_mean
from cartpole.policy_gradient.options import PolicyGradientConfig
from runcatalog import record
from runcatalog.model.statistics import wilson

MARKS = (2000, 5000)  # episodes; the source's sweeps end at 2,000, its main comparison at 5,000
CURVE = 100  # points of a curve
QUARTILES = (0.25, 0.75)
ORDERED = 5  # of more configurations no order is told: it would be one of too many
FAR = 1e9  # behind every plateau


@dataclass(frozen=True)
class Summary:
    """One configuration.

    Attributes:
        name: Its name in the grid.
        batch: Episodes of one update.
        lengths: Episode lengths, int [S, N].
        mean: Mean of the last 100, float64 [S, N].
        plateau: Episode of the plateau, int [S]; NEVER without one.
    """

    name: str
    batch: int
    lengths: np.ndarray
    mean: np.ndarray
    plateau: np.ndarray

    @property
    def episodes(self) -> int:
        """Budget."""
        return self.lengths.shape[1]

    @property
    def seeds(self) -> int:
        return len(self.lengths)

    @property
    def reached(self) -> int:
        """Number of seeds with a plateau."""
        return int((self.plateau != NEVER).sum())

    @property
    def episodes_to_plateau(self) -> np.ndarray:
        """float64 [S], infinite without a plateau."""
        return np.where(self.plateau == NEVER, np.inf, self.plateau)

    @property
    def updates_to_plateau(self) -> np.ndarray:
        """The update that the plateau's episode belonged to, float64 [S]."""
        return np.ceil(self.episodes_to_plateau / self.batch)

    def score_at(self, episode: int) -> np.ndarray:
        """Mean length of the last 100 episodes after this many, float64 [S]."""
        return self.mean[:, episode - 1]

    def rank_key(self, episodes: int, unit: int = 1) -> np.ndarray:
        """What an order goes by, float64 [S]: the plateau within the first `episodes`, in units.

        Seeds without one come after all others, by the length of their last 100 episodes.
        """
        found = plateau(self.lengths[:, :episodes])
        return np.where(found == NEVER, FAR + 500 - self.score_at(episodes), found / unit)


def summary(name: str, point: PolicyGradientConfig, lengths: np.ndarray) -> Summary:
    """The summary of a configuration's episode lengths [S, N]."""
    return Summary(name, point.batch, lengths, recent_mean(lengths), plateau(lengths))


def log(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Logs interquartile mean, median and quartiles over seeds by episode, and the mean by update.

    The step is the number of episodes; of `NAME/by_update/…` it is the number of updates.
    """
    for each in summaries:
        for episode in grid(each):
            values = each.score_at(int(episode))
            low, high = np.quantile(values, QUARTILES)
            curve = {
                "iqm": intervals.iqm(values), "median": np.median(values), "q25": low, "q75": high
            }  # fmt: skip
            named = {f"{each.name}/length_{key}": float(v) for key, v in curve.items()}
            run.log(named, step=int(episode))
            if episode % each.batch == 0:
                by_update = {f"{each.name}/by_update/length_iqm": float(curve["iqm"])}
                run.log(by_update, step=int(episode) // each.batch)
    # What a search minimises, under the objective's name.
    run.log({"episodes_to_plateau": min(costs(summaries).values())}, step=summaries[0].episodes)


def grid(each: Summary) -> np.ndarray:
    """Episodes at which curves have points: evenly over the budget, and over its first 5,000."""
    spans = {min(each.episodes, MARKS[-1]), each.episodes}
    even = [np.linspace(0, span, CURVE + 1)[1:] for span in spans]
    return np.unique(np.maximum(np.concatenate(even).round(), 1).astype(int))


def write(run: record.Run, summaries: Sequence[Summary], first_seed: int) -> None:
    """Writes all that there is per seed to artifacts: a table, and the lengths of all episodes."""
    told = {
        each.name: {
            "seeds": [first_seed + i for i in range(each.seeds)],
            "episodes_per_update": each.batch,
            "plateau_episode": [int(v) if v != NEVER else None for v in each.plateau],
            "last_100": each.mean[:, -1].round(2).tolist(),
        }
        for each in summaries
    }
    run.artifact("seeds.json").write_text(json.dumps(told, indent=1) + "\n")
    lengths = {each.name: each.lengths.astype(np.int16) for each in summaries}
    np.savez_compressed(run.artifact("lengths.npz"), **lengths)


def costs(summaries: Sequence[Summary]) -> dict[str, float]:
    """Median over seeds of episodes to the plateau, finite also where seeds have none: `plateau.cost`."""
    return {each.name: float(intervals.median(cost(each.lengths))) for each in summaries}


def result_of(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What the record says; the objective is that of the best configuration."""
    of_each = costs(summaries)
    return {
        "objective": {
            "name": "episodes_to_plateau",
            "value": min(of_each.values()),
            "kind": "mean",
            "count": summaries[0].seeds,
            "goal": "min",
        },
        "summary": sentence(summaries),
        "table": table(summaries),
        "metrics": {f"{name}/cost": value for name, value in of_each.items()},
        "env_steps": int(sum(int(each.lengths.sum(dtype=np.int64)) for each in summaries)),
    }


def sentence(summaries: Sequence[Summary]) -> str:
    """Medians with intervals, shares of seeds, and the order with its probability."""
    seeds = summaries[0].seeds
    parts = [f"{each.name} {_plateau(each)} ({each.reached} of {seeds})" for each in summaries]
    told = f"episodes to plateau, median of {seeds} seeds: " + ", ".join(parts)
    if 1 < len(summaries) <= ORDERED:
        told += f"; {order(summaries, by='episode')}"
        if len({each.batch for each in summaries}) > 1:
            told += f"; {order(summaries, by='update')}"
    return told


def order(summaries: Sequence[Summary], by: str) -> str:
    """The most probable order by plateau within a budget that all have, and its probability."""
    if by == "episode":
        budget = min(each.episodes for each in summaries)
        keys = {each.name: each.rank_key(budget) for each in summaries}
    else:
        budget = min(each.episodes // each.batch for each in summaries)
        keys = {e.name: e.rank_key(budget * e.batch, e.batch) for e in summaries}
    names, probability = intervals.order(keys)
    return f"by {by}s, first {budget}: {' < '.join(names)} (probability {_share(probability)})"


def table(summaries: Sequence[Summary]) -> dict[str, Any]:
    """One row a configuration, as text."""
    batches = any(each.batch > 1 for each in summaries)
    marks = [m for m in MARKS if m < min(each.episodes for each in summaries)]
    columns = ["configuration", "seeds with a plateau", "episodes to plateau (median)"]
    columns += ["updates to plateau (median)"] if batches else []
    columns += [f"mean length at episode {mark} (IQM)" for mark in marks]
    columns += ["mean length at the end (IQM)", "episodes"]
    rows = []
    for each in summaries:
        low, high = wilson(each.reached, each.seeds)
        row = [each.name, f"{each.reached} of {each.seeds} [{_percent(low)}, {_percent(high)}] %"]
        row.append(_plateau(each))
        row += [_median(each.updates_to_plateau)] if batches else []
        row += [_iqm(each.score_at(mark)) for mark in [*marks, each.episodes]]
        rows.append([*row, str(each.episodes)])
    return {"columns": columns, "rows": rows}


def _plateau(each: Summary) -> str:
    return _median(each.episodes_to_plateau)


def _median(values: np.ndarray) -> str:
    low, high = intervals.interval(values)
    shown = _count(float(intervals.median(values)))
    return f"{shown} [{_count(low)}, {_count(high)}]" if math.isfinite(low) else shown


def _iqm(values: np.ndarray) -> str:
    low, high = intervals.interval(values, intervals.iqm)
    return f"{float(intervals.iqm(values)):.0f} [{low:.0f}, {high:.0f}]"


def _count(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "never"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _share(probability: float) -> str:
    """A probability from 10,000 resamples, to two digits; never rounded to 1."""
    return "> 0.99" if probability > 0.99 else f"{probability:.2f}"
