"""Describe a game's levels: duplicates, shortest solutions, success rates of random actions and the best player."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.model.statistics import interval, wilson
from runcatalog.record import option
from textgames.games.config import GameConfig, make_game
from textgames.games.interface import FROZENLAKE, SOKOBAN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TURNS = (1, 2, 5, 10, 25)
SHOWN = 6  # levels in the picture


@dataclass(frozen=True)
class Config(GameConfig):
    """Flags of `ragen:levels`."""

    env: str = option(SOKOBAN, "game", choices=(SOKOBAN, FROZENLAKE))
    levels: int = option(10_000, "training seeds to examine", low=10)
    validation: int = option(500, "validation seeds, whose levels training excludes", low=10)


def main(config: Config) -> dict[str, Any]:
    """Measure levels, show some, and return the result."""
    import numpy as np

    from textgames.games.bounds import success_rates
    from textgames.games.levels import FIRST, level_keys, training, validation
    from textgames.games.solver import solutions

    with record.start(config, study="textgames") as run:
        validation_seeds = validation(config, config.validation)
        first = FIRST[config.env]
        # From the 10,000th on the seeds reach those of validation, whose levels are not training levels.
        plain = first + np.arange(config.levels + config.validation)
        plain = plain[~np.isin(plain, validation_seeds)][: config.levels]
        allowed = training(config, config.levels, excluded=config.validation)
        keys, validation_keys = level_keys(config, plain), level_keys(config, validation_seeds)
        alike = {
            "distinct": len(np.unique(keys)) / len(keys),
            "met": float(np.isin(validation_keys, keys).mean()),
            "left_out": 1 - len(allowed) / (int(allowed[-1]) + 1 - first),
        }
        run.progress(1, 3, "part")
        actions = solutions(config, validation_seeds, safe=True)
        lengths = np.array([-1 if solution is None else len(solution) for solution in actions])
        run.progress(2, 3, "part")
        rates = success_rates(config, validation_seeds, max(TURNS))
        for turn in range(1, max(TURNS) + 1):
            shares = (rate[:, turn - 1].mean() for rate in rates)
            run.log(dict(zip(("random", "optimal"), shares, strict=True)), step=turn)
        run.artifact("levels.txt").write_text(
            _picture(config, validation_seeds[:SHOWN]), encoding="utf-8"
        )
        result = _result(config, alike, lengths, rates.random, rates.optimal)
        run.log(result["metrics"], step=max(TURNS))  # columns of `guild compare`
        return run.finish(result)


def mean(values: NDArray[np.float64]) -> str:
    """Return a mean of probabilities over levels in percent, with its 95 % interval within 0 and 100.

    The interval is Wilson's for values 0 and 1, otherwise Student's.
    """
    import numpy as np

    if np.isin(values, (0, 1)).all():
        low, high = wilson(round(values.sum()), len(values))
    else:
        low, high = np.clip(interval(values.tolist()), 0, 1)
    return f"{100 * values.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _picture(config: Config, seeds: NDArray[np.int64]) -> str:
    """Return levels side by side, and the prompt of the first level."""
    import numpy as np

    from textgames.games.wording import first_prompt

    game = make_game(config)
    game.reset(seeds)
    grids = [grid.replace("\t", "").splitlines() for grid in game.render(np.arange(len(seeds)))]
    rows = ["   ".join(row).rstrip() for row in zip(*grids, strict=True)]
    return "\n".join(
        [f"seeds {seeds[0]} to {seeds[-1]}", "", *rows, "", first_prompt(config, game, 0), ""]
    )


def _result(
    config: Config,
    alike: dict[str, float],
    lengths: NDArray[np.int64],
    random: NDArray[np.float64],
    optimal: NDArray[np.float64],
) -> dict[str, Any]:
    """Return the result with its tables."""
    solved = lengths[lengths >= 0]
    metrics = {f"alike/{name}": value for name, value in alike.items()}
    rows = []
    for turns in TURNS:
        chance, best = random[:, turns - 1], optimal[:, turns - 1]
        metrics |= {f"random/{turns}": float(chance.mean()), f"optimal/{turns}": float(best.mean())}
        rows.append([str(turns), mean(chance), mean(best)])
    summary = (
        f"within 5 turns random {mean(random[:, 4])} %, at best {mean(optimal[:, 4])} %; within 25 turns "
        f"{mean(random[:, 24])} and {mean(optimal[:, 24])} %; {100 * alike['met']:.0f} % of the validation levels are "
        f"among {config.levels:,} training seeds"
    )
    metrics |= {"solution/mean": float(solved.mean()), "solution/longest": int(solved.max())}
    tables = [{"columns": ["turns", "random [%]", "best possible [%]"], "rows": rows}]
    tables.append(
        {
            "columns": [
                "levels", "distinct [%]", "validation levels among them [%]", "left out [%]",
                "shortest solution, mean [moves]", "longest [moves]", "solved [%]",
            ],
            "rows": [[
                f"{config.levels:,}", *(f"{100 * alike[name]:.1f}" for name in ("distinct", "met", "left_out")),
                f"{solved.mean():.2f}", str(solved.max()), f"{100 * len(solved) / len(lengths):.1f}",
            ]],
        }
    )  # fmt: skip
    return {
        "objective": {
            "name": "optimal/25", "value": metrics["optimal/25"], "kind": "mean", "goal": "max",
            "at": 25, "axis": "turn",
        },
        "summary": summary,
        "metrics": metrics,
        "table": tables,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
