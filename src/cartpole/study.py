"""Train a grid of CartPole configurations with many seeds in one run.

A flag with several values, separated by spaces, is a dimension of the grid.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cartpole.policy_gradient import figures, summary
from cartpole.policy_gradient.grid import GridConfig, configurations
from cartpole.policy_gradient.options import PolicyGradientConfig
from cartpole.policy_gradient.reinforce import RunSettings
from cartpole.policy_gradient.workers import Job, TrainedRun, split_jobs, train_jobs
from runcatalog import record
from runcatalog.record import option

CONSOLE_SECONDS = 15.0  # between two lines on the terminal
SPEED_SECONDS = 60.0  # window of the measured speed: updates get slower as episodes get longer


@dataclass(frozen=True)
class Config(GridConfig):
    """Flags of `pg:compare`, `pg:entropy`, `pg:lr`, `pg:gamma`, `pg:variants`, `pg:seeds`, `pg:fastest`."""

    seeds: int = option(
        20, "seeds of each configuration, from `seed` on; source: 1", low=1, high=1000
    )
    processes: int = option(0, "processes; 0: one per core", low=0, high=256, resumable=True)


def main(config: Config) -> dict[str, Any]:
    """Train all configurations with all seeds and return the run's result."""
    with record.start(config, study="cartpole") as run:
        points = configurations(config)
        processes = config.processes or len(os.sched_getaffinity(0))
        jobs = split_jobs(jobs_of(config, points), processes)
        runs = sum(len(job.settings) for job in jobs)
        run.event(
            f"{len(points)} configurations x {config.seeds} seeds = {runs} runs, "
            f"{len(jobs)} batches on {min(processes, len(jobs))} processes"
        )
        trained = train_jobs(jobs, processes, run.directory / "pieces", ProgressReporter(run))
        summaries = [
            summary.summarise(name, point.batch, episode_lengths(config, point, trained))
            for name, point in points.items()
        ]
        summary.log(run, summaries)
        summary.write(run, summaries, config.seed)
        figures.draw(run, summaries)
        run.digest_weights(final_policies(config, points, trained))
        chosen = f"best of {len(points)} configurations" if len(points) > 1 else ""
        run.declare_evaluation("training", "all episodes of the trainings", chosen=chosen)
        return run.finish(summary.result_of(summaries))


def jobs_of(config: Config, points: Mapping[str, PolicyGradientConfig]) -> list[Job]:
    """Return one job for all runs with the same numbers of episodes per update and of updates."""
    batches: dict[tuple[int, int], list[RunSettings]] = {}
    for point in points.values():
        key = (point.batch, point.update_count)
        batches.setdefault(key, []).extend(settings_of(config, point))
    return [
        Job(tuple(settings), config.widths, batch, updates)
        for (batch, updates), settings in batches.items()
    ]


def settings_of(config: Config, point: PolicyGradientConfig) -> list[RunSettings]:
    """Return the settings of a configuration's runs, one per seed."""
    return [replace(point.run_settings, seed=config.seed + i) for i in range(config.seeds)]


def episode_lengths(
    config: Config, point: PolicyGradientConfig, trained: Mapping[RunSettings, TrainedRun]
) -> np.ndarray:
    """Return a configuration's episode lengths [seeds, N], N its budget in episodes."""
    lengths = [trained[settings].lengths for settings in settings_of(config, point)]
    return np.stack(lengths)[:, : point.episode_count]


def final_policies(
    config: Config,
    points: Mapping[str, PolicyGradientConfig],
    trained: Mapping[RunSettings, TrainedRun],
) -> dict[str, np.ndarray]:
    """Return the final policies of all runs, for the digest."""
    tensors = {}
    for name, point in points.items():
        policies = [trained[settings].policy for settings in settings_of(config, point)]
        for key in policies[0]:
            tensors[f"{name}.{key}"] = np.stack([policy[key] for policy in policies])
    return tensors


class ProgressReporter:
    """Reports progress to the run, and on the terminal the remaining time every CONSOLE_SECONDS."""

    def __init__(self, run: record.Run) -> None:
        self._run = run
        self._history: deque[tuple[float, float]] = deque()  # (time, completed share)
        self._last_line = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        self._history.append((now, share))
        while now - self._history[0][0] > SPEED_SECONDS:
            self._history.popleft()
        self._run.progress(round(100 * share, 1), 100, "per cent")
        if now - self._last_line > CONSOLE_SECONDS:
            self._last_line = now
            self._run.event(f"{100 * share:.0f} % of the updates{self._remaining(share)}")

    def _remaining(self, share: float) -> str:
        (since, before), (now, _) = self._history[0], self._history[-1]
        if share <= before:
            return ""
        seconds = (1 - share) * (now - since) / (share - before)
        return f", about {int(seconds // 60)} min {int(seconds % 60):02d} s left"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
