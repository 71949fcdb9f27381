"""Lets a trained transformer learn in its context: tasks kept out, tasks trained on, and rooms of other sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder

if TYPE_CHECKING:
    from darkroom.division import Division
    from darkroom.model import Transformer

MOST = 23  # of the rooms' sides, what a figure can show
WATCHED = 4, 20  # tasks and their first episodes, of which a figure shows the paths


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:evaluate`."""

    model: str = option("trained", "run or checkpoint of ad:train")
    sizes: str = option("", "sides of the rooms; empty: those that it was trained on")
    test_tasks: str = option(
        "", "file with the tasks to play (row column), none of them trained on; empty: the split's"
    )
    episodes: int = option(80, "of each agent, in one context", low=5, high=10_000)
    copies: int = option(5, "agents of each task", low=1, high=1000)
    actions: str = option(
        "sampled", "how an action comes from its chances", choices=("sampled", "greedy")
    )
    when_full: str = option(
        "trained", "what an agent does whose window is full", choices=("trained", "halve", "ring")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.sizes.split():
            if not (word.isdecimal() and 2 <= int(word) <= MOST):
                raise record.UserError(
                    f'--sizes: {word!r} is no side from 2 to {MOST}; say "5 7 11 13"'
                )
        if len(set(self.sides)) < len(self.sides):
            raise record.UserError(f"--sizes: {self.sizes!r} has a side twice")

    @property
    def sides(self) -> list[int]:
        """Those that are given."""
        return list(map(int, self.sizes.split()))


@dataclass(frozen=True)
class Trained:
    """A transformer and what it was trained on.

    Attributes:
        model: See there.
        divisions: Tasks by size.
        about: What else `ad:train` tells of itself.
        run_id: Of the run.
        update: Of the checkpoint.
    """

    model: Transformer
    divisions: dict[int, Division]
    about: dict[str, Any]
    run_id: str
    update: int

    def offsets(self, part: str, side: int) -> set[int]:
        """Cells of rooms of this side that lie, from the centre, where a part of any division has a goal."""
        from darkroom.grid import recentred

        return {
            recentred(goal, known.size, side)
            for known in self.divisions.values()
            for goal in getattr(known, part)
        }


def load(path: str) -> Trained:
    """Loads what `ad:train` left.

    Raises:
        UserError: There is none, or it is of another operation.
    """
    import torch

    from darkroom.division import Division
    from darkroom.model import Transformer
    from darkroom.shape import Shape

    checkpoint = record.load_checkpoint(checkpoint_folder("model", path))
    about = checkpoint.state.get("about")
    if not isinstance(about, dict) or "divisions" not in about:
        raise record.UserError(f"--model: {path} is no checkpoint of ad:train")
    model = Transformer(Shape(**about["shape"]), torch.Generator())
    model.load_state_dict(checkpoint.tensors)
    divisions = {each.size: each for each in map(Division.of, about["divisions"])}
    return Trained(model.eval(), divisions, about, checkpoint.run_id, checkpoint.step)


def tasks_of(config: Config, trained: Trained) -> list[tuple[int, str, Sequence[int]]]:
    """What is played: (side, part, goals).

    A model sees cells from the centre and no size: in rooms of a size that it was not trained on, a goal that lies
    where one of its training did (`shown_offset`) is not as new as another (`unseen_offset`).

    Raises:
        UserError: A task for testing was trained on, or the model cannot be told such rooms.
    """
    from darkroom import grid

    sides = config.sides or sorted(trained.divisions)
    for side in sides:
        if not trained.model.shape.fits(side):
            raise record.UserError(
                f"--sizes: {side}: this model knows the cells of {trained.model.shape.size} x "
                f"{trained.model.shape.size} rooms alone (states={trained.model.shape.states})"
                if trained.model.shape.states == "table"
                else f"--sizes: {side}: this model knows cells up to {trained.model.shape.reach} from the centre"
            )
    chosen = _chosen(config, sides, trained)
    found: list[tuple[int, str, Sequence[int]]] = []
    for side in sides:
        known = trained.divisions.get(side)
        if known is None:
            shown, kept = trained.offsets("training", side), set()
            goals = chosen
            if goals is None:
                goals = grid.tasks(side).tolist()
                if any(each.validation for each in trained.divisions.values()):
                    kept = trained.offsets("test", side)
            goals = [goal for goal in goals if goal not in kept]
            found.append((side, "unseen_offset", [goal for goal in goals if goal not in shown]))
            found.append((side, "shown_offset", [goal for goal in goals if goal in shown]))
        else:
            # A training that kept tasks out to choose by must not show what those for testing say.
            part, goals = (
                ("validation", known.validation) if known.validation else ("held_out", known.test)
            )
            found.append((side, part, goals if chosen is None else chosen))
            found.append((side, "training", known.training))
    return [(side, part, goals) for side, part, goals in found if len(goals)]


def _chosen(config: Config, sides: Sequence[int], trained: Trained) -> list[int] | None:
    """The tasks of the file, if there is one."""
    from darkroom.histories import read_tasks

    if not config.test_tasks:
        return None
    if len(sides) > 1:
        raise record.UserError("--test-tasks: a file is for one size of rooms")
    try:
        chosen = read_tasks(Path(config.test_tasks), sides[0])
    except (OSError, ValueError) as error:
        raise record.UserError(f"--test-tasks: {error}") from None
    known = trained.divisions.get(sides[0])
    for goal in chosen:
        if known is not None and goal in known.training:
            raise record.UserError(
                f"--test-tasks: {goal // sides[0]} {goal % sides[0]} was trained on by {config.model}"
            )
    return chosen


def main(config: Config) -> dict[str, Any]:
    """Plays all tasks and returns what the record says."""
    import numpy as np
    import torch

    from darkroom import grid
    from darkroom.ad_scores import Learned
    from darkroom.play import Tasks, learn_in_context, paths

    torch.set_num_threads(1)
    trained = load(config.model)
    wanted = tasks_of(config, trained)
    about = trained.about
    when_full = about["when_full"] if config.when_full == "trained" else config.when_full
    if when_full == "ring" and len(trained.model.positions):
        raise record.UserError(
            f"--when-full: a ring needs a model trained with --positions time; {config.model} is of "
            f"{trained.model.shape.positions}"
        )
    with record.start(config, study="darkroom") as run:
        run.add_parent(trained.run_id)
        parts, steps = [], 0
        for index, (side, part, goals) in enumerate(wanted):
            tasks = Tasks.of([(side, goals)], about["limit"], about["terminating"])
            rng = run.seeds.generator(f"evaluation {part}", side)
            returns, lengths = learn_in_context(
                trained.model, tasks, config.episodes, config.copies, rng, when_full,
                greedy=config.actions == "greedy",
            )  # fmt: skip
            values = tasks.normalised(returns)
            met = np.logical_or.accumulate(returns > 0, axis=2)
            # Where the goal ends an episode and pays once, the expected return is the chance to meet it.
            chance = grid.random_return(side, np.asarray(goals), about["limit"], terminating=True)
            parts.append(Learned(side, part, np.asarray(goals), values, lengths, met, chance))
            steps += int(lengths.sum())
            run.progress(index + 1, len(wanted), "part")
        side, _, goals = wanted[0]
        away = grid.distances(side)
        farthest = sorted(goals, key=lambda goal: -away[goal])[: WATCHED[0]]
        tasks = Tasks.of([(side, farthest)], about["limit"], about["terminating"])
        watched = paths(
            trained.model, tasks, WATCHED[1], run.seeds.generator("paths"), when_full,
            config.actions == "greedy",
        )  # fmt: skip
        from darkroom.ad_results import finish_evaluation

        return finish_evaluation(run, config, trained, parts, (tasks.goals, watched), steps)


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
