"""Summary of a training run: evaluation on the test worlds, figure, video, result."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from door.training.evaluation import Evaluation, validation_area
from door.training.figures import learning_curve
from door.training.trainer import DoorAgent, Trainer
from door.training.tuned_flags import Tuned
from runcatalog import record


def finish(
    trainer: Trainer,
    agent: DoorAgent,
    method: str,
    *,
    task_id: int | None = None,
) -> dict[str, Any]:
    """Evaluate on the 100 test worlds, of previous tasks too; draw the figures; finish the run.

    Args:
        trainer: Of the run.
        agent: The trained agent.
        method: Name of the method in the thesis.
        task_id: Place of the task in a series, from 0; None for a method without series.

    Returns:
        The content of `result.json`.
    """
    run, config, update = trainer.run, trainer.config, trainer.update
    trainer.save_policies(agent)
    with trainer.test_worlds() as worlds:
        evaluation = trainer.evaluate(agent, worlds)
        of_tasks = trainer.rates_of_tasks(agent, worlds)
    run.declare_evaluation("test", f"test worlds of {config.task}", contents=evaluation.worlds)
    metrics = {
        "opening_rate": evaluation.opening_rate,
        "opened_any_way": float(evaluation.opened.mean()),
        "contact_rate": evaluation.contact_rate,
        "opening_time": evaluation.opening_time,
        "eval_episode_return": evaluation.episode_return,
        "max_penetration": evaluation.max_penetration,
    }
    if rates := [rate for at, _, rate in trainer.curve if at]:  # at 0, the policy of earlier tasks
        metrics["validation_area"] = validation_area(
            rates, math.ceil(trainer.total / config.eval_interval)
        )
        metrics["validation_episode_return"] = trainer.validation_return(agent)
    metrics |= of_tasks
    run.log(metrics, update)
    _draw(trainer, evaluation)
    if config.video:
        _film(trainer, agent)
    run.digest_weights(agent.tensors())
    return run.finish(
        {
            "objective": evaluation.objective(update),
            "metrics": metrics,
            "env_steps": trainer.steps,
            "task": config.task,
            "task_id": task_id,
            **_tuned(config.tuned_from()),
            "variant": {
                "method": method,
                "reward": config.reward,
                "start": config.start,
                "robot": config.robot,
                "tuned": config.tuned,
                "exploded": trainer.exploded,
            },
        }
    )


def _tuned(taken: Tuned | None) -> dict[str, Any]:
    return {"tuned": dataclasses.asdict(taken)} if taken else {}


def _draw(trainer: Trainer, evaluation: Evaluation) -> None:
    run, config = trainer.run, trainer.config
    tasks = config.task.split()
    name = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    title = f"{name}, {config.robot}, seed {config.seed}"
    with record.optional(run, "learning curve"):
        final, worlds = evaluation.opening_rate, len(evaluation.successes)
        learning_curve(run.artifact("learning_curve.svg"), trainer.curve, final, worlds, title)


def _film(trainer: Trainer, agent: DoorAgent) -> None:
    run, config = trainer.run, trainer.config
    task, policy = trainer.policies(agent)[-1]
    with record.optional(run, "video"):
        from door.env.render import record_video

        path = run.artifact("policy.mp4")
        video = record_video(policy, path, task, config.robot, seeds=run.seeds, start=config.start)
        if not video.path:
            run.event(f"no video: {video.reason}")
