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
from runcatalog.plots import style
from runcatalog.plots.palette import Palette
from runcatalog.plots.style import GREY, dress, sheet


def draw(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw all figures into the run; a failure is logged and does not fail the run."""
    with record.optional(run, "figure"):
        learning_curves(run, summaries)
        profiles(run, summaries)


def learning_curves(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw the median over seeds with quartiles, by episodes and by updates: `learning_curves.svg`."""
    with _panels(run, "learning_curves.svg", 1 if len(summaries) <= 6 else 1.3) as axes:
        strokes = _strokes(summaries)
        for summary in summaries:
            steps = curve_episodes(summary)
            scores = np.stack([summary.score_at(int(step)) for step in steps])
            low, middle, high = np.quantile(scores, (QUARTILES[0], 0.5, QUARTILES[1]), axis=1)
            for axis, x in ((axes[0], steps), (axes[1], steps / summary.batch)):
                stroke = strokes[summary.name]
                style.series(axis, x, middle, summary.name, label=summary.name, **stroke)
                style.band(axis, x, low, high, stroke["color"])
        for axis, name in zip(axes, ("episodes", "updates"), strict=True):
            axis.set_xlabel(name)
            axis.set_ylabel("mean length of the last 100 episodes")
            for level in (REACHED, KEPT):
                axis.axhline(level, color=GREY, linewidth=0.6, linestyle=":")
        # The range that all configurations cover; those with larger batches continue far beyond it.
        axes[0].set_xlim(0, 2 * min(s.episodes for s in summaries))
        handles, _ = axes[0].get_legend_handles_labels()
        axes[0].legend(handles=[*handles, style.band_key("quartiles of seeds")])


def profiles(run: record.Run, summaries: Sequence[Summary]) -> None:
    """Draw performance profiles after an equal number of episodes and at the end: `performance_profiles.svg`."""
    common = min(s.episodes for s in summaries)
    with _panels(run, "performance_profiles.svg") as axes:
        thresholds = np.linspace(0, MAX_STEPS, 101)
        strokes = _strokes(summaries)
        for summary in summaries:
            for axis, episode in ((axes[0], common), (axes[1], summary.episodes)):
                shares, band = statistics.performance_profile(summary.score_at(episode), thresholds)
                stroke = strokes[summary.name]
                shares, band = 100 * np.asarray(shares), 100 * np.asarray(band)
                style.series(axis, thresholds, shares, summary.name, label=summary.name, **stroke)
                style.band(axis, thresholds, *band, stroke["color"])
        for axis, title in zip(axes, (f"after {common} episodes", "at the end"), strict=True):
            axis.set_title(title)
            axis.set_xlabel("length l")
            axis.set_ylabel("seeds with a mean above l [%]")
            axis.set_ylim(-2, 102)
        handles, _ = axes[0].get_legend_handles_labels()
        axes[0].legend(handles=[*handles, style.band_key("95 % band")])


@contextlib.contextmanager
def _panels(run: record.Run, name: str, height: float = 1) -> Iterator[Any]:
    """Yield two axes side by side; the figure becomes an artifact."""
    with sheet(run.artifact(name), (style.WIDTH, 3.5 * height), "cartpole") as figure:
        axes = figure.subplots(1, 2)
        for axis in axes:
            dress(axis)
        yield axes


def _strokes(summaries: Sequence[Summary]) -> dict[str, dict[str, Any]]:
    """Return a colour for each algorithm, and a dash for each of its settings."""
    names = {summary.name: summary.name.partition(" ")[::2] for summary in summaries}
    colours = Palette().colours_of(algorithm for algorithm, _ in names.values())
    dashes = Palette().dashes_of(setting for _, setting in names.values())
    return {
        name: {"color": colours[algorithm], "linestyle": dashes[setting], "linewidth": 1.4}
        for name, (algorithm, setting) in names.items()
    }
