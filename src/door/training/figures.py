"""Figures of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runcatalog.plots.style import BLUE, VERMILION, dress, sheet


def learning_curve(
    path: Path, curve: Sequence[tuple[int, int, float]], final: float, worlds: int, title: str
) -> None:
    """Draw the opening rate over decisions.

    Args:
        path: SVG to write.
        curve: (update, decisions, opening rate) on the validation worlds.
        final: Opening rate on the test worlds, drawn at the end.
        worlds: Number of test worlds.
        title: Title of the figure.
    """
    with sheet(path, (6, 3.5), "door") as figure:
        axes = figure.subplots()
        thousands = [steps / 1000 for _, steps, _ in curve]
        rates = [100 * rate for _, _, rate in curve]
        axes.plot(thousands, rates, color=BLUE, marker="o", markersize=3, label="validation worlds")
        if thousands:
            label = f"{worlds} test worlds: {100 * final:.0f} %"
            axes.plot(thousands[-1], 100 * final, "D", color=VERMILION, label=label)
        axes.set(
            xlabel="decisions [thousand]", ylabel="opening rate [%]", ylim=(-3, 103), title=title
        )
        dress(axes)
        axes.legend(loc="best")
