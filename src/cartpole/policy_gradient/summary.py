"""Summary of a study: learning curves for the journal, a table with intervals, a sentence, the objective."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cartpole.policy_gradient import seed_statistics as statistics
from cartpole.policy_gradient.convergence import (
    NO_PLATEAU,
    moving_mean,
    plateau_episode,
    search_cost,
)
from runcatalog import record
from runcatalog.model.statistics import wilson
from runcatalog.numbers import number

MARKS = (2000, 5000)  # episodes; the source's sweeps end at 2,000, its main comparison at 5,000
CURVE_POINTS = 100
QUARTILES = (0.25, 0.75)
MAX_ORDERED = 5  # with more configurations, any single order is too improbable to report
NO_PLATEAU_KEY = 1e9  # sorts after every plateau


@dataclass(frozen=True)
class Summary:
    """Results of one configuration over its seeds.

    Attributes:
        name: Its name in the grid.
        batch: Episodes of one update.
        lengths: Episode lengths, int [S, N].
        mean: Mean length of the last 100 episodes, float64 [S, N].
        plateau: Episode of the plateau, int [S]; NO_PLATEAU without one.
    """

    name: str
    batch: int
    lengths: np.ndarray
    mean: np.ndarray
    plateau: np.ndarray

    @property
    def episodes(self) -> int:
        """Budget in episodes."""
        return self.lengths.shape[1]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.lengths)

    @property
    def reached(self) -> int:
        """Number of seeds with a plateau."""
        return int((self.plateau != NO_PLATEAU).sum())

    @property
    def episodes_to_plateau(self) -> np.ndarray:
        """Episodes to the plateau, float64 [S]; infinite without one."""
        return np.where(self.plateau == NO_PLATEAU, np.inf, self.plateau)

    @property
    def updates_to_plateau(self) -> np.ndarray:
        """Updates to the plateau, float64 [S]; infinite without one."""
        return np.ceil(self.episodes_to_plateau / self.batch)

    def score_at(self, episode: int) -> np.ndarray:
        """Return the mean length of the 100 episodes up to this one, float64 [S]."""
        return self.mean[:, episode - 1]

    def rank_key(self, episodes: int, unit: int = 1) -> np.ndarray:
        """Return sort keys, float64 [S]: the plateau within the first `episodes`, divided by `unit`.

        Seeds without a plateau sort after all others, by the mean length of their last 100 episodes.
        """
        reached = plateau_episode(self.lengths[:, :episodes])
        without = NO_PLATEAU_KEY + 500 - self.score_at(episodes)
        return np.where(reached == NO_PLATEAU, without, reached / unit)


def summarise(name: str, batch: int, lengths: np.ndarray) -> Summary:
    """Return the summary of a configuration with these episode lengths [S, N] and episodes per update."""
    return Summary(name, batch, lengths, moving_mean(lengths), plateau_episode(lengths))


def log(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Log learning curves over seeds: interquartile mean, median and quartiles.

    The step is the number of episodes, and the number of updates for `NAME/by_update/…`.
    """
    for summary in summaries:
        for episode in curve_episodes(summary):
            values = summary.score_at(int(episode))
            low, high = np.quantile(values, QUARTILES)
            curve = {
                "iqm": statistics.iqm(values), "median": np.median(values), "q25": low, "q75": high
            }  # fmt: skip
            metrics = {f"{summary.name}/length_{key}": float(v) for key, v in curve.items()}
            run.log(metrics, step=int(episode))
            if episode % summary.batch == 0:
                by_update = {f"{summary.name}/by_update/length_iqm": float(curve["iqm"])}
                run.log(by_update, step=int(episode) // summary.batch)
    # A search minimises the metric with the objective's name.
    run.log({"episodes_to_plateau": min(costs(summaries).values())}, step=summaries[0].episodes)


def curve_episodes(summary: Summary) -> np.ndarray:
    """Return the episodes of a curve's points: evenly over the budget, and over its first 5,000."""
    spans = {min(summary.episodes, MARKS[-1]), summary.episodes}
    even = [np.linspace(0, span, CURVE_POINTS + 1)[1:] for span in spans]
    return np.unique(np.maximum(np.concatenate(even).round(), 1).astype(int))


def write(run: record.Run, summaries: Sequence[Summary], first_seed: int) -> None:
    """Write the results of all seeds to artifacts: a table, and the lengths of all episodes."""
    per_seed = {
        summary.name: {
            "seeds": [first_seed + i for i in range(summary.seeds)],
            "episodes_per_update": summary.batch,
            "plateau_episode": [int(v) if v != NO_PLATEAU else None for v in summary.plateau],
            "last_100": summary.mean[:, -1].round(2).tolist(),
        }
        for summary in summaries
    }
    run.artifact("seeds.json").write_text(json.dumps(per_seed, indent=1) + "\n")
    lengths = {summary.name: summary.lengths.astype(np.int16) for summary in summaries}
    np.savez_compressed(run.artifact("lengths.npz"), **lengths)


def costs(summaries: Sequence[Summary]) -> dict[str, float]:
    """Return the median over seeds of `convergence.search_cost` by configuration."""
    return {s.name: float(statistics.median(search_cost(s.lengths))) for s in summaries}


def result_of(summaries: Sequence[Summary], references: Mapping[str, str]) -> dict[str, Any]:
    """Return the run's result; the objective is that of the best configuration.

    Args:
        summaries: The configurations.
        references: Name of the configuration that another one is compared with, by the name of the latter.
    """
    cost_by_name = costs(summaries)
    return {
        "objective": {
            "name": "episodes_to_plateau",
            "value": min(cost_by_name.values()),
            "kind": "mean",
            "count": summaries[0].seeds,
            "goal": "min",
        },
        "summary": sentence(summaries),
        "table": table(summaries, references),
        "metrics": {f"{name}/cost": value for name, value in cost_by_name.items()},
        "env_steps": int(sum(int(s.lengths.sum(dtype=np.int64)) for s in summaries)),
    }


def sentence(summaries: Sequence[Summary]) -> str:
    """Return medians with intervals, counts of seeds, and the order with its probability, as one sentence."""
    seeds = summaries[0].seeds
    parts = [f"{s.name} {_plateau(s)} ({s.reached} of {seeds})" for s in summaries]
    text = f"episodes to plateau, median of {seeds} seeds: " + ", ".join(parts)
    if 1 < len(summaries) <= MAX_ORDERED:
        text += f"; {order(summaries, by='episode')}"
        if len({summary.batch for summary in summaries}) > 1:
            text += f"; {order(summaries, by='update')}"
    return text


def order(summaries: Sequence[Summary], by: str) -> str:
    """Return the most probable order of the plateaus within the smallest budget, and its probability.

    Args:
        summaries: The configurations.
        by: Unit of budget and plateau, "episode" or "update".
    """
    if by == "episode":
        budget = min(s.episodes for s in summaries)
        keys = {s.name: s.rank_key(budget) for s in summaries}
    else:
        budget = min(s.episodes // s.batch for s in summaries)
        keys = {s.name: s.rank_key(budget * s.batch, s.batch) for s in summaries}
    names, probability = statistics.most_frequent_order(keys)
    return f"by {by}s, first {budget}: {' < '.join(names)} (probability {_share(probability)})"


def table(summaries: Sequence[Summary], references: Mapping[str, str]) -> dict[str, Any]:
    """Return the table, one row per configuration; arguments as :func:`result_of`'s."""
    by_name = {summary.name: summary for summary in summaries}
    batches = any(s.batch > 1 for s in summaries)
    marks = [m for m in MARKS if m < min(s.episodes for s in summaries)]
    columns = ["configuration", "seeds with a plateau", "episodes to plateau (median)"]
    columns += ["paired difference"] if references else []
    columns += ["updates to plateau (median)"] if batches else []
    columns += [f"mean length at episode {mark} (IQM)" for mark in marks]
    columns += ["mean length at the end (IQM)", "episodes"]
    rows = []
    for s in summaries:
        low, high = wilson(s.reached, s.seeds)
        row = [s.name, f"{s.reached} of {s.seeds} [{_percent(low)}, {_percent(high)}] %"]
        row.append(_plateau(s))
        if references:
            row.append(_difference(by_name[references[s.name]], s) if s.name in references else "")
        row += [_median(s.updates_to_plateau)] if batches else []
        row += [_iqm(s.score_at(mark)) for mark in [*marks, s.episodes]]
        rows.append([*row, str(s.episodes)])
    return {"columns": columns, "rows": rows}


def _plateau(summary: Summary) -> str:
    return _median(summary.episodes_to_plateau)


def _difference(reference: Summary, summary: Summary) -> str:
    """Return the difference of the medians, with its interval over seeds: "−383 [−900, 100]"."""
    pair = reference.episodes_to_plateau, summary.episodes_to_plateau
    if np.isinf([statistics.median(episodes) for episodes in pair]).all():
        return "both never"
    value, (low, high) = statistics.paired_difference(*pair)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _median(values: np.ndarray) -> str:
    low, high = statistics.bootstrap_interval(values)
    middle = _count(float(statistics.median(values)))
    return f"{middle} [{_count(low)}, {_count(high)}]" if math.isfinite(low) else middle


def _iqm(values: np.ndarray) -> str:
    low, high = statistics.bootstrap_interval(values, statistics.iqm)
    return f"{float(statistics.iqm(values)):.0f} [{low:.0f}, {high:.0f}]"


def _count(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "never"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _share(probability: float) -> str:
    """Return a probability from 10,000 resamples with two digits, never rounded to 1."""
    return "> 0.99" if probability > 0.99 else f"{probability:.2f}"
