"""Histories of small rooms, and flags of a small transformer trained on them."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from darkroom.a2c.a2c import SourceAgents
from darkroom.a2c.histories import About, Histories
from darkroom.rooms import grid
from darkroom.train_sources import Config
from runcatalog.record import Seeds

SMALL = {
    "sizes": "4", "window": 24, "width": 8, "layers": 2, "heads": 2, "feed_forward": 16, "updates": 40,
    "batch_size": 4, "evaluations": 2, "episodes": 5, "copies": 1, "save_interval": 10, "warmup": 5,
    "residual_dropout": 0.1, "shift": 1, "stretch": 0.5,
}  # fmt: skip


def recorded(folder: Path, size: int = 4, steps: int = 400) -> Path:
    """Record histories of briefly trained agents in a run's directory, and return it."""
    config = Config(size=size, limit=6, hidden=8, envs=4, lr=3e-2, terminating=False, test_tasks=0)
    recorded_by(config, grid.tasks(size), folder / "histories", steps)
    return folder


def recorded_by(config: Config, goals: np.ndarray, folder: Path, steps: int) -> Histories:
    """Record `steps` of every environment of source agents."""
    agents = SourceAgents(goals, config.settings(), Seeds(1))
    about = About(config.size, config.limit, config.terminating, tuple(map(int, goals)), 1)
    histories = Histories.create(folder, about, config.envs, steps)
    for begin in range(0, steps, config.rollout):
        histories.write(begin, agents.update())
    histories.flush()
    return histories


def run_main(patch: pytest.MonkeyPatch, folder: Path, script: ModuleType, **flags: Any) -> dict:
    """Run a script's `main` with `folder` as its run directory, and return its result file."""
    for name in ("RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD"):
        patch.delenv(name, raising=False)
    patch.setenv("RUN_DIR", str(folder))
    patch.setenv("RECORD_MLFLOW", "off")
    script.main(script.Config(**flags))
    return json.loads((folder / "result.json").read_text())
