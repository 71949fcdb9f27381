"""What the steps of a series left in their run directories, checked before anything is evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record import journal

_NAME = re.compile(r"(\d+)_(\w+)")  # of a link: place in the series, task
_EARLIER = re.compile(r"opening_rate/(\d+)_\w+")  # of a metric: place in the series, task


@dataclass(frozen=True)
class Step:
    """A finished training run on one task of a series.

    Attributes:
        directory: of the run.
        task: name of the task.
        seed: of the run; its held-out worlds come from it.
        robot, start: flags of the run.
        method: what the run calls its way of training.
        pretrained: whether it went on from another run.
        unit: decisions of an update.
        snapshots: update and file of each kept set of policies, by update; at least one.
        validation: opening rate on the validation worlds by update, by update.
        opening_rate: what the run itself reports of its test worlds.
        earlier: the same of the tasks before, by place in the series, where it tried them.
    """

    directory: Path
    task: str
    seed: int
    robot: str
    start: str
    method: str
    pretrained: bool
    unit: int
    snapshots: tuple[tuple[int, Path], ...]
    validation: dict[int, float]
    opening_rate: float
    earlier: dict[int, float]

    @property
    def kind(self) -> str:
        """Of network: a hypernetwork's or a plain one."""
        return "HN-PPO" if self.method.startswith("HN-PPO") else "PPO"

    @property
    def updates(self) -> int:
        """How long it trained."""
        return self.snapshots[-1][0]


def folders(folder: Path) -> list[Path]:
    """The steps' directories in a folder of links `<task id>_<task>`, in the order of learning.

    Raises:
        record.UserError: there are none, one is missing, or a link leads nowhere or elsewhere.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if match := _NAME.fullmatch(path.name):
            found[int(match[1])] = path
    if not found:
        raise record.UserError(f"{folder}: no steps there; choose a run of a series that has ended")
    for place in range(max(found) + 1):
        if place not in found:
            there = ", ".join(found[each].name for each in sorted(found))
            raise record.UserError(f"{folder}: step {place} is missing; there are {there}")
    return [found[place] for place in sorted(found)]


def run_of(folder: Path) -> str:
    """The id of the run that a folder of links belongs to; "" if it belongs to none."""
    facts = journal.read_json(folder.resolve().parent / "journal" / "run.json") or {}
    return str(facts.get("id", ""))


def read(directories: Sequence[Path]) -> list[Step]:
    """What is known of the steps of one series, in the order of learning.

    Args:
        directories: of the runs, or links to them.

    Raises:
        record.UserError: a run is not there, did not finish, kept no policies, or is of another seed,
            robot, start or order of tasks than the others.
    """
    steps = [read_one(path) for path in directories]
    for path, step in zip(directories, steps, strict=True):
        for name in ("seed", "robot", "start"):
            own, first = getattr(step, name), getattr(steps[0], name)
            if own != first:
                raise record.UserError(
                    f"{path}: {name} {own}, but {directories[0]} has {first}; a series has one"
                )
        match = _NAME.fullmatch(path.name)
        if match and match[2] != step.task:
            raise record.UserError(f"{path}: that run learned {step.task}, not {match[2]}")
    for place, step in enumerate(steps):
        policies(step, step.snapshots[-1][1], [each.task for each in steps[: place + 1]])
    return steps


def policies(step: Step, path: Path, tasks: Sequence[str]) -> list[Any]:
    """The policies in a snapshot, of the tasks so far or of the present one alone.

    Args:
        step: whose snapshot it is.
        path: the snapshot.
        tasks: of the series up to this step, in the order of learning.

    Raises:
        record.UserError: the file holds the policies of other tasks, or of another order.
    """
    from door import snapshots

    kept = snapshots.load(path)
    names = [task for task, _ in kept]
    if names not in ([step.task], list(tasks)):
        raise record.UserError(
            f"{path}: policies of {', '.join(names)}; in this order of tasks they would be of "
            f"{', '.join(tasks)}"
        )
    return [policy for _, policy in kept]


def read_one(path: Path) -> Step:
    """What is known of a finished training run, part of a series or not.

    Raises:
        record.UserError: as for ``read``.
    """
    if not (path / "journal" / "run.json").is_file():
        gone = f" (a link to {path.readlink()})" if path.is_symlink() else ""
        raise record.UserError(f"{path}{gone}: no run of door training there")
    facts = journal.read_json(path / "journal" / "run.json") or {}
    written = journal.read_json(path / "result.json") or {}
    if written.get("status") != "FINISHED":
        state = written.get("status", "not finished").lower()
        reason = f": {written['reason']}" if written.get("reason") else ""
        raise record.UserError(f"{path}: that run {state}{reason}; finish the series first")
    from door import snapshots

    kept = tuple(snapshots.paths(path))
    if not kept or kept[0][0] != 0:
        raise record.UserError(
            f"{path}: no {'' if not kept else 'first '}policies in {snapshots.FOLDER}/; the run was "
            "made before they were kept: run it again"
        )
    try:
        flags, result = facts["flags"], written["result"]
        return Step(
            directory=path.resolve(),
            task=flags["task"],
            seed=facts["seed"],
            robot=flags["robot"],
            start=flags["start"],
            method=result["variant"]["method"],
            pretrained=bool(flags["pretrained"]),
            unit=flags["num-envs"] * flags["num-steps"],
            snapshots=kept,
            validation=_validation(path),
            opening_rate=result["metrics"]["opening_rate"],
            earlier=_earlier(result["metrics"]),
        )
    except (KeyError, TypeError) as error:
        raise record.UserError(f"{path}: no run of door training there ({error} missing)") from None


def _earlier(metrics: dict[str, float]) -> dict[int, float]:
    found = ((_EARLIER.fullmatch(name), rate) for name, rate in metrics.items())
    return {int(match[1]): rate for match, rate in found if match}


def _validation(path: Path) -> dict[int, float]:
    points = journal.read_points(path / "journal" / "metrics.jsonl")
    found = {p.step: p.value for p in points if p.name == "validation_opening_rate"}
    return dict(sorted(found.items()))
