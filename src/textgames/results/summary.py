"""A model's result: success in validation or test games beside random actions and the best possible player."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from runcatalog import record
    from textgames.games.config import GameConfig
    from textgames.learning.options import PlayConfig
    from textgames.models.loading import Loaded
    from textgames.models.trajectories import Trajectory

TURN_LIMITS = (1, 2, 3, 5, 10, 15, 25, 50, 100)  # columns of the table


def final_result(loaded: Loaded, config: PlayConfig, run: record.Run) -> dict[str, Any]:
    """Play the games of `final_levels` with the most likely and with sampled tokens, and save some dialogues.

    Returns:
        A result without `at` and `axis` of its objective, which is the success rate with the most likely tokens.
    """
    from runcatalog import record
    from textgames.games import levels
    from textgames.results import dialogues, validation

    seeds = levels.evaluation(config, config.final_levels, config.val_data_num)
    keys = levels.level_keys(config, seeds)
    declare(run, config.final_levels, keys)
    metrics, curves, success = {}, {}, {}
    for name in validation.ACTIONS:
        generator = None
        if name == "sampled":
            generator = run.seeds.torch(loaded.ranks.stream_name("validation draws"))
        trajectories = validation.validate(loaded, config, seeds, generator, run=run)
        page = dialogues.page(f"{config.env}: {name} replies", trajectories)
        run.artifact(f"dialogues_{name}.md").write_text(page, encoding="utf-8")
        rate = "success" if name == "greedy" else f"{name}/success"  # the first is the objective
        success[rate] = [trajectory.success for trajectory in trajectories]
        statistics = validation.statistics(trajectories)
        metrics |= {f"{name}/{key}": value for key, value in statistics.items()}
        curves[name] = success_by_turn(trajectories, config.max_turns)
    curves |= bound_curves(config, seeds, config.max_turns)
    for turn in turn_limits(config.max_turns):
        metrics |= {
            f"{name}/success_{turn}": float(curves[name][turn - 1]) for name in validation.ACTIONS
        }
    metrics |= {"chance": float(curves["random"][-1]), "optimum": float(curves["optimum"][-1])}
    return {
        "objective": {
            "name": "success", "value": metrics["greedy/success"], "kind": "rate", "count": len(seeds), "goal": "max",
        },
        "variant": variant(curves),
        "metrics": metrics,
        "task": config.env,
        "table": table(curves),
        "outcomes": [record.level_outcomes(keys, success)],
    }  # fmt: skip


def declare(run: record.Run, name: str, keys: NDArray[Any]) -> None:
    """Declare the set of levels on which the result is computed.

    Args:
        run: The record.
        name: One of `textgames.games.config.SETS`.
        keys: Keys of its levels, see `levels.level_keys`.
    """
    run.declare_evaluation(name.partition("_")[0], f"{name} levels", contents=keys)


def success_by_turn(trajectories: Sequence[Trajectory], turns: int) -> NDArray[Any]:
    """Return the share of games that are won within 1, 2, … turns, float64 [turns]."""
    import numpy as np

    needed = np.array([len(t.turns) if t.success else turns + 1 for t in trajectories])
    return (needed[:, None] <= np.arange(1, turns + 1)).mean(0)


def bound_curves(config: GameConfig, seeds: NDArray[Any], turns: int) -> dict[str, NDArray[Any]]:
    """Return the success rates of random actions and of the best player within 1, 2, … turns."""
    from textgames.games import bounds

    rates = bounds.success_rates(config, seeds, turns)
    return {"random": rates.random.mean(0), "optimum": rates.optimal.mean(0)}


def turn_limits(turns: int) -> list[int]:
    """Return the limits of turns in a table."""
    return sorted({*(limit for limit in TURN_LIMITS if limit <= turns), turns})


def table(curves: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return a table with a row per curve over turns, in percent."""
    limits = turn_limits(len(next(iter(curves.values()))))
    rows = [
        [name, *(f"{100 * curve[turn - 1]:.1f}" for turn in limits)]
        for name, curve in curves.items()
    ]
    return {"columns": ["success within turns [%]", *map(str, limits)], "rows": rows}


def variant(curves: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return the success rates of random actions, the best player and sampled replies, for a result's `variant`."""
    names = {"chance": "random", "at best": "optimum", "with drawn replies": "sampled"}
    return {
        name: f"{100 * curves[curve][-1]:.1f} %" for name, curve in names.items() if curve in curves
    }
