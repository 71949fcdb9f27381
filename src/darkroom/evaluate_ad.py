"""Lets a trained transformer learn in its context: tasks kept out, tasks trained on, and rooms of other sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.a2c.histories import read_tasks
from darkroom.distillation import figures as ad_figures
from darkroom.distillation import scores as ad_scores
from darkroom.distillation.options import LARGEST_SIDE
from darkroom.distillation.scores import Learned
from darkroom.distillation.task_split import Division
from darkroom.rooms import grid
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder

if TYPE_CHECKING:
    from darkroom.distillation.transformer import Transformer


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
            if not (word.isdecimal() and 2 <= int(word) <= LARGEST_SIDE):
                raise record.UserError(
                    f'--sizes: {word!r} is no side from 2 to {LARGEST_SIDE}; say "5 7 11 13"'
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
        return {
            grid.recentred(goal, known.size, side)
            for known in self.divisions.values()
            for goal in getattr(known, part)
        }


def load(path: str) -> Trained:
    """Loads what `ad:train` left.

    Raises:
        UserError: There is none, or it is of another operation.
    """
    import torch

    from darkroom.distillation.shape import Shape
    from darkroom.distillation.transformer import Transformer

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
    import torch

    from darkroom.distillation.rollout import Tasks, learn_in_context, paths

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
        return finish_evaluation(run, config, trained, parts, (tasks.goals, watched), steps)


def finish_evaluation(
    run: record.Run,
    config: Config,
    trained: Trained,
    parts: Sequence[Learned],
    watched: tuple[np.ndarray, np.ndarray],
    steps: int,
) -> dict[str, Any]:
    """Journals, draws and ends the run.

    Args:
        run: That goes on.
        config: Its flags.
        trained: What played.
        parts: What it did.
        watched: Goals of some of the first part's tasks, and where agents went, see `figures.paths`.
        steps: Of the environments.
    """
    metrics: dict[str, float] = {}
    for learned in parts:
        log(run, learned)
        metrics |= ad_scores.metrics(learned)
    sources = source_curves(trained, parts)
    for name, (at, curve) in sources.items():
        for step, value in zip(at, curve, strict=True):
            run.log({f"{name}/source": float(value)}, int(step))
        learned = next(each for each in parts if each.name == name)
        pairs = ("in_context", learned.steps(), learned.curve()), ("source", at, curve)
        for who, reached, values in pairs:
            needed = ad_scores.steps_to(reached, values)
            if np.isfinite(needed):
                metrics[f"{name}/{who}_steps_to_80"] = needed
    with record.optional(run, "figure"):
        first = next(iter(sources.values()), None)
        lines = [learned.line() for learned in parts]
        ad_figures.in_context(run.artifact("in_context.svg"), lines, first)
        rooms = {each.size: np.full(each.size**2, np.nan) for each in parts}
        for learned in parts:
            rooms[learned.size][learned.goals] = learned.by_goal(config.episodes)
        marked = {
            each.size: each.goals
            for each in parts
            if each.part in ("held_out", "validation", "unseen_offset")
        }
        ad_figures.by_goal(run.artifact("by_goal.svg"), rooms, marked)
        ad_figures.paths(run.artifact("paths.svg"), parts[0].size, *watched)
    return run.finish(result(config, trained, parts, metrics, steps))


def log(run: record.Run, learned: Learned) -> None:
    """Journals the curves, one with its interval, at step = episode, and the last block at step = goal's cell."""
    low, high = learned.band()
    for index, steps in enumerate(learned.steps()):
        run.log({f"{learned.name}/steps": float(steps)}, index + 1)
    for index, value in enumerate(learned.curve()):
        point = {"": value, "_low": low[index], "_high": high[index]}
        run.log({f"{learned.name}/in_context{k}": float(v) for k, v in point.items()}, index + 1)
    for index, (own, by_chance) in enumerate(learned.explored().T):
        run.log({f"{learned.name}/met": own, f"{learned.name}/met_random": by_chance}, index + 1)
    last = learned.by_goal(learned.values.shape[2])
    for goal, value in zip(learned.goals, last, strict=True):
        run.log({f"{learned.name}/by_goal": float(value)}, int(goal))


def source_curves(
    trained: Trained, parts: Sequence[Learned]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Environment steps of a task, and the normalised return of its source agent then, mean over the part's tasks."""
    found = {}
    about = trained.about
    for size, source in zip(trained.divisions, about["sources"], strict=True):
        order = {goal: place for place, goal in enumerate(source["goals"])}
        for learned in parts:
            if learned.size != size or learned.part not in ("held_out", "validation"):
                continue
            known = [goal for goal in learned.goals if int(goal) in order]
            if not known:
                continue
            returns = np.asarray(source["returns"])[[order[int(goal)] for goal in known]]
            normal = grid.normalised_return(
                returns.T, size, np.asarray(known), about["limit"], terminating=about["terminating"]
            )
            found[learned.name] = np.asarray(source["steps"]), normal.mean(axis=1)
    return found


def result(
    config: Config,
    trained: Trained,
    parts: Sequence[Learned],
    metrics: dict[str, float],
    steps: int,
) -> dict[str, Any]:
    """The first part's last block is the objective."""
    first = parts[0]
    block = list(ad_scores.blocks(config.episodes))[-1]
    by_goal = first.by_goal(config.episodes)
    low, high = ad_scores.interval(by_goal)
    name, last = f"{first.name}/{block}", block.removeprefix("episodes_").replace("_", "–")
    others = [
        key
        for key in metrics
        if key.startswith(first.name) and key != name and not key.endswith(("_low", "_high"))
    ]
    return {
        "objective": {
            "name": name, "value": metrics[name], "kind": "mean", "goal": "max",
            "at": config.episodes, "axis": "episode",
            "also": [{"name": key, "value": metrics[key], "kind": "mean"} for key in others],
        },
        "summary": (
            f"{by_goal.mean():.3f} [{low:.3f}, {high:.3f}] of the best return in episodes {last}, "
            f"{len(by_goal)} tasks x {config.copies} agents, {first.size} x {first.size}"
        ),
        "metrics": metrics,
        "table": ad_scores.table(list(parts)),
        "env_steps": steps,
        "variant": {"sizes": " ".join(map(str, sorted({each.size for each in parts}))),
                    "update": trained.update},
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
