"""Worker processes of a study: its runs as a few lockstep batches of about equal load.

A run's result does not depend on the other runs of its batch, so the division affects the time alone.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from cartpole.policy_gradient.reinforce import Learner, RunSettings
from runcatalog import record

# A lockstep step takes a constant time plus a time per pole; this is their ratio, measured with 4-8-4-2
# networks on one core. Only the division depends on it.
COST_PER_POLE = 0.003
PROGRESS_SECONDS = 0.5  # between two progress messages of a worker
CHECK_INTERVAL = 250  # updates between two checks for numbers that are not finite


@dataclass(frozen=True)
class Job:
    """Runs that one process trains in lockstep.

    Attributes:
        settings: One per run.
        hidden: Widths of the hidden layers.
        batch: Episodes of one update.
        updates: Updates of a run.
    """

    settings: tuple[RunSettings, ...]
    hidden: tuple[int, ...]
    batch: int
    updates: int

    @property
    def load(self) -> float:
        """Expected time, in units of a step's constant time."""
        return self.load_of(len(self.settings))

    def load_of(self, runs: int) -> float:
        """Expected time of this many of the runs."""
        return self.updates * (1 + COST_PER_POLE * runs * self.batch)

    @property
    def key(self) -> str:
        """Stem of the file with its result."""
        text = repr(
            (*(astuple(run) for run in self.settings), self.hidden, self.batch, self.updates)
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def split(self, count: int) -> list[Job]:
        """Return `count` jobs with about equal numbers of the runs."""
        parts = np.array_split(np.arange(len(self.settings)), count)
        return [
            Job(tuple(self.settings[i] for i in part), self.hidden, self.batch, self.updates)
            for part in parts
        ]


@dataclass(frozen=True)
class TrainedRun:
    """Result of one run.

    Attributes:
        lengths: Lengths of its episodes, int16 [N].
        policy: Its final policy, without the run's axis.
    """

    lengths: np.ndarray
    policy: dict[str, np.ndarray]


def split_jobs(jobs: Sequence[Job], processes: int) -> list[Job]:
    """Return the split of jobs with which `processes` processes finish soonest, longest jobs first.

    A step of a small batch takes nearly as long as a step of a large batch, so jobs are not split needlessly.
    """

    def total_time(counts: Sequence[int]) -> float:
        loads = [0.0] * processes
        parts = (
            job.load_of(len(job.settings) // count + (i < len(job.settings) % count))
            for job, count in zip(jobs, counts, strict=True)
            for i in range(count)
        )
        for load in sorted(parts, reverse=True):
            heapq.heapreplace(loads, loads[0] + load)  # to the process with least so far
        return max(loads)

    choices = [range(1, min(processes, len(job.settings)) + 1) for job in jobs]
    best = min(
        itertools.product(*choices),
        key=lambda counts: (round(total_time(counts), 6), sum(counts)),
    )
    return sorted(_split_all(jobs, best), key=lambda job: -job.load)


def _split_all(jobs: Sequence[Job], counts: Sequence[int]) -> list[Job]:
    return [part for job, count in zip(jobs, counts, strict=True) for part in job.split(count)]


def train_jobs(
    jobs: Sequence[Job],
    processes: int,
    folder: Path,
    progress: Callable[[float], None],
) -> dict[RunSettings, TrainedRun]:
    """Train all runs; a job whose result is already in `folder` is not trained again.

    Args:
        jobs: The jobs.
        processes: Number of processes at a time.
        folder: Folder of the results, one file per job.
        progress: Called repeatedly with the completed share of the updates.

    Raises:
        RunFailed: A worker failed; NumericalError for a number that is not finite.
    """
    folder.mkdir(exist_ok=True)
    done = {job: float((folder / f"{job.key}.npz").exists()) for job in jobs}
    total = sum(job.load for job in jobs)
    progress(sum(job.load * share for job, share in done.items()) / total)
    for job, share in _run_workers([job for job in jobs if not done[job]], processes, folder):
        done[job] = share
        progress(sum(job.load * share for job, share in done.items()) / total)
    return {setting: trained for job in jobs for setting, trained in _results(job, folder)}


def _run_workers(jobs: Sequence[Job], processes: int, folder: Path) -> Iterator[tuple[Job, float]]:
    """Run the workers; yield (job, completed share) at every message."""
    waiting, running = list(jobs), {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                pipe, process = _start_worker(job, folder)
                running[pipe] = (job, process)
            for pipe in wait(list(running)):
                job, process = running[pipe]
                try:
                    share = _completed_share(pipe.recv())
                except EOFError:  # the worker has ended
                    process.join()
                    if not (folder / f"{job.key}.npz").exists():
                        raise _exit_error(process.exitcode) from None
                    del running[pipe]
                    share = 1.0
                yield job, share
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _start_worker(job: Job, folder: Path) -> tuple[Any, Any]:
    """Start a worker; return the receiving end of its pipe, and the process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, folder, sender), daemon=True)
    # With small matrices, several threads per process slow one another down.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        process.start()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    sender.close()  # only the worker keeps it open, so that its end is noticed
    return receiver, process


def _completed_share(message: Any) -> float:
    """Return the share in a worker's message; raise the error that it reports."""
    if isinstance(message, float):
        return message
    kind, *details = message
    if kind == "number":
        raise record.NumericalError(*details)
    raise record.RunFailed(f"a worker process failed: {details[0]}")


def _exit_error(exit_code: int | None) -> record.RunFailed:
    """Return the error for a worker that ended without a result or an error message."""
    if exit_code == -signal.SIGKILL:
        return record.RunFailed("a worker process was killed (out of memory?)")
    return record.RunFailed(f"a worker process ended with exit code {exit_code}")


def _work(job: Job, folder: Path, pipe: Any) -> None:
    """Main function of a worker process: train a job and write its result."""
    from runcatalog.record.lifecycle.signals import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the terminal's Ctrl-C
    die_with_parent()
    try:
        _train(job, folder / f"{job.key}.npz", pipe.send)
    except record.NumericalError as error:
        pipe.send(("number", error.update, error.tensor_name))
    except Exception as error:
        traceback.print_exc()
        pipe.send(("other", f"{type(error).__name__}: {error}"))


def _train(job: Job, path: Path, progress: Callable[[float], None]) -> None:
    learner = Learner(job.settings, job.hidden, job.batch)
    lengths = np.zeros((len(job.settings), job.updates, job.batch), np.int16)
    last_message = time.monotonic()
    for update in range(job.updates):
        rollout = learner.collect()
        learner.update(rollout)
        lengths[:, update] = rollout.lengths
        if time.monotonic() - last_message > PROGRESS_SECONDS:
            last_message = time.monotonic()
            progress(update / job.updates)
        if update % CHECK_INTERVAL == 0 or update == job.updates - 1:
            record.check_finite(update + 1, learner.tensors())
    temporary = path.with_suffix(".writing")
    with temporary.open("wb") as file:
        np.savez(file, lengths=lengths, **learner.policy)
    temporary.replace(path)


def _results(job: Job, folder: Path) -> Iterator[tuple[RunSettings, TrainedRun]]:
    with np.load(folder / f"{job.key}.npz") as file:
        arrays = dict(file)
    lengths = arrays.pop("lengths")
    for row, setting in enumerate(job.settings):
        policy = {name: value[row] for name, value in arrays.items()}
        yield setting, TrainedRun(lengths[row].reshape(-1), policy)
