"""Split of the tasks into training, validation and test tasks, for the rooms of all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from darkroom.a2c.histories import Histories, read_tasks, split, write_tasks
from darkroom.distillation.ad_options import Config
from darkroom.rooms.grid import reach_problem, task_in_room, task_text
from runcatalog import record
from runcatalog.record.config import find_file, find_folder
from runcatalog.record.journal.files import read_json


@dataclass(frozen=True)
class TaskSplit:
    """The tasks of rooms of one size, numbered as in :mod:`darkroom.rooms.grid`.

    Attributes:
        size: Side of the rooms [cells].
        training: Tasks whose histories are trained on.
        validation: Held-out tasks that variants are chosen by.
        test: Held-out tasks that are reported.
    """

    size: int
    training: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]

    def state(self) -> dict[str, Any]:
        """Return the split as plain values."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TaskSplit:
        """Return the split of `state()`."""
        parts = {name: tuple(state[name]) for name in ("training", "validation", "test")}
        return cls(int(state["size"]), **parts)


def open_histories(config: Config) -> list[Histories]:
    """Open the histories of `--histories`, in the order of the sizes.

    Raises:
        UserError: They are missing, damaged, unfinished, of other sizes, or of rooms that cannot be mixed.
    """
    names = [part.strip() for part in config.histories.split(",") if part.strip()]
    try:
        opened = [Histories.open(find_folder(name) or Path(name)) for name in names]
    except ValueError as error:
        raise record.UserError(
            f"--histories: {error}; give runs of a2c:histories_return, for other sizes of a2c:histories_5 and such"
        ) from None
    for histories in opened:
        if not histories.complete:
            raise record.UserError(
                f"--histories: {histories.folder} is not complete: its run is going on or was stopped; let it "
                "finish (`guild run --restart RUN`), or give another run"
            )
    sides = [histories.about.size for histories in opened]
    if sides != config.sides:
        listed = " ".join(map(str, sides))
        raise record.UserError(
            f"--histories: {config.histories} has rooms of side {listed or 'none'}, --sizes wants {config.sizes}"
        )
    if len({(histories.about.limit, histories.about.terminating) for histories in opened}) > 1:
        raise record.UserError(
            "--histories: the rooms differ in the steps of an episode, or in whether the goal ends it"
        )
    settings = config.settings()
    longest = min(used_steps(histories, settings.history_steps) for histories in opened)
    if settings.window > longest:
        raise record.UserError(
            f"--window: {settings.window} steps, but the histories have {longest} of an environment"
        )
    for histories in opened:
        steps, limit = used_steps(histories, settings.history_steps), histories.about.limit
        # An episode is complete where the next one begins.
        if settings.windows != "consecutive" and steps <= limit:
            raise record.UserError(
                f"--history-steps: {steps} steps of an environment may have no complete episode of {limit}; give "
                f"{(limit + 1) * histories.shape[2]} or more of a task, or --windows consecutive"
            )
    return opened


def used_steps(histories: Histories, wanted: int) -> int:
    """Return the steps of an environment if the first `wanted` of a task are used; 0: all."""
    envs, steps = histories.shape[2:]
    return min(steps, wanted // envs) if wanted else steps


def parent_runs(histories: Sequence[Histories]) -> list[str]:
    """Return the ids of the runs that recorded the histories, as far as they are known."""
    files = (opened.folder.resolve().parent / "journal" / "run.json" for opened in histories)
    return [run["id"] for run in map(read_json, files) if run and run.get("id")]


def split_tasks(config: Config, histories: Sequence[Histories]) -> list[TaskSplit]:
    """Split the tasks by the seed of the split, or as files say, once for the rooms of all sizes.

    A model sees cells relative to the centre and no size, so goals at the same offset are the same task in two rooms.
    The goals of the largest room are split, and an offset is in the same part of every room that has it.

    Raises:
        UserError: A part is empty, a task is in two of them, has no history, or cannot be reached in an episode.
    """
    if (config.train_tasks or config.test_tasks) and len(histories) > 1:
        raise record.UserError("--train-tasks, --test-tasks: files are for one size of rooms")
    largest = max(histories, key=lambda opened: opened.about.size)
    size = largest.about.size
    goals = [
        task_in_room(int(goal), opened.about.size, size)
        for opened in (largest, *histories)
        for goal in opened.about.goals
    ]
    whole = _split_largest(config, size, list(dict.fromkeys(goals)), largest.folder)
    if config.test_tasks and (problem := reach_problem(size, largest.about.limit, whole.test)):
        raise record.UserError(f"--test-tasks: {problem}, the length of the histories' episodes")
    return [_transferred(whole, opened) for opened in histories]


def _transferred(whole: TaskSplit, histories: Histories) -> TaskSplit:
    """Return the split of the largest room as it is in the histories' rooms."""
    size, known = histories.about.size, set(histories.about.goals)
    parts = {
        name: tuple(
            task
            for goal in getattr(whole, name)
            if (task := task_in_room(goal, whole.size, size)) >= 0
            and (task in known or name != "training")
        )
        for name in ("training", "validation", "test")
    }
    if not parts["training"]:
        raise record.UserError(
            f"--sizes, --test-share: no task of {size} x {size} rooms is left for training"
        )
    return TaskSplit(size, **parts)


def _split_largest(config: Config, size: int, goals: list[int], folder: Path) -> TaskSplit:
    """Split the goals of rooms of one size; `folder` has their histories."""
    seeds = record.Seeds(config.split)
    test = read_task_file(config.test_tasks, size, "--test-tasks")
    training = read_task_file(config.train_tasks, size, "--train-tasks")
    try:
        if test is None:
            rest = goals if training is None else [goal for goal in goals if goal not in training]
            count = min(round(config.test_share * len(goals)), len(rest))
            test = []
            if count == len(rest):
                test = rest
            elif count:
                test = split(rest, count, seeds.generator("split"))[1]
        if training is None:
            training = [goal for goal in goals if goal not in test]
        for goal in test:
            if goal in training:
                raise record.UserError(
                    f"--test-tasks: {task_text(goal, size)} is a task for training as well"
                )
        for goal in training:
            if goal not in goals:
                raise record.UserError(
                    f"--train-tasks: {task_text(goal, size)} has no history in {folder}"
                )
        validation: list[int] = []
        if config.validation_share:
            count = max(1, round(config.validation_share * len(training)))
            training, validation = split(training, count, seeds.generator("validation"))
    except ValueError as error:
        raise record.UserError(f"--test-share, --validation-share: {error}") from None
    if not training:
        raise record.UserError("--test-share: no task is left for training")
    return TaskSplit(size, tuple(training), tuple(validation), tuple(test))


def read_task_file(path: str, size: int, flag: str) -> list[int] | None:
    """Return the tasks in the file that a flag names; None without a file.

    A relative path is one from the working directory or, as under Guild, from the project.
    """
    if not path:
        return None
    try:
        goals = read_tasks(find_file(path) or Path(path), size)
    except (OSError, ValueError) as error:
        raise record.UserError(f"{flag}: {error}") from None
    if not goals:
        raise record.UserError(f"{flag}: {path} has no task")
    return goals


def write_test_tasks(run: record.Run, splits: Sequence[TaskSplit]) -> None:
    """Write the test tasks as artifacts: `test_tasks.txt`, or a file per size."""
    for tasks in splits:
        name = "test_tasks.txt" if len(splits) == 1 else f"test_tasks_{tasks.size}.txt"
        write_tasks(run.artifact(name), tasks.test, tasks.size)
