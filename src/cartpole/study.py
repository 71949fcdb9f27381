"""Train a grid of CartPole configurations with many seeds in one run.

A flag with several values, separated by spaces, is a dimension of the grid.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cartpole.policy_gradient import figures, summary
from cartpole.policy_gradient.grid import GridConfig, configurations, references
from cartpole.policy_gradient.options import PolicyGradientConfig
from cartpole.policy_gradient.reinforce import RunSettings
from cartpole.policy_gradient.workers import Job, TrainedRun, split_jobs, train_jobs
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.journal.files import read_json, write_json


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
        pieces = run.directory / "pieces"
        jobs = split_jobs(jobs_of(config, points), first_processes(pieces, processes))
        runs = sum(len(job.settings) for job in jobs)
        run.event(
            f"{len(points)} configurations x {config.seeds} seeds = {runs} runs, "
            f"{len(jobs)} batches on {min(processes, len(jobs))} processes"
        )
        trained = train_jobs(
            jobs,
            processes,
            pieces,
            lambda share: run.progress(round(100 * share, 1), 100, "per cent"),
        )
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
        return run.finish(summary.result_of(summaries, references(points)))


def first_processes(folder: Path, processes: int) -> int:
    """Return the number of processes at the run's start: another division would train finished jobs again."""
    path = folder / "division.json"
    if (saved := read_json(path)) is None:
        folder.mkdir(exist_ok=True)
        saved = {"processes": processes}
        write_json(path, saved)
    return int(saved["processes"])


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


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
