"""Figures of a policy-gradient study, drawn into its run: learning curves and performance profiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cartpole.policy_gradient import seed_statistics as intervals
from cartpole.policy_gradient.convergence import HELD, REACHED
from cartpole.policy_gradient.env import MAX_STEPS
from cartpole.policy_gradient.summary import QUARTILES, Summary, grid
from runcatalog import record
from runcatalog.plots.style import COLOURS, GREY, dress, sheet

LINES = ("-", "--", ":")


def draw(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draws all figures; one that cannot be drawn is a remark, never the end of a run."""
    with record.optional(run, "figure"):
        learning_curves(run, summaries)
        profiles(run, summaries)


def learning_curves(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Median over seeds with quartile band, by episodes and by updates: `learning_curves.svg`."""
    with _panels(run, "learning_curves.svg", 1 if len(summaries) <= 6 else 1.3) as axes:
        for i, each in enumerate(summaries):
            steps = grid(each)
            scores = np.stack([each.score_at(int(step)) for step in steps])
            low, middle, high = np.quantile(scores, (QUARTILES[0], 0.5, QUARTILES[1]), axis=1)
            for axis, x in ((axes[0], steps), (axes[1], steps / each.batch)):
                axis.plot(x, middle, label=each.name, **_style(i))
                axis.fill_between(x, low, high, color=_style(i)["color"], alpha=0.15, linewidth=0)
        for axis, name in zip(axes, ("episodes", "updates"), strict=True):
            axis.set_xlabel(name)
            axis.set_ylabel("mean length of the last 100 episodes")
            for level in (REACHED, HELD):
                axis.axhline(level, color=GREY, linewidth=0.6, linestyle=":")
        # Side by side where all have been: further right only those with larger batches go on.
        axes[0].set_xlim(0, 2 * min(each.episodes for each in summaries))
        axes[0].legend(fontsize=8)


def profiles(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Share of seeds above each length, at an equal number of episodes and at the end."""
    common = min(each.episodes for each in summaries)
    with _panels(run, "performance_profiles.svg") as axes:
        thresholds = np.linspace(0, MAX_STEPS, 101)
        for i, each in enumerate(summaries):
            for axis, episode in ((axes[0], common), (axes[1], each.episodes)):
                shares, band = intervals.profile(each.score_at(episode), thresholds)
                axis.plot(thresholds, shares, label=each.name, **_style(i))
                axis.fill_between(
                    thresholds, *band, color=_style(i)["color"], alpha=0.12, linewidth=0
                )
        for axis, title in zip(axes, (f"after {common} episodes", "at the end"), strict=True):
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("length l")
            axis.set_ylabel("share of seeds with a mean above l")
            axis.set_ylim(-0.02, 1.02)
        axes[0].legend(fontsize=8)


@contextlib.contextmanager
def _panels(run: record.Run, name: str, height: float = 1) -> Iterator[Any]:
    """Two axes beside each other, which become an artifact."""
    with sheet(run.artifact(name), (11, 3.8 * height), "cartpole") as figure:
        axes = figure.subplots(1, 2)
        for axis in axes:
            dress(axis)
        yield axes


def _style(i: int) -> dict[str, Any]:
    line = LINES[i // len(COLOURS) % len(LINES)]
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": line, "linewidth": 1.4}
