"""What a run of `ad:evaluate` leaves: curves, metrics, a table, figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom import ad_figures, ad_scores, grid
from darkroom.ad_scores import Learned
from runcatalog import record

if TYPE_CHECKING:
    from darkroom.evaluate_ad import Config, Trained


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
        watched: Goals of some of the first part's tasks, and where agents went, as :func:`darkroom.ad_figures.paths`.
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
    try:
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
    except Exception as error:  # whatever matplotlib finds: the run has its result without it
        run.event(f"no figure: {type(error).__name__}: {error}")
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
