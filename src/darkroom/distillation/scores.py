"""What is said of agents that learned in their context: means over episodes, with intervals over tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = (2.5, 97.5)  # percentiles
BLOCK = 5  # episodes that are averaged: one says little
SOLVED = 0.8  # normalised return from which on a task counts as solved


@dataclass(frozen=True)
class Line:
    """A curve of in-context learning.

    Attributes:
        label: What it is of.
        steps: Environment steps of a task until the end of each episode, float [episodes].
        curve: Normalised return of each episode, float [episodes].
        low, high: Its interval.
    """

    label: str
    steps: np.ndarray
    curve: np.ndarray
    low: np.ndarray
    high: np.ndarray


def label_of(name: str) -> str:
    """Words for the name of a part: `held_out_9` is "9 × 9, held-out"."""
    part, _, size = name.rpartition("_")
    return f"{size} × {size}, {part.replace('_', '-')}"


@dataclass(frozen=True)
class Learned:
    """Agents of some tasks over their episodes.

    Attributes:
        size: Side of the rooms.
        part: What the tasks are to the transformer: `held_out`, `validation`, `training`; in rooms of a size that it
            was not trained on, `shown_offset` or `unseen_offset`.
        goals: Cells, int [T].
        values: Normalised return of each episode, float64 [T, copies, episodes].
        lengths: Its steps, float [T, copies, episodes].
        met: Whether the goal paid in this episode or in one before, bool [T, copies, episodes].
        chance: That random actions meet the goal in an episode, float [T].
    """

    size: int
    part: str
    goals: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    met: np.ndarray
    chance: np.ndarray

    @property
    def name(self) -> str:
        """As in names of metrics: `held_out_9`."""
        return f"{self.part}_{self.size}"

    def curve(self) -> np.ndarray:
        """Mean over tasks and copies by episode, float64 [episodes]."""
        return self.values.mean(axis=(0, 1))

    def steps(self) -> np.ndarray:
        """Environment steps of a task until the end of each episode, means, float64 [episodes]."""
        return self.lengths.mean(axis=(0, 1), dtype=np.float64).cumsum()

    def band(self) -> np.ndarray:
        """Its pointwise interval, float64 [2, episodes]."""
        return interval(self.values.mean(axis=1))

    def line(self) -> Line:
        """All of that."""
        return Line(label_of(self.name), self.steps(), self.curve(), *self.band())

    def by_goal(self, last: int) -> np.ndarray:
        """Mean over copies and the BLOCK episodes that end with episode `last`, float64 [T]."""
        return self.values[:, :, max(0, last - BLOCK) : last].mean(axis=(1, 2))

    def explored(self) -> np.ndarray:
        """Shares of agents, and of random ones, that met the goal by the end of each episode, float64 [2, episodes]."""
        episodes = np.arange(1, self.met.shape[2] + 1)
        by_chance = 1 - (1 - self.chance[:, None]) ** episodes
        return np.stack([self.met.mean(axis=(0, 1)), by_chance.mean(axis=0)])

    def met_by_middle(self) -> tuple[int, float, float]:
        """The last episode of the middle block; shares of agents, and of random ones, that met the goal by then."""
        middle = middle_of(self.met.shape[2])
        own, by_chance = self.explored()[:, middle - 1]
        return middle, float(own), float(by_chance)


def interval(by_task: np.ndarray, seed: int = 0) -> np.ndarray:
    """Percentile bootstrap (Efron 1979) over tasks of their mean, 95 %.

    Args:
        by_task: float [T, ...].
        seed: Of the resampling: the same numbers give the same interval.

    Returns:
        float64 [2, ...].
    """
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(by_task), np.full(len(by_task), 1 / len(by_task)), RESAMPLES)
    flat = by_task.reshape(len(by_task), -1)
    means = counts @ flat / len(by_task)
    return np.percentile(means, LEVEL, axis=0).reshape(2, *by_task.shape[1:])


def blocks(episodes: int) -> dict[str, int]:
    """The blocks that are told of so many episodes, by the last of each: the first, the middle and the last."""
    ends = sorted({min(BLOCK, episodes), middle_of(episodes), episodes})
    return {f"episodes_{max(1, end - BLOCK + 1)}_{end}": end for end in ends if end <= episodes}


def middle_of(episodes: int) -> int:
    """The last episode of the middle block."""
    return min(episodes, max(BLOCK, episodes // 2 // BLOCK * BLOCK))


def steps_to(steps: np.ndarray, curve: np.ndarray, level: float = SOLVED) -> float:
    """Returns after how many steps a curve first reaches a level; infinity if it never does."""
    reached = np.flatnonzero(curve >= level)
    return float(steps[reached[0]]) if len(reached) else float("inf")


def metrics(learned: Learned) -> dict[str, float]:
    """Means by block with intervals, the last block's worst task, how many are solved, how many met their goal."""
    episodes = learned.values.shape[2]
    found = {f"{learned.name}/episode_1": float(learned.values[:, :, 0].mean())}
    for name, end in blocks(episodes).items():
        by_goal = learned.by_goal(end)
        low, high = interval(by_goal)
        found[f"{learned.name}/{name}"] = float(by_goal.mean())
        found |= {
            f"{learned.name}/{name}_low": float(low),
            f"{learned.name}/{name}_high": float(high),
        }
    last = learned.by_goal(episodes)
    found[f"{learned.name}/worst"] = float(last.min())
    found[f"{learned.name}/solved"] = float((last >= SOLVED).mean())
    middle, own, by_chance = learned.met_by_middle()
    met_by = f"{learned.name}/met_by_{middle}"
    return found | {met_by: own, f"{met_by}_random": by_chance}


def table(parts: list[Learned]) -> dict[str, list]:
    """The same as texts, a row for each part."""
    names = blocks(parts[0].values.shape[2])
    columns = ["rooms", "tasks", "episode 1"]
    columns += ["episodes {1}–{2}".format(*name.split("_")) for name in names]
    middle = middle_of(parts[0].values.shape[2])
    columns += ["worst task", f"tasks at {SOLVED}", f"met the goal by {middle} (random)"]
    rows = []
    for learned in parts:
        row = [
            label_of(learned.name),
            str(len(learned.goals)),
            f"{learned.values[:, :, 0].mean():.3f}",
        ]
        for end in names.values():
            by_goal = learned.by_goal(end)
            low, high = interval(by_goal)
            row.append(f"{by_goal.mean():.3f} [{low:.3f}, {high:.3f}]")
        last = learned.by_goal(learned.values.shape[2])
        row += [f"{last.min():.2f}", f"{(last >= SOLVED).sum()} of {len(last)}"]
        _, own, by_chance = learned.met_by_middle()
        row.append(f"{own:.2f} ({by_chance:.2f})")
        rows.append(row)
    return {"columns": columns, "rows": rows}
