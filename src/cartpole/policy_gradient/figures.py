"""Figures of a policy-gradient study: learning curves and performance profiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cartpole.policy_gradient import seed_statistics as statistics
from cartpole.policy_gradient.convergence import KEPT, REACHED
from cartpole.policy_gradient.env import MAX_STEPS
from cartpole.policy_gradient.summary import QUARTILES, Summary, curve_episodes
from runcatalog import record
from runcatalog.plots.style import COLOURS, GREY, dress, sheet

LINES = ("-", "--", ":")


def draw(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw all figures into the run; a failure is logged and does not fail the run."""
    with record.optional(run, "figure"):
        learning_curves(run, summaries)
        profiles(run, summaries)


def learning_curves(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw the median over seeds with quartiles, by episodes and by updates: `learning_curves.svg`."""
    with _panels(run, "learning_curves.svg", 1 if len(summaries) <= 6 else 1.3) as axes:
        for i, summary in enumerate(summaries):
            steps = curve_episodes(summary)
            scores = np.stack([summary.score_at(int(step)) for step in steps])
            low, middle, high = np.quantile(scores, (QUARTILES[0], 0.5, QUARTILES[1]), axis=1)
            for axis, x in ((axes[0], steps), (axes[1], steps / summary.batch)):
                axis.plot(x, middle, label=summary.name, **_style(i))
                axis.fill_between(x, low, high, color=_style(i)["color"], alpha=0.15, linewidth=0)
        for axis, name in zip(axes, ("episodes", "updates"), strict=True):
            axis.set_xlabel(name)
            axis.set_ylabel("mean length of the last 100 episodes")
            for level in (REACHED, KEPT):
                axis.axhline(level, color=GREY, linewidth=0.6, linestyle=":")
        # The range that all configurations cover; those with larger batches continue far beyond it.
        axes[0].set_xlim(0, 2 * min(s.episodes for s in summaries))
        axes[0].legend(fontsize=8)


def profiles(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw performance profiles after an equal number of episodes and at the end: `performance_profiles.svg`."""
    common = min(s.episodes for s in summaries)
    with _panels(run, "performance_profiles.svg") as axes:
        thresholds = np.linspace(0, MAX_STEPS, 101)
        for i, summary in enumerate(summaries):
            for axis, episode in ((axes[0], common), (axes[1], summary.episodes)):
                shares, band = statistics.performance_profile(summary.score_at(episode), thresholds)
                axis.plot(thresholds, shares, label=summary.name, **_style(i))
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
    """Yield two axes side by side; the figure becomes an artifact."""
    with sheet(run.artifact(name), (11, 3.8 * height), "cartpole") as figure:
        axes = figure.subplots(1, 2)
        for axis in axes:
            dress(axis)
        yield axes


def _style(i: int) -> dict[str, Any]:
    line = LINES[i // len(COLOURS) % len(LINES)]
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": line, "linewidth": 1.4}
