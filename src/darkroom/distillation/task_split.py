"""Which tasks a transformer is trained on, and which it must not have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.a2c.histories import Histories, read_tasks, split, write_tasks
from darkroom.rooms.grid import recentred
from runcatalog import record
from runcatalog.record.config import find_folder
from runcatalog.record.journal import read_json

if TYPE_CHECKING:
    from darkroom.distillation.options import Config


@dataclass(frozen=True)
class Division:
    """The tasks of rooms of one size, each a cell.

    Attributes:
        size: Cells of a side.
        training: Learned from.
        validation: Kept out, to choose by.
        test: Kept out, to report.
    """

    size: int
    training: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]

    def state(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of(cls, state: dict[str, Any]) -> Division:
        """From `state()`."""
        parts = {name: tuple(state[name]) for name in ("training", "validation", "test")}
        return cls(int(state["size"]), **parts)


def open_histories(config: Config) -> list[Histories]:
    """Opens the histories that are named, in the order of the sizes.

    Raises:
        UserError: They are missing, damaged, of other sizes, or of rooms that cannot be learned together.
    """
    named = [part.strip() for part in config.histories.split(",") if part.strip()]
    try:
        found = [Histories.open(find_folder(each) or Path(each)) for each in named]
    except ValueError as error:
        raise record.UserError(
            f"--histories: {error}; give runs of a2c:histories_return, for other sizes of a2c:histories_5 and such"
        ) from None
    sides = [histories.about.size for histories in found]
    if sides != config.sides:
        told = " ".join(map(str, sides))
        raise record.UserError(
            f"--histories: {config.histories} has rooms of side {told or 'none'}, --sizes wants {config.sizes}"
        )
    kinds = {(histories.about.limit, histories.about.terminating) for histories in found}
    if len(kinds) > 1:
        raise record.UserError(
            "--histories: the rooms differ in the steps of an episode, or in whether the goal ends it"
        )
    settings = config.settings()
    window = settings.window
    longest = min(used_steps(each, settings.history_steps) for each in found)
    if window > longest:
        raise record.UserError(
            f"--window: {window} steps, but the histories have {longest} of an environment"
        )
    for each in found:
        steps, limit = used_steps(each, settings.history_steps), each.about.limit
        # The start of the episode after it is where one ends.
        if settings.windows == "subsampled" and steps <= limit:
            raise record.UserError(
                f"--history-steps: {steps} steps of an environment may hold no whole episode of {limit}; give "
                f"{(limit + 1) * each.shape[2]} or more of a task, or --windows consecutive"
            )
    return found


def used_steps(histories: Histories, wanted: int) -> int:
    """Steps of an environment when the first `wanted` of a task are used; 0: all."""
    envs, steps = histories.shape[2:]
    return min(steps, wanted // envs) if wanted else steps


def parents(histories: Sequence[Histories]) -> list[str]:
    """Returns the ids of the runs that recorded them, as far as they tell."""
    told = [read_json(each.folder.resolve().parent / "journal" / "run.json") for each in histories]
    return [each["id"] for each in told if each and each.get("id")]


def divide(config: Config, histories: Sequence[Histories]) -> list[Division]:
    """Divides the tasks by the split's seed, or as files say, once for the rooms of all sizes.

    A model sees cells from the centre and no size, so that two rooms' goals at the same place from it are one task: it
    is divided in the largest room, and is in the same part of every room that it lies in.

    Raises:
        UserError: A part is empty, a task is in two of them, or has no history.
    """
    if (config.train_tasks or config.test_tasks) and len(histories) > 1:
        raise record.UserError("--train-tasks, --test-tasks: files are for one size of rooms")
    largest = max(histories, key=lambda each: each.about.size)
    size = largest.about.size
    goals = [
        recentred(int(goal), each.about.size, size)
        for each in (largest, *histories)
        for goal in each.about.goals
    ]
    whole = _divide(config, size, list(dict.fromkeys(goals)), largest.folder)
    return [_within(whole, each) for each in histories]


def _within(whole: Division, histories: Histories) -> Division:
    """What a division of the largest rooms is in those of the histories."""
    size, known = histories.about.size, set(histories.about.goals)
    parts = {
        name: tuple(
            cell
            for goal in getattr(whole, name)
            if (cell := recentred(goal, whole.size, size)) >= 0
            and (cell in known or name != "training")
        )
        for name in ("training", "validation", "test")
    }
    if not parts["training"]:
        raise record.UserError(
            f"--sizes, --test-share: no task of {size} x {size} rooms is left for training"
        )
    return Division(size, **parts)


def _divide(config: Config, size: int, goals: list[int], folder: Path) -> Division:
    """Divides the goals of rooms of one size; `folder` is where their histories are."""
    seeds = record.Seeds(config.split)
    test = _read(config.test_tasks, size, "--test-tasks")
    training = _read(config.train_tasks, size, "--train-tasks")
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
                    f"--test-tasks: {goal // size} {goal % size} is a task for training as well"
                )
        for goal in training:
            if goal not in goals:
                raise record.UserError(
                    f"--train-tasks: {goal // size} {goal % size} has no history in {folder}"
                )
        validation: list[int] = []
        if config.validation_share:
            count = max(1, round(config.validation_share * len(training)))
            training, validation = split(training, count, seeds.generator("validation"))
    except ValueError as error:
        raise record.UserError(f"--test-share, --validation-share: {error}") from None
    if not training:
        raise record.UserError("--test-share: no task is left for training")
    return Division(size, tuple(training), tuple(validation), tuple(test))


def _read(path: str, size: int, flag: str) -> list[int] | None:
    if not path:
        return None
    try:
        return read_tasks(Path(path), size)
    except (OSError, ValueError) as error:
        raise record.UserError(f"{flag}: {error}") from None


def write_divisions(run: record.Run, divisions: Sequence[Division]) -> None:
    """Writes the tasks for testing as artifacts: `test_tasks.txt`, or one file a size."""
    for each in divisions:
        name = "test_tasks.txt" if len(divisions) == 1 else f"test_tasks_{each.size}.txt"
        write_tasks(run.artifact(name), each.test, each.size)
