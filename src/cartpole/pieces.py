"""A study's runs, divided over processes: whole lockstep batches, as few and as even as possible.

What a run computes does not depend on the runs beside it, so that the division changes only the time.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import record
from cartpole.learner import Learner, Setting

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
    """Runs the workers; yields (piece, share done), also without news every second."""
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    waiting, running = list(pieces), {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                piece = waiting.pop(0)
                running[piece] = _started(context, piece, folder, news)
            for piece, share in _news(news):
                yield piece, share
            for piece, process in list(running.items()):
                if process.is_alive():
                    continue
                if not (folder / f"{piece.key}.npz").exists():
                    _fail(news, process.exitcode)
                del running[piece]
                yield piece, 1.0
    finally:
        for process in running.values():
            process.kill()
            process.join()


def _started(context: Any, piece: Piece, folder: Path, news: Any) -> Any:
    process = context.Process(target=_work, args=(piece, folder, news), daemon=True)
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
    return process


def _news(news: Any) -> Iterator[tuple[Piece, float]]:
    with_time = 1.0
    while True:
        try:
            told = news.get(timeout=with_time)
        except queue.Empty:
            return
        with_time = 0.01
        if isinstance(told[1], float):
            yield told
        else:
            _raise(*told[1])


def _fail(news: Any, exit_code: int | None) -> None:
    """Raises for a worker that ended without an outcome: what it told, or how it ended."""
    for _ in _news(news):
        pass
    if exit_code == -signal.SIGKILL:
        raise record.RunFailed("a worker process was killed (out of memory?)")
    raise record.RunFailed(f"a worker process ended with exit code {exit_code}")


def _raise(kind: str, *told: Any) -> None:
    if kind == "number":
        raise record.NumericalError(*told)
    raise record.RunFailed(f"a worker process failed: {told[0]}")


def _work(piece: Piece, folder: Path, news: Any) -> None:
    """A worker process: trains a piece and writes its outcome."""
    from record.ends import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
    die_with_parent()
    try:
        _train(piece, folder / f"{piece.key}.npz", lambda share: news.put((piece, share)))
    except record.NumericalError as error:
        news.put((piece, ("number", error.update, error.tensor_name)))
    except Exception as error:
        traceback.print_exc()
        news.put((piece, ("other", f"{type(error).__name__}: {error}")))


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
