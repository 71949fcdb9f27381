"""A study's runs, divided over processes: whole lockstep batches, as few and as even as possible.

What a run computes does not depend on the runs beside it, so that the division changes only the time.
"""

from __future__ import annotations

import hashlib
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

from cartpole.policy_gradient.reinforce import Learner, Setting
from runcatalog import record

# Time of a lockstep step: a part that does not depend on the number of poles, and one for each pole, in
# units of the first. Measured with 4-8-4-2 networks on one core; only the division hangs on it.
PER_POLE = 0.003
TELL = 0.5  # s between a worker's signs of progress
CHECKED = 250  # updates between two looks for numbers that are not finite


@dataclass(frozen=True)
class Piece:
    """Runs that are trained in one batch by one process.

    Attributes:
        settings: The runs.
        hidden: Widths of the hidden layers.
        batch: Episodes of one update.
        updates: Updates of each run.
    """

    settings: tuple[Setting, ...]
    hidden: tuple[int, ...]
    batch: int
    updates: int

    @property
    def load(self) -> float:
        """Expected time, in units of PER_POLE's."""
        return self.updates * (1 + PER_POLE * len(self.settings) * self.batch)

    @property
    def key(self) -> str:
        """A name for the file of its outcome."""
        told = repr(
            (*(astuple(each) for each in self.settings), self.hidden, self.batch, self.updates)
        )
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def parts(self, count: int) -> list[Piece]:
        """The piece cut into `count` of about equal size."""
        found = np.array_split(np.arange(len(self.settings)), count)
        return [
            Piece(tuple(self.settings[i] for i in part), self.hidden, self.batch, self.updates)
            for part in found
        ]


@dataclass(frozen=True)
class Outcome:
    """One run's end.

    Attributes:
        lengths: Length of each episode, int16 [N].
        policy: Its final policy, without the run's axis.
    """

    lengths: np.ndarray
    policy: dict[str, np.ndarray]


def divide(pieces: Sequence[Piece], processes: int) -> list[Piece]:
    """Cuts pieces so that `processes` processes are done soonest; the longest pieces come first.

    Cutting has its price, because a step of a small batch takes nearly as long as one of a large batch.
    """

    def total(parts: Sequence[Piece]) -> float:
        loads = [0.0] * processes
        for part in sorted(parts, key=lambda p: -p.load):
            loads[loads.index(min(loads))] += part.load
        return max(loads)

    choices = [range(1, min(processes, len(piece.settings)) + 1) for piece in pieces]
    best = min(
        itertools.product(*choices),
        key=lambda counts: (
            round(total(_cut(pieces, counts)), 6),
            sum(counts),
        ),
    )
    return sorted(_cut(pieces, best), key=lambda p: -p.load)


def _cut(pieces: Sequence[Piece], counts: Sequence[int]) -> list[Piece]:
    return [part for p, count in zip(pieces, counts, strict=True) for part in p.parts(count)]


def train(
    pieces: Sequence[Piece],
    processes: int,
    folder: Path,
    progress: Callable[[float], None],
) -> dict[Setting, Outcome]:
    """Trains all runs; a piece that is already in `folder` is not trained again.

    Args:
        pieces: What to train.
        processes: How many at a time.
        folder: Where outcomes are kept, one file a piece.
        progress: Called now and then with the share of the updates that is done.

    Raises:
        RunFailed: A worker failed; NumericalError if it met a number that is not finite.
    """
    folder.mkdir(exist_ok=True)
    done = {piece: float((folder / f"{piece.key}.npz").exists()) for piece in pieces}
    whole = sum(piece.load for piece in pieces)
    progress(sum(piece.load * share for piece, share in done.items()) / whole)
    for piece, share in _worked([p for p in pieces if not done[p]], processes, folder):
        done[piece] = share
        progress(sum(each.load * at for each, at in done.items()) / whole)
    return {setting: outcome for piece in pieces for setting, outcome in _read(piece, folder)}


def _worked(pieces: Sequence[Piece], processes: int, folder: Path) -> Iterator[tuple[Piece, float]]:
    """Runs the workers; yields (piece, share done) when there is news."""
    waiting, running = list(pieces), {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                piece = waiting.pop(0)
                pipe, process = _started(piece, folder)
                running[pipe] = (piece, process)
            for pipe in wait(list(running)):
                piece, process = running[pipe]
                try:
                    share = _share(pipe.recv())
                except EOFError:  # the worker has ended
                    process.join()
                    if not (folder / f"{piece.key}.npz").exists():
                        raise _end_of(process.exitcode) from None
                    del running[pipe]
                    share = 1.0
                yield piece, share
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _started(piece: Piece, folder: Path) -> tuple[Any, Any]:
    """Starts a worker; returns the pipe on which it tells how far it is, and the process."""
    context = multiprocessing.get_context("spawn")
    pipe, its_end = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(piece, folder, its_end), daemon=True)
    # Small matrices: more threads only get into each other's way.
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
    its_end.close()  # only the worker holds it open, so that its end is seen
    return pipe, process


def _share(told: Any) -> float:
    """What a worker told: the share that it has done; raises if it told of an error."""
    if isinstance(told, float):
        return told
    kind, *more = told
    if kind == "number":
        raise record.NumericalError(*more)
    raise record.RunFailed(f"a worker process failed: {more[0]}")


def _end_of(exit_code: int | None) -> record.RunFailed:
    """The error of a worker that ended without an outcome and without a word."""
    if exit_code == -signal.SIGKILL:
        return record.RunFailed("a worker process was killed (out of memory?)")
    return record.RunFailed(f"a worker process ended with exit code {exit_code}")


def _work(piece: Piece, folder: Path, pipe: Any) -> None:
    """A worker process: trains a piece and writes its outcome."""
    from runcatalog.record.lifecycle.signals import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
    die_with_parent()
    try:
        _train(piece, folder / f"{piece.key}.npz", pipe.send)
    except record.NumericalError as error:
        pipe.send(("number", error.update, error.tensor_name))
    except Exception as error:
        traceback.print_exc()
        pipe.send(("other", f"{type(error).__name__}: {error}"))


def _train(piece: Piece, path: Path, tell: Callable[[float], None]) -> None:
    learner = Learner(piece.settings, piece.hidden, piece.batch)
    lengths = np.zeros((len(piece.settings), piece.updates, piece.batch), np.int16)
    told = time.monotonic()
    for update in range(piece.updates):
        lengths[:, update] = learner.update()
        if time.monotonic() - told > TELL:
            told = time.monotonic()
            tell(update / piece.updates)
        if update % CHECKED == 0 or update == piece.updates - 1:
            record.check_finite(update + 1, learner.tensors())
    temporary = path.with_suffix(".writing")
    with temporary.open("wb") as file:
        np.savez(file, lengths=lengths, **learner.policy)
    temporary.replace(path)


def _read(piece: Piece, folder: Path) -> Iterator[tuple[Setting, Outcome]]:
    with np.load(folder / f"{piece.key}.npz") as found:
        arrays = dict(found)
    lengths = arrays.pop("lengths")
    for row, setting in enumerate(piece.settings):
        policy = {name: value[row] for name, value in arrays.items()}
        yield setting, Outcome(lengths[row].reshape(-1), policy)
