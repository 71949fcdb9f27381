"""How a model does in games that training never saw, as a run's result says it."""

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

SHOWN = (1, 2, 3, 5, 10, 15, 25, 50, 100)  # turns, in the table


def tested(loaded: Loaded, config: PlayConfig, run: record.Run) -> dict[str, Any]:
    """Plays the validation games with likeliest and with drawn tokens, and writes some of the dialogues down.

    Returns:
        A result, but for `at` and `axis` of its objective, which is success with likeliest tokens.
    """
    from textgames.games import levels
    from textgames.results import dialogues, validation

    seeds = levels.validation(config, config.val_data_num)
    metrics, curves = {}, {}
    for name in validation.ACTIONS:
        draws = (
            run.seeds.torch(loaded.ranks.stream("validation draws")) if name == "sampled" else None
        )
        played = validation.validate(loaded, config, seeds, draws, run=run)
        page = dialogues.page(f"{config.env}: {name} replies", played)
        run.artifact(f"dialogues_{name}.md").write_text(page, encoding="utf-8")
        summary = validation.statistics(played)
        metrics |= {f"{name}/{what.replace('/', '_')}": value for what, value in summary.items()}
        curves[name] = by_turn(played, config.max_turns)
    curves |= known(config, seeds, config.max_turns)
    for turn in shown(config.max_turns):
        metrics |= {
            f"{name}/success_{turn}": float(curves[name][turn - 1]) for name in validation.ACTIONS
        }
    metrics |= {"chance": float(curves["random"][-1]), "optimum": float(curves["optimum"][-1])}
    return {
        "objective": {
            "name": "success", "value": metrics["greedy/success"], "kind": "rate", "count": len(seeds), "goal": "max",
        },
        "variant": beside(curves),
        "metrics": metrics,
        "task": config.env,
        "table": table(curves),
    }  # fmt: skip


def by_turn(trajectories: Sequence[Trajectory], turns: int) -> NDArray[Any]:
    """The share of games that are won within 1, 2, … turns, float64 [turns]."""
    import numpy as np

    won = np.array([len(each.turns) if each.success else turns + 1 for each in trajectories])
    return (won[:, None] <= np.arange(1, turns + 1)).mean(0)


def known(config: GameConfig, seeds: NDArray[Any], turns: int) -> dict[str, NDArray[Any]]:
    """What random actions and the best player reach on the levels of seeds within 1, 2, … turns."""
    from textgames.games import bounds

    found = bounds.chances(config, seeds, turns)
    return {"random": found.random.mean(0), "optimum": found.optimal.mean(0)}


def shown(turns: int) -> list[int]:
    """Limits of turns that a table has."""
    return sorted({*(each for each in SHOWN if each <= turns), turns})


def table(curves: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """A row for each curve over turns, in per cent."""
    limits = shown(len(next(iter(curves.values()))))
    rows = [
        [name, *(f"{100 * curve[turn - 1]:.1f}" for turn in limits)]
        for name, curve in curves.items()
    ]
    return {"columns": ["success within turns [%]", *map(str, limits)], "rows": rows}


def beside(curves: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """What random actions, the best player and a model's other way to reply reach, as a result's `variant` has it."""
    found = {"chance": "random", "at best": "optimum", "with drawn replies": "sampled"}
    return {
        name: f"{100 * curves[curve][-1]:.1f} %" for name, curve in found.items() if curve in curves
    }
