"""Train a transformer on the learning histories of source agents, so that it learns new tasks in its context."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom.distillation import ad_options
from darkroom.rooms.play import Tasks
from runcatalog import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from darkroom.a2c.histories import Histories
    from darkroom.distillation.task_split import TaskSplit
    from darkroom.distillation.transformer import Transformer
    from darkroom.distillation.windows import Sampler

POINTS = 200  # of the loss's curve


@dataclass(frozen=True)
class Config(ad_options.Config):
    """Flags of `ad:train`."""


def main(config: Config) -> dict[str, Any]:
    """Train, validate by rollouts, and return the result."""
    import torch

    from darkroom.distillation import task_split
    from darkroom.distillation.update import Learner

    histories = task_split.open_histories(config)
    splits = task_split.split_tasks(config, histories)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise record.UserError("--device: torch sees no GPU here; use cpu")
    torch.set_num_threads(1)  # the matrices are too small for more
    settings, limit = config.settings(), histories[0].about.limit
    with record.start(config, study="darkroom") as run:
        for parent in task_split.parent_runs(histories):
            run.add_parent(parent)
        task_split.write_test_tasks(run, splits)
        shape = config.shape(max(config.sides), limit)
        sampler = training_windows(config, histories, splits, run.seeds.generator("windows"))
        learner = Learner(config, shape, sampler, run.seeds)
        tasks = rollout_tasks(splits, histories, validating=config.validation_share > 0)
        description = describe(config, histories, splits)
        scores: dict[str, float] = {}
        if checkpoint := run.restore():
            learner.restore(checkpoint.tensors, checkpoint.state["learner"])
            scores = checkpoint.state["played"]
        meter = Meter(settings.batch_size * settings.window, checkpoint)
        log_interval = record.log_interval(settings.updates, POINTS)
        rollout_updates = evenly_spaced(config.evaluations, settings.updates)

        while learner.updates < settings.updates:
            meter.add(learner.update())
            update = learner.updates
            if record.is_due(update, log_interval, settings.updates):
                means = meter.means()
                record.check_finite(update, {"loss": means["loss"]})
                run.log(means, update)
            if update in rollout_updates:
                rng = run.seeds.generator("plays", update)
                scores = rollout_scores(learner.model, tasks, config, rng)
                run.log(scores, update)
                values = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
                run.event(f"update {update}: {values}")
                meter.restart_clock()
            run.progress(update, settings.updates, "update")
            if run.checkpoint_due(update, config.save_interval, settings.updates):
                state = {
                    "learner": learner.state(), "played": scores, "about": description,
                    "losses": meter.losses(),
                }  # fmt: skip
                run.checkpoint(update, learner.model.state_dict(), state)

        run.digest_weights(learner.model.state_dict())
        part = next(iter(tasks))
        split = "test" if part == "held_out" else part
        goals = zip(tasks[part].sizes.tolist(), tasks[part].goals.tolist(), strict=True)
        run.declare_evaluation(split, f"{split} tasks", contents=goals)
        return run.finish(result(config, part, scores))


def training_windows(
    config: Config,
    histories: Sequence[Histories],
    splits: Sequence[TaskSplit],
    rng: np.random.Generator,
) -> Sampler:
    """Return the sampler of windows from the training tasks' histories."""
    from darkroom.distillation.task_split import used_steps
    from darkroom.distillation.windows import Episodes, Sampler

    sources = []
    for opened, split in zip(histories, splits, strict=True):
        goals = list(opened.about.goals)
        tasks = np.array([goals.index(goal) for goal in split.training])
        sources.append(Episodes(opened, tasks, used_steps(opened, config.settings().history_steps)))
    return Sampler(sources, config.sampling(), rng)


def evenly_spaced(count: int, updates: int) -> set[int]:
    """Return the updates after which `count` evenly spaced rollouts are due; the last is the last update."""
    return {round(updates * (i + 1) / count) for i in range(count)}


