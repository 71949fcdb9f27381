"""The steps of a series: finished training runs, read from their directories and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog import record
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.metrics import read_points

if TYPE_CHECKING:
    from rl.policy import Policy

_LINK = re.compile(r"(\d+)_(\w+)")  # place in the series, task
_EARLIER = re.compile(r"opening_rate/(\d+)_\w+")  # metric of a previous task: place in the series


@dataclass(frozen=True)
class Step:
    """A finished training run on one task of a series.

    Attributes:
        directory: Of the run.
        task: Name of the task.
        seed: Of the run and its held-out worlds.
        robot, start: Flags of the run.
        method: Method in the result of the run.
        pretrained: Whether it started from another run.
        decisions_per_update: Size of a rollout.
        decisions_before: Decisions before the first update, for the choice of a start.
        snapshots: Update and file per saved set of policies, by update; at least one.
        validation: Opening rate on the validation worlds by update.
        opening_rate: Reported opening rate on the test worlds.
        earlier: Reported opening rates of previous tasks, by place in the series.
    """

    directory: Path
    task: str
    seed: int
    robot: str
    start: str
    method: str
    pretrained: bool
    decisions_per_update: int
    decisions_before: int
    snapshots: tuple[tuple[int, Path], ...]
    validation: dict[int, float]
    opening_rate: float
    earlier: dict[int, float]

    @property
    def kind(self) -> str:
        """HN-PPO or PPO."""
        return "HN-PPO" if self.method.startswith("HN-PPO") else "PPO"

    @property
    def updates(self) -> int:
        """Number of updates of the training."""
        return self.snapshots[-1][0]


def folders(folder: Path) -> list[Path]:
    """Return the run directories in a folder of links `<place>_<task>`, in the order of learning.

    Raises:
        record.UserError: There is no link, or a place is missing.
    """
    links: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if match := _LINK.fullmatch(path.name):
            links[int(match[1])] = path
    if not links:
        raise record.UserError(f"{folder}: no steps; choose the run of a finished series")
    for place in range(max(links) + 1):
        if place not in links:
            names = ", ".join(links[other].name for other in sorted(links))
            raise record.UserError(f"{folder}: step {place} is missing; there are {names}")
    return [links[place] for place in sorted(links)]


def run_of(folder: Path) -> str:
    """Return the id of the run that contains a folder; "" without run."""
    run_json = read_json(folder.resolve().parent / "journal" / "run.json") or {}
    return str(run_json.get("id", ""))


def read(directories: Sequence[Path]) -> list[Step]:
    """Read the steps of a series.

    Args:
        directories: Of the runs, or links to them, in the order of learning.

    Raises:
        record.UserError: A run is missing, unfinished or without saved policies, or differs from the others in seed,
            robot, start or order of tasks.
    """
    steps = [read_one(path) for path in directories]
    for path, step in zip(directories, steps, strict=True):
        for name in ("seed", "robot", "start"):
            own, first = getattr(step, name), getattr(steps[0], name)
            if own != first:
                raise record.UserError(
                    f"{path}: {name} {own}, but {directories[0]} has {first}; a series has the same"
                )
        match = _LINK.fullmatch(path.name)
        if match and match[2] != step.task:
            raise record.UserError(f"{path}: that run learned {step.task}, not {match[2]}")
    for place, step in enumerate(steps):
        policies(step, step.snapshots[-1][1], [earlier.task for earlier in steps[: place + 1]])
    return steps


def policies(step: Step, path: Path, tasks: Sequence[str]) -> list[Policy]:
    """Load the policies of a snapshot, of all tasks so far or of the current one alone.

    Args:
        step: The step that saved it.
        path: The snapshot.
        tasks: Of the series up to this step, in the order of learning.

    Raises:
        record.UserError: The file has policies of other tasks, or in another order.
    """
    from door.training import snapshots

    loaded = snapshots.load(path)
    names = [task for task, _ in loaded]
    if names not in ([step.task], list(tasks)):
        raise record.UserError(
            f"{path}: policies of {', '.join(names)}; this order of tasks needs policies of "
            f"{', '.join(tasks)}"
        )
    return [policy for _, policy in loaded]


def read_one(path: Path) -> Step:
    """Read a finished training run, part of a series or not.

    Raises:
        record.UserError: As for ``read``.
    """
    if not (path / "journal" / "run.json").is_file():
        target = f" (a link to {path.readlink()})" if path.is_symlink() else ""
        raise record.UserError(f"{path}{target}: not a run of door training")
    run_json = read_json(path / "journal" / "run.json") or {}
    written = read_json(path / "result.json") or {}
    if written.get("status") != "FINISHED":
        state = written.get("status", "not finished").lower()
        reason = f": {written['reason']}" if written.get("reason") else ""
        raise record.UserError(f"{path}: that run {state}{reason}; finish the series first")
    from door.training import snapshots

    try:
        flags, result = run_json["flags"], written["result"]
        per_update = flags["num-envs"] * flags["num-steps"]
        saved = tuple(snapshots.paths(path))
        if not saved or saved[0][0] != 0:
            raise record.UserError(
                f"{path}: no {'initial ' if saved else ''}policies in {snapshots.FOLDER}/; versions "
                "before snapshots did not save them: run it again"
            )
        # A run that was killed, and restarted on another kind of CPU, may have ended at an earlier update than it had
        # reached before.
        end = result["objective"]["at"]
        validation = _points(path, "validation_opening_rate")
        decisions = _points(path, "env_steps")
        return Step(
            directory=path.resolve(),
            task=flags["task"],
            seed=run_json["seed"],
            robot=flags["robot"],
            start=flags["start"],
            method=result["variant"]["method"],
            pretrained=bool(flags["pretrained"]),
            decisions_per_update=per_update,
            decisions_before=int(decisions[1]) - per_update if 1 in decisions else 0,
            snapshots=tuple((update, file) for update, file in saved if update <= end),
            validation={update: rate for update, rate in validation.items() if update <= end},
            opening_rate=result["metrics"]["opening_rate"],
            earlier=_earlier(result["metrics"]),
        )
    except (KeyError, TypeError) as error:
        raise record.UserError(f"{path}: not a run of door training ({error} missing)") from None


def _earlier(metrics: dict[str, float]) -> dict[int, float]:
    matches = ((_EARLIER.fullmatch(name), rate) for name, rate in metrics.items())
    return {int(match[1]): rate for match, rate in matches if match}


def _points(path: Path, metric: str) -> dict[int, float]:
    """Return a metric of a run by update."""
    points = read_points(path / "journal" / "metrics.jsonl")
    return dict(sorted((p.step, p.value) for p in points if p.name == metric))
