"""Learning histories: all transitions of source agents while they learn, one sequence per environment.

A run writes them as it goes to a file of fixed size, `histories.npy`, so that a killed run loses nothing before its
last checkpoint. `export_text` writes a task's history as text, the source's format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.rooms.grid import read_task, task_text

if TYPE_CHECKING:
    from darkroom.a2c.a2c import Rollout

FILE, ABOUT = "histories.npy", "histories.json"
FIELDS = ("cells", "actions", "rewards", "times")  # planes of the file
VERSION = 1


@dataclass(frozen=True)
class About:
    """Description of a file of histories.

    Attributes:
        size: Side of the rooms [cells].
        limit: Steps of an episode.
        terminating: Whether the goal ends an episode.
        goals: Tasks as in :mod:`darkroom.rooms.grid`, in the file's order.
        seed: Seed of the run.
    """

    size: int
    limit: int
    terminating: bool
    goals: tuple[int, ...]
    seed: int


class Histories:
    """Histories of T tasks with E environments of S steps.

    Args:
        folder: Folder with `histories.npy` and `histories.json`.
        about: Description.
        data: uint8 or uint16 [4, T, E, S], in the order of FIELDS; a memory map.
    """

    def __init__(self, folder: Path, about: About, data: np.ndarray) -> None:
        self.folder, self.about = folder, about
        self._data = data
        self.cells, self.actions, self.rewards, self.times = data

    @classmethod
    def create(cls, folder: Path, about: About, envs: int, steps: int) -> Histories:
        """Create the files, or open those of the same run before an interruption.

        Raises:
            ValueError: The folder has other histories.
            OSError: The disk has no space for them.
        """
        shape = (len(FIELDS), len(about.goals), envs, steps)
        if (folder / ABOUT).exists():
            existing = cls.open(folder, mode="r+")
            if existing.about != about or existing.shape != shape:
                raise ValueError(f"{folder}: histories of another kind are there")
            _reserve(folder / FILE)
            return existing
        folder.mkdir(parents=True, exist_ok=True)
        largest = max(about.size**2 - 1, about.limit)
        dtype = np.uint8 if largest < 256 else np.uint16
        data = np.lib.format.open_memmap(folder / FILE, "w+", dtype, shape)
        _reserve(folder / FILE)
        values = {"version": VERSION, **about.__dict__, "goals": list(map(int, about.goals))}
        (folder / ABOUT).write_text(json.dumps(values) + "\n")
        return cls(folder, about, data)

    @classmethod
    def open(cls, folder: Path, *, mode: str = "r") -> Histories:
        """Open histories as a memory map.

        Args:
            folder: A run's directory or its `histories` folder.
            mode: Mode of numpy's memory map.

        Raises:
            ValueError: There are none, or they are damaged.
        """
        path = folder if (folder / ABOUT).exists() else folder / "histories"
        try:
            values: dict[str, Any] = json.loads((path / ABOUT).read_bytes())
            if values.pop("version") != VERSION:
                raise ValueError(f"{path}: histories of another version; record them again")
            about = About(**{**values, "goals": tuple(values["goals"])})
            data = _mapped(path / FILE, mode)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{folder}: no histories there") from None
        except (KeyError, TypeError, EOFError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: damaged histories ({error})") from None
        if data.ndim != 4 or data.shape[:2] != (len(FIELDS), len(about.goals)):
            raise ValueError(f"{path}: damaged histories (shape {data.shape})")
        return cls(path, about, data)

    @property
    def shape(self) -> tuple[int, ...]:
        """(4, T, E, S)."""
        return self._data.shape

    @property
    def complete(self) -> bool:
        """Whether the last step was written: the file begins as zeros, and no episode begins in cell 0."""
        return bool(self.cells[:, :, -1].any() or self.times[:, :, -1].any())

    def write(self, begin: int, rollout: Rollout) -> None:
        """Write a rollout from step `begin` of every environment on, as far as the file goes."""
        space = max(0, self.shape[-1] - begin)
        for plane, field in zip(self._data, FIELDS, strict=True):
            values = getattr(rollout, field)[:space]
            plane[:, :, begin : begin + len(values)] = np.moveaxis(values, 0, -1)

    def flush(self) -> None:
        """Write pending changes to the disk."""
        if isinstance(self._data, np.memmap):
            self._data.flush()

    def export_text(self, task: int, path: Path) -> None:
        """Write a task's history as text: a line per step, `environment cell action reward time`."""
        envs, steps = self.shape[2:]
        columns = [np.repeat(np.arange(envs), steps)]
        columns += [np.asarray(plane[task]).reshape(-1) for plane in self._data]
        np.savetxt(
            path, np.stack(columns, axis=1), fmt="%d", header=f"environment {' '.join(FIELDS)}"
        )


def _mapped(path: Path, mode: Any) -> np.ndarray:
    """Return numpy's memory map of a file."""
    try:
        return np.load(path, mmap_mode=mode)
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error})") from None


def _reserve(path: Path) -> None:
    """Give a file's holes their space: a write to one through a memory map would kill the process on a full disk."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None


def split(goals: Sequence[int], test: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Split tasks at random.

    Args:
        goals: All tasks.
        test: Number of test tasks.
        rng: Source of the choice.

    Returns:
        (training tasks, test tasks), each in order.

    Raises:
        ValueError: One of the parts would be empty.
    """
    if not 0 < test < len(goals):
        raise ValueError(f"{test} of {len(goals)} tasks for testing: both parts need at least one")
    chosen = set(rng.choice(np.asarray(goals), test, replace=False).tolist())
    return [g for g in goals if g not in chosen], [g for g in goals if g in chosen]


def write_tasks(path: Path, goals: Sequence[int], size: int) -> None:
    """Write tasks as lines of `row column` of the goal, after those of the key if there is one."""
    path.write_text("".join(f"{task_text(goal, size)}\n" for goal in goals))


def read_tasks(path: Path, size: int) -> list[int]:
    """Read the tasks of `write_tasks`.

    Raises:
        ValueError: A line is no task of such a room, or repeats an earlier one.
    """
    goals = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            goals.append(read_task(line.split(), size))
        except ValueError as error:
            raise ValueError(
                f"{path}:{number}: {line!r} is no `row column` of a {size} x {size} room: {error}"
            ) from None
        if goals[-1] in goals[:-1]:
            raise ValueError(f"{path}:{number}: {line!r} is there twice")
    return goals
