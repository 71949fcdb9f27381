"""How a model does in games that training never saw, as a run's result says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textgames.games import BANDIT

if TYPE_CHECKING:
    import record
    from textgames.models import Loaded
    from textgames.playing import PlayConfig

TURNS = (1, 2, 5, 10, 25, 50, 100)
"""Limits of turns at which success is told, up to the flags' one."""


def tested(loaded: Loaded, config: PlayConfig, run: record.Run) -> dict[str, Any]:
    """Plays the validation games with likeliest and with drawn tokens, and writes some of the dialogues down.

    Returns:
        A result without the `at` and `axis` of its objective: success with likeliest tokens. In its table the chances
        of random and of best actions stand beside what was reached within so many turns.
    """
    import numpy as np

    from textgames import chances, dialogues, levels, playing

    seeds = levels.validation(config, config.val_data_num)
    metrics: dict[str, float] = {}
    curves = {}
    for name in ("greedy", "sampled"):
        draws = run.seeds.torch("validation draws") if name == "sampled" else None
        played = playing.validate(loaded, config, seeds, draws, run=run)
        page = dialogues.page(f"{config.env}: {name} replies", played)
        run.artifact(f"dialogues_{name}.md").write_text(page, encoding="utf-8")
        summary = playing.summary(played)
        metrics |= {f"{name}/{what.replace('/', '_')}": value for what, value in summary.items()}
        won = np.array([len(each.turns) if each.success else 1 << 30 for each in played])
        curves[name] = [float((won <= turn + 1).mean()) for turn in range(config.max_turns)]
    known = chances.chances(config, seeds, config.max_turns)
    curves["chance"], curves["optimum"] = (each.mean(0).tolist() for each in known)
    metrics |= {"chance": curves["chance"][-1], "optimum": curves["optimum"][-1]}
    limits = [turn for turn in TURNS if turn < config.max_turns and config.env != BANDIT]
    rows = []
    for turn in (*limits, config.max_turns):
        at = {name: each[min(turn, len(each)) - 1] for name, each in curves.items()}
        rows.append([str(turn), *(f"{100 * value:.1f}" for value in at.values())])
        metrics |= {f"{name}/success_{turn}": at[name] for name in ("greedy", "sampled")}
    return {
        "objective": {
            "name": "success", "value": metrics["greedy/success"], "kind": "rate", "count": len(seeds), "goal": "max",
        },
        "summary": f"chance {100 * metrics['chance']:.1f} %, at best {100 * metrics['optimum']:.1f} %",
        "metrics": metrics,
        "task": config.env,
        "table": {"columns": ["turns", *(f"{name} [%]" for name in curves)], "rows": rows},
    }  # fmt: skip
