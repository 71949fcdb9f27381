"""Evaluate a trained transformer: in-context learning in held-out tasks, training tasks and rooms of other sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.distillation import figures, scores
from darkroom.distillation.ad_options import LARGEST_SIDE
from darkroom.distillation.scores import PartScores
from darkroom.distillation.task_split import TaskSplit, read_task_file
from darkroom.rooms import grid
from darkroom.rooms.play import Tasks
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder

if TYPE_CHECKING:
    from darkroom.distillation.rollout import Acting
    from darkroom.distillation.transformer import Transformer

DRAWN_TASKS, DRAWN_EPISODES = 4, 20  # whose paths a figure shows
ALL = -1


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:evaluate`."""

    model: str = option("trained", "run or checkpoint of ad:train")
    sizes: str = option("", "sides of the rooms; empty: those of the training")
    test_tasks: str = option(
        "",
        "file of test tasks (row column, after the key's if there is one), none of them trained on; empty: the split's",
    )
    training_tasks: int = option(
        ALL,
        "training tasks that are evaluated too, in rooms of a trained size, drawn by the seed; -1: all",
        low=ALL,
    )
    episodes: int = option(80, "episodes of an agent, in one context", low=5, high=10_000)
    copies: int = option(5, "agents per task", low=1, high=1000)
    actions: str = option(
        "sampled", "sampled from the policy, or its most probable", choices=("sampled", "greedy")
    )
    when_full: str = option(
        "trained",
        "what an agent does when its window is full",
        choices=("trained", "halve", "ring"),
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
        """Sides that are given."""
        return list(map(int, self.sizes.split()))


@dataclass(frozen=True)
class Trained:
    """A trained transformer.

    Attributes:
        model: The transformer.
        splits: Its tasks by room size.
        about: Other values of the checkpoint, see `train_ad.describe`.
        run_id: Run of the training.
        update: Update of the checkpoint.
    """

    model: Transformer
    splits: dict[int, TaskSplit]
    about: dict[str, Any]
    run_id: str
    update: int

    @property
    def has_keys(self) -> bool:
        """Whether tasks that were trained on have a key."""
        splits = self.splits.values()
        return any(grid.needs_key(split.training, split.size).any() for split in splits)

    @property
    def has_validation(self) -> bool:
        """Whether the training chose variants by validation tasks, in rooms of any size."""
        return any(split.validation for split in self.splits.values())

    def offsets(self, part: str, side: int) -> set[int]:
        """Return the tasks of rooms of this side with the offsets from the centre that a part of any split has."""
        return {
            grid.task_in_room(goal, split.size, side)
            for split in self.splits.values()
            for goal in getattr(split, part)
        }


@dataclass(frozen=True)
class Part:
    """Tasks that are evaluated together.

    Attributes:
        size: Side of their rooms.
        name: See :class:`darkroom.distillation.scores.PartScores`.
        goals: Tasks as in :mod:`darkroom.rooms.grid`.
    """

    size: int
    name: str
    goals: Sequence[int]


def main(config: Config) -> dict[str, Any]:
    """Let agents act in all tasks and return the result."""
    import torch

    from darkroom.distillation.rollout import Acting, paths

    torch.set_num_threads(1)
    trained = load(config.model)
    parts = choose_parts(config, trained)
    about = trained.about
    when_full = about["when_full"] if config.when_full == "trained" else config.when_full
    if when_full == "ring" and len(trained.model.positions):
        raise record.UserError(
            f"--when-full: a ring needs a model trained with --positions time; {config.model} has "
            f"{trained.model.shape.positions} positions"
        )
    greedy = config.actions == "greedy"
    acting = Acting(config.episodes, when_full, greedy=greedy)
    with record.start(config, study="darkroom") as run:
        run.add_parent(trained.run_id)
        for side in untrained_sides(parts, trained):
            run.event(
                f"note: the walls of {side} x {side} rooms are farther from the centre than any cell of the training"
            )
        scored = []
        explorers = explore(parts[0], about, config, run.seeds.generator("explorers"))
        for index, part in enumerate(parts):
            rng = run.seeds.generator(f"evaluation {part.name}", part.size)
            scored.append(evaluate(trained, part, acting, config.copies, rng))
            run.progress(index + 1, len(parts), "part")
        first = parts[0]
        to_goal = grid.steps_to_rewards(first.size, np.asarray(first.goals))[1]
        farthest = np.asarray(first.goals)[np.argsort(-to_goal, kind="stable")[:DRAWN_TASKS]]
        tasks = Tasks.of_rooms([(first.size, farthest)], about["limit"], about["terminating"])
        acting = Acting(DRAWN_EPISODES, when_full, greedy=greedy)
        cells = paths(trained.model, tasks, acting, run.seeds.generator("paths"))

        sources = source_curves(trained, scored)
        metrics = log(run, scored, sources, explorers)
        draw(run, scored, sources, explorers, tasks.goals, cells)
        split = split_of(config, trained, first)
        goals = [(first.size, int(goal)) for goal in first.goals]
        run.declare_evaluation(split, f"{split} tasks", contents=goals)
        return run.finish(result(config, trained, scored, metrics))


def untrained_sides(parts: Sequence[Part], trained: Trained) -> list[int]:
    """Return the sides of rooms with rows or columns whose vectors were never trained."""
    reach = trained.about.get("trained_reach")  # older checkpoints lack it
    if reach is None or trained.model.shape.states != "row_column":
        return []
    return sorted({part.size for part in parts if part.size // 2 > reach})


def load(path: str) -> Trained:
    """Load the checkpoint of a training.

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
    splits = {split.size: split for split in map(TaskSplit.from_state, about["divisions"])}
    return Trained(model.eval(), splits, about, checkpoint.run_id, checkpoint.step)


def choose_parts(config: Config, trained: Trained) -> list[Part]:
    """Return the tasks to evaluate.

    A model sees cells relative to the centre and no size. So in rooms of a size that was not trained on, goals at the
    offset of a training goal (`shown_offset`) are separate from the others (`unseen_offset`).

    Raises:
        UserError: A test task was trained on, or the model cannot be shown these rooms.
    """
    shape = trained.model.shape
    sides = config.sides or sorted(trained.splits)
    for side in sides:
        if not shape.fits(side):
            raise record.UserError(
                f"--sizes: {side}: this model knows the cells of {shape.size} x {shape.size} rooms alone "
                f"(states={shape.states})"
                if shape.states == "table"
                else f"--sizes: {side}: this model knows cells up to {shape.reach} from the centre"
            )
    chosen = _chosen_tasks(config, sides, trained)
    parts = []
    for side in sides:
        if (split := trained.splits.get(side)) is None:
            parts += _parts_by_offset(trained, side, chosen)
            continue
        # A training with validation tasks chooses variants: the test tasks must not influence the choice.
        if chosen is not None:
            parts.append(Part(side, "held_out", chosen))
        elif trained.has_validation:
            parts.append(Part(side, "validation", split.validation))
        else:
            parts.append(Part(side, "held_out", split.test))
        parts.append(Part(side, "training", _training_tasks(config, split)))
    parts = [part for part in parts if len(part.goals)]
    if not parts:
        raise record.UserError("--training-tasks, --sizes: no task is left to evaluate")
    for part in parts:
        if problem := grid.reach_problem(part.size, trained.about["limit"], part.goals):
            flag = "--test-tasks" if config.test_tasks else "--sizes"
            raise record.UserError(f"{flag}: {problem}, the length of the model's episodes")
    return parts


def _training_tasks(config: Config, split: TaskSplit) -> Sequence[int]:
    """Return the training tasks that are evaluated, in order."""
    if config.training_tasks == ALL or config.training_tasks >= len(split.training):
        return split.training
    rng = record.Seeds(config.seed).generator("evaluated training tasks", split.size)
    return sorted(rng.choice(split.training, config.training_tasks, replace=False).tolist())


def split_of(config: Config, trained: Trained, part: Part) -> str:
    """Return the split of a part's tasks: training, validation or test."""
    if part.name in ("training", "shown_offset"):
        return "training"
    if config.test_tasks:
        return "test"
    return "validation" if trained.has_validation else "test"


def _parts_by_offset(trained: Trained, side: int, goals: Sequence[int] | None) -> list[Part]:
    """Return tasks of rooms whose size was not trained on, by whether their offsets were trained on.

    By default these are all without a key; a model that was trained with keys has its own tasks at the same offsets.
    """
    if goals is None and trained.has_keys:
        parts = ("training", "validation") if trained.has_validation else ("training", "test")
        goals = sorted(set.union(*(trained.offsets(part, side) for part in parts)) - {-1})
    if goals is None:
        goals = grid.tasks(side).tolist()
        if trained.has_validation:
            test = trained.offsets("test", side)
            goals = [goal for goal in goals if goal not in test]
    shown = trained.offsets("training", side)
    return [
        Part(side, "unseen_offset", [goal for goal in goals if goal not in shown]),
        Part(side, "shown_offset", [goal for goal in goals if goal in shown]),
    ]


def _chosen_tasks(config: Config, sides: Sequence[int], trained: Trained) -> list[int] | None:
    """Return the tasks of `--test-tasks`; None without the flag."""
    if config.test_tasks and len(sides) > 1:
        raise record.UserError("--test-tasks: a file is for one size of rooms")
    goals = read_task_file(config.test_tasks, sides[0], "--test-tasks")
    if goals is None:
        return None
    split = trained.splits.get(sides[0])
    for goal in goals:
        if split is not None and goal in split.training:
            raise record.UserError(
                f"--test-tasks: {grid.task_text(goal, sides[0])} was trained on by {config.model}"
            )
    return goals


def evaluate(
    trained: Trained, part: Part, acting: Acting, copies: int, rng: np.random.Generator
) -> PartScores:
    """Let agents act in the tasks of a part."""
    from darkroom.distillation.rollout import learn_in_context

    tasks = tasks_of(part, trained.about)
    return PartScores.of(
        part.name, tasks, *learn_in_context(trained.model, tasks, acting, copies, rng)
    )


def tasks_of(part: Part, about: dict[str, Any]) -> Tasks:
    """Return the tasks of a part, with the rules of the training."""
    return Tasks.of_rooms([(part.size, part.goals)], about["limit"], about["terminating"])


def explore(
    part: Part, about: dict[str, Any], config: Config, rng: np.random.Generator
) -> PartScores:
    """Let scripted explorers act in the tasks of a part, for comparison."""
    return scores.of_explorers(tasks_of(part, about), config.episodes, config.copies, rng)


def source_curves(
    trained: Trained, parts: Sequence[PartScores]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return environment steps of a task and the source agents' mean normalised return, by held-out part."""
    curves = {}
    about = trained.about
    for size, source in zip(trained.splits, about["sources"], strict=True):
        rows = {goal: row for row, goal in enumerate(source["goals"])}
        for part in parts:
            if part.size != size or part.part not in ("held_out", "validation"):
                continue
            known = [int(goal) for goal in part.goals if int(goal) in rows]
            if not known:
                continue
            returns = np.asarray(source["returns"])[[rows[goal] for goal in known]]
            normalised = grid.normalised_return(
                returns.T, size, np.asarray(known), about["limit"], terminating=about["terminating"]
            )
            curves[part.name] = np.asarray(source["steps"]), normalised.mean(axis=1)
    return curves


def log(
    run: record.Run,
    parts: Sequence[PartScores],
    sources: dict[str, tuple[np.ndarray, np.ndarray]],
    explorers: PartScores,
) -> dict[str, float]:
    """Log the curves, those of explorers in the first part's tasks, and return the metrics of the result."""
    metrics: dict[str, float] = {}
    for part in parts:
        _log_part(run, part)
        metrics |= scores.metrics(part)
    first = parts[0].name
    for index, (value, steps) in enumerate(zip(explorers.curve(), explorers.steps(), strict=True)):
        run.log({f"{first}/explorer": value, f"{first}/explorer_steps": steps}, index + 1)
    for name, end in scores.blocks(explorers.episodes).items():
        metrics[f"{first}/explorer_{name}"] = float(explorers.by_goal(end).mean())
    by_name = {part.name: part for part in parts}
    for name, (steps, curve) in sources.items():
        for step, value in zip(steps, curve, strict=True):
            run.log({f"{name}/source": float(value)}, int(step))
        part = by_name[name]
        for who, needed in (
            ("in_context", scores.steps_to(part.steps(), part.curve())),
            ("source", scores.steps_to(steps, curve)),
        ):
            if np.isfinite(needed):
                metrics[f"{name}/{who}_steps_to_80"] = needed
    return metrics


def _log_part(run: record.Run, part: PartScores) -> None:
    """Log curves at step = episode, and the last block at step = goal."""
    low, high = part.band()
    for index, steps in enumerate(part.steps()):
        run.log({f"{part.name}/steps": float(steps)}, index + 1)
    for index, value in enumerate(part.curve()):
        point = {"": value, "_low": low[index], "_high": high[index]}
        run.log({f"{part.name}/in_context{k}": float(v) for k, v in point.items()}, index + 1)
    for index, (share, by_chance) in enumerate(part.explored().T):
        run.log({f"{part.name}/met": share, f"{part.name}/met_random": by_chance}, index + 1)
    for goal, value in zip(part.goals, part.by_goal(part.episodes), strict=True):
        run.log({f"{part.name}/by_goal": float(value)}, int(goal))


def draw(
    run: record.Run,
    parts: Sequence[PartScores],
    sources: dict[str, tuple[np.ndarray, np.ndarray]],
    explorers: PartScores,
    path_goals: np.ndarray,
    path_cells: np.ndarray,
) -> None:
    """Draw learning curves, returns by goal, and paths in the first part's rooms.

    Args:
        run: The evaluation.
        parts: Scores of all parts.
        sources: See :func:`source_curves`.
        explorers: Scores of explorers in the first part's tasks.
        path_goals: Goals of the paths.
        path_cells: See :func:`darkroom.distillation.rollout.paths`.
    """
    with record.optional(run, "figure"):
        source = next(iter(sources.values()), None)
        curves = [part.learning_curve() for part in parts]
        explorer = explorers.learning_curve()
        figures.in_context(run.artifact("in_context.svg"), curves, source, explorer)
        rooms, held_out = {}, {}
        for size in {part.size: None for part in parts}:
            of_size = [part for part in parts if part.size == size]
            # With keys a door belongs to several tasks, of several parts: those of the first are drawn, without dots.
            keys = grid.needs_key(of_size[0].goals, size).any()
            of_size = of_size[:1] if keys else of_size
            tasks = np.concatenate([part.goals for part in of_size])
            values = np.concatenate([part.by_goal(part.episodes) for part in of_size])
            rooms[size] = grid.mean_by_goal(size, tasks, values)
            if not keys and of_size[0].part in ("held_out", "validation", "unseen_offset"):
                held_out[size] = of_size[0].goals
        figures.by_goal(run.artifact("by_goal.svg"), rooms, held_out)
        figures.paths(run.artifact("paths.svg"), parts[0].size, path_goals, path_cells)


def result(
    config: Config, trained: Trained, parts: Sequence[PartScores], metrics: dict[str, float]
) -> dict[str, Any]:
    """Return the result, whose objective is the first part's last block."""
    first = parts[0]
    block = scores.last_block(config.episodes)
    by_goal = first.by_goal(config.episodes)
    low, high = scores.interval(by_goal)
    name, last = f"{first.name}/{block}", block.removeprefix("episodes_").replace("_", "–")
    others = [
        key
        for key in metrics
        if key.startswith(f"{first.name}/") and key != name and not key.endswith(("_low", "_high"))
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
        "table": scores.table(list(parts)),
        "env_steps": sum(int(part.lengths.sum()) for part in parts),
        "variant": {"sizes": " ".join(map(str, sorted({part.size for part in parts}))),
                    "update": trained.update},
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
