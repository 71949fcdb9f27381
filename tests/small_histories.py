"""Histories of small rooms, and flags of a transformer that learns from them in a moment."""

from pathlib import Path

import numpy as np

from darkroom.a2c import a2c, histories
from runcatalog.record import Seeds

SMALL = {
    "sizes": "4", "window": 24, "width": 8, "layers": 2, "heads": 2, "feed_forward": 16, "updates": 40,
    "batch_size": 4, "evaluations": 2, "episodes": 5, "copies": 1, "save_interval": 10, "warmup": 5,
    "residual_dropout": 0.1, "shift": 1, "stretch": 0.5,
}  # fmt: skip


def recorded(folder: Path, size: int = 4, steps: int = 400, **changes) -> Path:
    """Histories of a run that learned for a moment."""
    goals = np.delete(np.arange(size**2), (size // 2) * (size + 1))
    config = a2c.Settings(
        size=size, limit=6, hidden=8, envs=4, lr=3e-2, terminating=False, **changes
    )
    agents = a2c.SourceAgents(goals, config, Seeds(1))
    about = histories.About(size, config.limit, config.terminating, tuple(goals.tolist()), 1)
    made = histories.Histories.create(folder / "histories", about, 4, steps)
    for begin in range(0, steps, 10):
        made.write(begin, agents.update())
    made.flush()
    return folder
