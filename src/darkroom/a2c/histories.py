"""Learning histories: what source agents did while they learned, one time order an environment.

A run writes them as it goes into one file of fixed size, `histories.npy`, so that a kill loses nothing
that a checkpoint tells of. `export_text` writes a task's as text, as the source kept them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.rooms.grid import read_cell

if TYPE_CHECKING:
    from darkroom.a2c.a2c import Rollout

FILE, ABOUT = "histories.npy", "histories.json"
FIELDS = ("cells", "actions", "rewards", "times")  # planes of the file
VERSION = 1


@dataclass(frozen=True)
class About:
    """What the numbers in the file mean.

    Attributes:
        size: Cells of a side of the room.
        limit: Steps of an episode.
        terminating: The goal ends an episode.
        goals: One a task, in the file's order.
        seed: Of the run.
    """

    size: int
    limit: int
    terminating: bool
    goals: tuple[int, ...]
    seed: int


class Histories:
    """Histories of T tasks with E environments of S steps each.

    Args:
        folder: Where `histories.npy` and `histories.json` are.
        about: See there.
        data: uint8 or uint16 [4, T, E, S], in the order of FIELDS; a memory map.
    """

    def __init__(self, folder: Path, about: About, data: np.ndarray) -> None:
        self.folder, self.about = folder, about
        self._data = data
        self.cells, self.actions, self.rewards, self.times = data

    @classmethod
    def create(cls, folder: Path, about: About, envs: int, steps: int) -> Histories:
        """Makes the files, or opens what an interrupted run of the same kind has made.

        Raises:
            ValueError: Others are there.
        """
        shape = (len(FIELDS), len(about.goals), envs, steps)
        if (folder / ABOUT).exists():
            found = cls.open(folder, mode="r+")
            if found.about != about or found.shape != shape:
                raise ValueError(f"{folder}: histories of another kind are there")
            return found
        folder.mkdir(parents=True, exist_ok=True)
        largest = max(about.size**2 - 1, about.limit)
        kind = np.uint8 if largest < 256 else np.uint16
        data = np.lib.format.open_memmap(folder / FILE, "w+", kind, shape)
        told = {"version": VERSION, **about.__dict__, "goals": list(map(int, about.goals))}
        (folder / ABOUT).write_text(json.dumps(told) + "\n")
        return cls(folder, about, data)

    @classmethod
    def open(cls, folder: Path, *, mode: str = "r") -> Histories:
        """Opens histories; what is not looked at is not read.

        Args:
            folder: A run's directory or its `histories` folder.
            mode: Of numpy's memory maps.

        Raises:
            ValueError: There are none, or they are damaged.
        """
        path = folder if (folder / ABOUT).exists() else folder / "histories"
        try:
            told: dict[str, Any] = json.loads((path / ABOUT).read_text())
            if told.pop("version") != VERSION:
                raise ValueError(f"{path}: histories of another version; record them again")
            about = About(**{**told, "goals": tuple(told["goals"])})
            data = np.load(path / FILE, mmap_mode=mode)  # type: ignore[call-overload]
        except FileNotFoundError:
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

    def write(self, begin: int, played: Rollout) -> None:
        """Writes a rollout from step `begin` of each environment on; what is beyond the file is left out."""
        room = self.shape[-1] - begin
        for plane, field in zip(self._data, FIELDS, strict=True):
            new = getattr(played, field)[:room]
            plane[:, :, begin : begin + len(new)] = np.moveaxis(new, 0, -1)

    def flush(self) -> None:
        """Makes what was written last."""
        if isinstance(self._data, np.memmap):
            self._data.flush()

    def export_text(self, task: int, path: Path) -> None:
        """Writes a task's history: a line a step, `environment cell action reward time`."""
        envs, steps = self.shape[2:]
        columns = [np.repeat(np.arange(envs), steps)]
        columns += [np.asarray(plane[task]).reshape(-1) for plane in self._data]
        np.savetxt(
            path, np.stack(columns, axis=1), fmt="%d", header=f"environment {' '.join(FIELDS)}"
        )


def split(goals: Sequence[int], test: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Divides tasks at random.

    Args:
        goals: All of them.
        test: How many are for testing.
        rng: Decides.

    Returns:
        (for training, for testing), each in order.

    Raises:
        ValueError: Nothing would be left for one of the two.
    """
    if not 0 < test < len(goals):
        raise ValueError(f"{test} of {len(goals)} tasks for testing: both parts need one")
    chosen = set(rng.choice(np.asarray(goals), test, replace=False).tolist())
    return [g for g in goals if g not in chosen], [g for g in goals if g in chosen]


def write_tasks(path: Path, goals: Sequence[int], size: int) -> None:
    """Writes tasks as `row column`, a line each."""
    path.write_text("".join(f"{goal // size} {goal % size}\n" for goal in goals))


def read_tasks(path: Path, size: int) -> list[int]:
    """Reads what `write_tasks` wrote.

    Raises:
        ValueError: A line is no cell of such a room, or names one twice.
    """
    goals = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            goals.append(read_cell(line.split(), size))
        except ValueError:
            raise ValueError(
                f"{path}:{number}: {line!r} is no `row column` of a {size} x {size} room"
            ) from None
        if goals[-1] in goals[:-1]:
            raise ValueError(f"{path}:{number}: {line!r} is there twice")
    return goals
