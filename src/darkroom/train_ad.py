"""Trains a transformer on the learning histories of source agents, so that it learns new tasks in its context."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from darkroom.distillation.options import Config
from runcatalog import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from darkroom.a2c.histories import Histories
    from darkroom.distillation.task_split import Division
    from darkroom.distillation.update import Learner


def main(config: Config) -> dict[str, Any]:
    """Trains, plays in between, and returns what the record says."""
    import torch

    from darkroom.distillation import task_split as division
    from darkroom.distillation import update as training

    histories = division.open_histories(config)
    divisions = division.divide(config, histories)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise record.UserError("--device: torch sees no GPU here; use cpu")
    torch.set_num_threads(1)  # of small matrices: more only get into each other's way
    with record.start(config, study="darkroom") as run:
        for parent in division.parents(histories):
            run.add_parent(parent)
        division.write_divisions(run, divisions)
        learner = training.Learner(config, histories, divisions, run.seeds)
        tasks = training.parts(divisions, histories, validating=config.validation_share > 0)
        total = learner.settings.updates
        about = describe(config, histories, divisions)
        played: dict[str, float] = {}
        checkpoint = run.restore()
        if checkpoint is not None:
            learner.restore(checkpoint.tensors, checkpoint.state["learner"])
            played = checkpoint.state["played"]
        pace = training.Pace(learner.settings.batch_size * learner.settings.window)
        every = max(1, total // training.POINTS)
        # As many plays as wanted, the last of them at the end.
        plays = {round(total * (i + 1) / config.evaluations) for i in range(config.evaluations)}
        while learner.update < total:
            pace.add(learner.step())
            if learner.update % every == 0 or learner.update == total:
                point = pace.point()
                record.check_finite(learner.update, {"loss": point["loss"]})
                run.log(point, learner.update)
            if learner.update in plays:
                rng = run.seeds.generator("plays", learner.update)
                played = training.play_parts(learner.model, tasks, config, rng)
                run.log(played, learner.update)
                tell(run, learner.update, played)
                pace.skip()
            run.progress(learner.update, total, "update")
            if learner.update % config.save_interval == 0 or learner.update == total:
                run.checkpoint(
                    learner.update,
                    learner.model.state_dict(),
                    {"learner": learner.state(), "played": played, "about": about},
                )
        run.digest_weights(learner.model.state_dict())
        return run.finish(result(config, learner, tasks, played))


def describe(
    config: Config, histories: Sequence[Histories], divisions: Sequence[Division]
) -> dict[str, Any]:
    """What `ad:evaluate` has to know: plain values."""
    about = histories[0].about
    from darkroom.a2c.curves import by_episode

    return {
        "shape": vars(config.shape(max(config.sides), about.limit)),
        "limit": about.limit,
        "terminating": about.terminating,
        "when_full": config.when_full,
        "divisions": [each.state() for each in divisions],
        "sources": [by_episode(each) for each in histories],
    }


def result(
    config: Config, learner: Learner, tasks: dict[str, Any], played: dict[str, float]
) -> dict[str, Any]:
    """The last plays: tasks that were kept out, or those for training if there are no others."""
    from darkroom.distillation import update as training

    part = next(iter(tasks))
    name = f"{part}/{training.last_name(config.episodes)}"
    settings = learner.settings
    transitions = settings.updates * settings.batch_size * settings.window
    return {
        "objective": {
            "name": name, "value": played[name], "kind": "mean", "goal": "max",
            "at": settings.updates, "axis": "update",
            "also": [
                {"name": key, "value": value, "kind": "mean"}
                for key, value in played.items()
                if key != name
            ],
        },
        "metrics": played | {"transitions": float(transitions)},
        "settings": vars(settings),
        "variant": {
            "preset": config.preset, "layout": settings.layout, "states": settings.states,
            "windows": settings.windows, "split": config.split,
        },
    }  # fmt: skip


def tell(run: record.Run, update: int, played: dict[str, float]) -> None:
    """Says on the terminal how it goes."""
    shown = ", ".join(f"{name} {value:.2f}" for name, value in played.items())
    run.event(f"update {update}: {shown}")


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