def rollout_tasks(
    splits: Sequence[TaskSplit], histories: Sequence[Histories], *, validating: bool
) -> dict[str, Tasks]:
    """Return the tasks of the rollouts during a training, by part: held-out tasks, then training tasks.

    Args:
        splits: Tasks of every size.
        histories: Histories of every size.
        validating: Whether variants are being chosen: then the test tasks are left out.
    """
    about = histories[0].about
    parts = {"validation": "validation"} if validating else {"held_out": "test"}
    tasks = {}
    for part, name in (parts | {"training": "training"}).items():
        rooms = [(split.size, getattr(split, name)) for split in splits if getattr(split, name)]
        if rooms:
            tasks[part] = Tasks.of_rooms(rooms, about.limit, about.terminating)
    return tasks


def rollout_scores(
    model: Transformer, tasks: dict[str, Tasks], config: Config, rng: np.random.Generator
) -> dict[str, float]:
    """Let agents act in all tasks and return the mean normalised returns of first and last episodes, by part."""
    from darkroom.distillation.rollout import Acting, learn_in_context
    from darkroom.distillation.scores import BLOCK, last_block

    scores: dict[str, float] = {}
    for part, part_tasks in tasks.items():
        acting = Acting(config.episodes, config.when_full, greedy=False)
        returns, _ = learn_in_context(model, part_tasks, acting, config.copies, rng)
        curve = part_tasks.normalised(returns).mean(axis=(0, 1))
        scores[f"{part}/episode_1"] = float(curve[0])
        scores[f"{part}/episodes_1_{BLOCK}"] = float(curve[:BLOCK].mean())
        scores[f"{part}/{last_block(config.episodes)}"] = float(curve[-BLOCK:].mean())
    return scores


class Meter:
    """Mean loss and speed between two points of a curve.

    Args:
        transitions: Transitions of an update.
        checkpoint: Where the training continues; None at its beginning.
    """

    def __init__(self, transitions: int, checkpoint: record.Checkpoint | None) -> None:
        self._transitions = transitions
        # Older checkpoints have no losses.
        self._before: list[float] = checkpoint.state.get("losses", []) if checkpoint else []
        self._losses: list[torch.Tensor] = []
        self._seconds = 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave the time since the last update out of the speed."""
        self._since = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of an update that has just ended."""
        self._losses.append(loss)
        self._seconds += time.perf_counter() - self._since
        self.restart_clock()

    def means(self) -> dict[str, float]:
        """Return mean loss and transitions per second since the last point."""
        means = {
            "loss": float(np.mean(self.losses())),
            "time/transitions_per_s": len(self._losses) * self._transitions / self._seconds,
        }
        self._before, self._losses, self._seconds = [], [], 0.0
        return means

    def losses(self) -> list[float]:
        """Return the losses since the last point."""
        return [*self._before, *map(float, self._losses)]


def describe(
    config: Config, histories: Sequence[Histories], splits: Sequence[TaskSplit]
) -> dict[str, Any]:
    """Return what `ad:evaluate` needs besides the weights, as plain values of the checkpoint."""
    from darkroom.a2c.curves import by_episode

    about = histories[0].about
    return {
        "shape": vars(config.shape(max(config.sides), about.limit)),
        "trained_reach": config.trained_reach(max(config.sides)),
        "limit": about.limit,
        "terminating": about.terminating,
        "when_full": config.when_full,
        "divisions": [split.state() for split in splits],
        "sources": [by_episode(opened) for opened in histories],
    }


def result(config: Config, part: str, scores: dict[str, float]) -> dict[str, Any]:
    """Return the result.

    Args:
        config: Flags.
        part: Part of the tasks whose last episodes are the objective.
        scores: The last rollouts.
    """
    from darkroom.distillation.scores import last_block

    settings, name = config.settings(), f"{part}/{last_block(config.episodes)}"
    transitions = settings.updates * settings.batch_size * settings.window
    return {
        "objective": {
            "name": name, "value": scores[name], "kind": "mean", "goal": "max",
            "at": settings.updates, "axis": "update",
            "also": [
                {"name": key, "value": value, "kind": "mean"}
                for key, value in scores.items()
                if key != name
            ],
        },
        "metrics": scores | {"transitions": float(transitions)},
        "settings": vars(settings),
        "variant": {
            "preset": config.preset, "layout": settings.layout, "states": settings.states,
            "windows": settings.windows, "split": config.split,
        },
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
