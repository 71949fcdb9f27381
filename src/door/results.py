"""The end of a training run: the reported evaluation, the figure, the video, the result."""

from __future__ import annotations

import dataclasses
from typing import Any

from door.figures import learning_curve
from door.training import TEST, DoorAgent, Training
from door.tuned import Tuned
from rl.policy import Policy
from runcatalog import record


def finish(
    training: Training,
    agent: DoorAgent,
    method: str,
    *,
    task_id: int | None = None,
) -> dict[str, Any]:
    """Evaluates on the 100 test worlds, of the tasks before too, draws, and ends the run.

    Args:
        training: where the run stands.
        agent: trained.
        method: what the paper calls the way of training.
        task_id: place of the task in a series; None where there is none.

    Returns:
        What `record.Run.finish` wrote.
    """
    run, config, update = training.run, training.config, training.update
    policy = agent.policy()
    training.snapshot(agent)
    seen = training.evaluate(policy, TEST)
    metrics = {
        "opening_rate": seen.opening_rate,
        "opened_any_way": float(seen.opened.mean()),
        "contact_rate": seen.contact_rate,
        "opening_time": seen.opening_time,
        "eval_episode_return": seen.episode_return,
        "max_penetration": seen.max_penetration,
    }
    for index, (task, old_policy) in enumerate(training.policies(agent)[:-1]):
        rate = training.evaluate(old_policy, TEST, task).opening_rate
        metrics[f"opening_rate/{index}_{task}"] = rate
    run.log(metrics, update)
    _draw(training, seen.opening_rate)
    if config.video:
        _film(training, policy)
    run.digest_weights(agent.tensors())
    return run.finish(
        {
            "objective": {
                "name": "opening_rate",
                "value": seen.opening_rate,
                "kind": "rate",
                "count": len(seen.successes),
                "goal": "max",
                "at": update,
                "axis": "update",
            },
            "metrics": metrics,
            "env_steps": training.steps,
            "task": config.task,
            "task_id": task_id,
            **_tuned(config.tuned_from()),
            "variant": {
                "method": method,
                "reward": config.reward,
                "start": config.start,
                "robot": config.robot,
                "tuned": config.tuned,
                "exploded": training.exploded,
            },
        }
    )


def _tuned(taken: Tuned | None) -> dict[str, Any]:
    return {"tuned": dataclasses.asdict(taken)} if taken else {}


def _draw(training: Training, final: float) -> None:
    run, config = training.run, training.config
    title = f"{config.task}, {config.robot}, seed {config.seed}"
    with record.optional(run, "learning curve"):
        learning_curve(run.artifact("learning_curve.svg"), training.curve, final, title)


def _film(training: Training, policy: Policy) -> None:
    run, config = training.run, training.config
    with record.optional(run, "video"):
        from door.render import record_video

        path = run.artifact("policy.mp4")
        video = record_video(
            policy, path, config.task, config.robot, seeds=run.seeds, start=config.start
        )
        run.event(f"video: {video.path}" if video.path else f"no video: {video.reason}")
