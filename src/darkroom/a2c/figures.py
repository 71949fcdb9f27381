"""Figures of source agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from darkroom.rooms.grid import mean_by_goal
from runcatalog.plots.style import BLUE, VERMILION, WIDTH, dress, sheet

if TYPE_CHECKING:
    from darkroom.a2c.curves import Curves


def source_agents(
    path: Path,
    size: int,
    goals: np.ndarray,
    steps: np.ndarray,
    curves: Curves,
    returns: np.ndarray,
) -> None:
    """Draw every agent's learning curves with their means, and the final returns by goal.

    Args:
        path: SVG to write.
        size: Side of the room [cells].
        goals: Tasks, int [T].
        steps: Environment steps of a task at the points of the curves, int [points].
        curves: Learning curves.
        returns: Mean returns of the final agents, float [T].
    """
    with sheet(path, (WIDTH, 3.2), "darkroom") as figure:
        left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 2.4))
        for axes, name in ((left, "return"), (middle, "length")):
            values = curves.means[name]
            axes.plot(steps / 1000, values, color=BLUE, linewidth=0.4, alpha=0.35)
            known = np.isfinite(values).any(axis=1)
            axes.plot(
                steps[known] / 1000,
                np.nanmean(values[known], axis=1),
                color=VERMILION,
                linewidth=1.8,
            )
            axes.set(xlabel="steps of a task [thousand]", ylabel=f"{name} of an episode")
            dress(axes)
        room = mean_by_goal(size, goals, returns)
        image = right.imshow(room.reshape(size, size), cmap="viridis", vmin=0)
        right.set(title="final return by goal", xlabel="column", ylabel="row")
        figure.colorbar(image, ax=right, shrink=0.8)
