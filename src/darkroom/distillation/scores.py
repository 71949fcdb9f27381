"""Scores of in-context learning: means over episodes, with intervals over tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.rooms import grid
from darkroom.rooms.explorer import explore
from darkroom.rooms.play import Tasks
from runcatalog.model.statistics import t_quantile

RESAMPLES = 10_000
PERCENTILES = (2.5, 97.5)
BLOCK = 5  # episodes of a mean
SOLVED = 0.8  # normalised return at which a task counts as solved


@dataclass(frozen=True)
class LearningCurve:
    """A curve of in-context learning.

    Attributes:
        label: Its label in a figure.
        steps: Environment steps of a task until the end of every episode, float [episodes].
        values: Normalised return of every episode, float [episodes].
        low, high: Its interval, float [episodes].
    """

    label: str
    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def label_of(name: str) -> str:
    """Return the label of a part: `held_out_9` is "9 × 9, held-out"."""
    part, _, size = name.rpartition("_")
    return f"{size} × {size}, {part.replace('_', '-')}"


@dataclass(frozen=True)
class PartScores:
    """Episodes of agents in the tasks of one part of one room size.

    Attributes:
        size: Side of the rooms [cells].
        part: `held_out`, `validation` or `training`; in rooms of a size that was not trained on, `shown_offset` or
            `unseen_offset`.
        goals: Tasks as in :mod:`darkroom.rooms.grid`, int [T].
        returns: Normalised return of every episode, float64 [T, copies, episodes].
        lengths: Steps of every episode, float [T, copies, episodes].
        met: Whether the goal was met in this episode or before, with its key, bool [T, copies, episodes].
        chance: Probability that random actions meet the goal in an episode, float [T].
    """

    size: int
    part: str
    goals: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    met: np.ndarray
    chance: np.ndarray

    @classmethod
    def of(cls, part: str, tasks: Tasks, returns: np.ndarray, lengths: np.ndarray) -> PartScores:
        """Return the scores of episodes in tasks of one size.

        Args:
            part: See above.
            tasks: The tasks, T.
            returns, lengths: Of every episode, float [T, copies, episodes].
        """
        size = int(tasks.sizes[0])
        reached = grid.reached_goal(size, tasks.goals, np.moveaxis(returns, 0, -1))
        met = np.logical_or.accumulate(np.moveaxis(reached, -1, 0), axis=2)
        chance = grid.random_success(size, tasks.goals, tasks.limit)
        return cls(size, part, tasks.goals, tasks.normalised(returns), lengths, met, chance)

    @property
    def name(self) -> str:
        """Prefix of its metrics: `held_out_9`."""
        return f"{self.part}_{self.size}"

    @property
    def episodes(self) -> int:
        """Number of episodes of an agent."""
        return self.returns.shape[2]

    def curve(self) -> np.ndarray:
        """Return the mean over tasks and copies by episode, float64 [episodes]."""
        return self.returns.mean(axis=(0, 1))

    def steps(self) -> np.ndarray:
        """Return the mean environment steps of a task until the end of every episode, float64 [episodes]."""
        return self.lengths.mean(axis=(0, 1), dtype=np.float64).cumsum()

    def band(self) -> np.ndarray:
        """Return the curve's pointwise interval, float64 [2, episodes]."""
        return interval(self.returns.mean(axis=1))

    def learning_curve(self) -> LearningCurve:
        """Return the curve with its interval, steps and label."""
        return LearningCurve(label_of(self.name), self.steps(), self.curve(), *self.band())

    def by_goal(self, last: int) -> np.ndarray:
        """Return the mean over copies and the BLOCK episodes that end with episode `last`, float64 [T]."""
        return self.returns[:, :, max(0, last - BLOCK) : last].mean(axis=(1, 2))

    def explored(self) -> np.ndarray:
        """Return the shares of agents, and of random ones, that have met the goal by episode, float64 [2, episodes]."""
        episodes = np.arange(1, self.episodes + 1)
        by_chance = 1 - (1 - self.chance[:, None]) ** episodes
        return np.stack([self.met.mean(axis=(0, 1)), by_chance.mean(axis=0)])

    def met_by_middle(self) -> tuple[int, float, float]:
        """Return the middle block's last episode, and the shares of agents and random ones that met the goal."""
        middle = middle_of(self.episodes)
        share, by_chance = self.explored()[:, middle - 1]
        return middle, float(share), float(by_chance)


def of_explorers(tasks: Tasks, episodes: int, copies: int, rng: np.random.Generator) -> PartScores:
    """Return the scores of scripted explorers in tasks of one size; arguments as :func:`explore`'s."""
    return PartScores.of("explorer", tasks, *explore(tasks, episodes, copies, rng))


def interval(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the 95 % percentile bootstrap interval (Efron 1979) of the mean over tasks, float64 [2, ...].

    Args:
        values: float [T, ...].
        seed: Seed of the resampling: the same numbers give the same interval.
    """
    rng = np.random.default_rng(seed)
    shares = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES)
    means = shares / len(values) @ values.reshape(len(values), -1)
    return np.percentile(means, PERCENTILES, axis=0).reshape(2, *values.shape[1:])


def interval_over_splits(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Return Student's 95 % interval of the mean over trainings, float64 [2, ...]; NaN for a single training.

    Trainings of one split share their tasks. With several splits it is therefore that of the means of splits.

    Args:
        values: float [trainings, ...]; as many of each split.
        splits: Split of every training, int [trainings].
    """
    names = np.unique(splits)
    if len(names) > 1:
        values = np.stack([values[splits == name].mean(axis=0) for name in names])
    if len(values) == 1:
        return np.full((2, *values.shape[1:]), np.nan)
    half = t_quantile(len(values) - 1) * values.std(axis=0, ddof=1) / len(values) ** 0.5
    return np.stack([values.mean(axis=0) - half, values.mean(axis=0) + half])


def blocks(episodes: int) -> dict[str, int]:
    """Return the last episode of the first, the middle and the last block, by the block's name."""
    ends = sorted({min(BLOCK, episodes), middle_of(episodes), episodes})
    return {f"episodes_{max(1, end - BLOCK + 1)}_{end}": end for end in ends if end <= episodes}


def last_block(episodes: int) -> str:
    """Return the name of the last block."""
    return list(blocks(episodes))[-1]


def middle_of(episodes: int) -> int:
    """Return the last episode of the middle block."""
    return min(episodes, max(BLOCK, episodes // 2 // BLOCK * BLOCK))


def steps_to(steps: np.ndarray, curve: np.ndarray, level: float = SOLVED) -> float:
    """Return the steps after which a curve first reaches a level; infinity if it never does."""
    reached = np.flatnonzero(curve >= level)
    return float(steps[reached[0]]) if len(reached) else float("inf")


def metrics(scores: PartScores) -> dict[str, float]:
    """Return means by block with intervals, and worst task, solved share and share that met its goal at the end."""
    prefix, last = scores.name, scores.by_goal(scores.episodes)
    values = {f"{prefix}/episode_1": float(scores.returns[:, :, 0].mean())}
    for name, end in blocks(scores.episodes).items():
        by_goal = scores.by_goal(end)
        low, high = interval(by_goal)
        values[f"{prefix}/{name}"] = float(by_goal.mean())
        values[f"{prefix}/{name}_low"] = float(low)
        values[f"{prefix}/{name}_high"] = float(high)
    values[f"{prefix}/worst"] = float(last.min())
    values[f"{prefix}/solved"] = float((last >= SOLVED).mean())
    middle, share, by_chance = scores.met_by_middle()
    values[f"{prefix}/met_by_{middle}"] = share
    values[f"{prefix}/met_by_{middle}_random"] = by_chance
    return values


def table(parts: list[PartScores]) -> dict[str, list[Any]]:
    """Return the same numbers as texts, a row per part."""
    episodes = parts[0].episodes
    ends = blocks(episodes)
    columns = ["rooms", "tasks", "episode 1"]
    columns += ["episodes {1}–{2}".format(*name.split("_")) for name in ends]
    middle = middle_of(episodes)
    columns += ["worst task", f"tasks at {SOLVED}", f"met the goal by {middle} (random)"]
    return {"columns": columns, "rows": [_row(scores, list(ends.values())) for scores in parts]}


def _row(scores: PartScores, ends: list[int]) -> list[str]:
    row = [label_of(scores.name), str(len(scores.goals)), f"{scores.returns[:, :, 0].mean():.3f}"]
    for end in ends:
        by_goal = scores.by_goal(end)
        low, high = interval(by_goal)
        row.append(f"{by_goal.mean():.3f} [{low:.3f}, {high:.3f}]")
    last = scores.by_goal(scores.episodes)
    _, share, by_chance = scores.met_by_middle()
    row += [f"{last.min():.2f}", f"{(last >= SOLVED).sum()} of {len(last)}"]
    return [*row, f"{share:.2f} ({by_chance:.2f})"]
