"""Play validation or test games with a trained model: success rate over the number of turns."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import flag_name
from textgames.games.config import GAMES, ORDERS, SETS, VALIDATION_SET
from textgames.learning import options
from textgames.learning.options import PlayConfig
from textgames.models import sources
from textgames.results import summary, validation

if TYPE_CHECKING:
    from textgames.models.trajectories import Trajectory

AS_TRAINED = "as trained"


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ragen:evaluate`; others are those of the checkpoint's training."""

    checkpoint: str = option(
        "", "a run of this study, a checkpoint of one, or a model as of ragen:train"
    )
    env: str = option(AS_TRAINED, "game", choices=(AS_TRAINED, *GAMES))
    size: int = option(0, "side of the grid [cells]; 0: as trained", low=0, high=12)
    boxes: int = option(0, "Sokoban: boxes and targets; 0: as trained", low=0, high=4)
    search_depth: int = option(
        0, "Sokoban: depth of the backward search [moves]; 0: as trained", low=0, high=1000
    )
    low_name: str = option(AS_TRAINED, "bandit: name of the low-risk arm")
    high_name: str = option(AS_TRAINED, "bandit: name of the high-risk arm")
    names_swapped: bool = option(False, "bandit: the arms exchange their names; no: as trained")
    names_order: str = option(
        AS_TRAINED, "bandit: which arm a prompt names first", choices=(AS_TRAINED, *ORDERS)
    )  # fmt: skip
    levels: str = option(
        VALIDATION_SET, "set of levels: validation, or a test set that shares none with a training; test_hard: at "
        "least three moves each", choices=SETS,
    )  # fmt: skip
    max_turns: int = option(25, "turns of a game, with an action per turn", low=1, high=1000)
    actions: str = option(
        "greedy", "tokens of the replies: most likely or sampled", choices=validation.ACTIONS
    )
    temperature: float = option(0, "sampling temperature; 0: as trained", low=0, high=10)
    val_data_num: int = option(
        500, "validation games, at most as many as the training excluded", low=1, high=options.MAX_VALIDATION_GAMES
    )  # fmt: skip
    val_batch_size: int = option(
        500, "validation games that are played together", low=1, resumable=True
    )
    repeats: int = option(
        1, "replays of a game: with its own slips or rewards first, then with others", low=1, high=10_000
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.checkpoint:
            raise record.UserError(
                "--checkpoint: give a run of ragen:train or ragen:sft by its id or folder, or a model"
            )


def trained_flags(config: Config) -> PlayConfig:
    """Return the flags of the checkpoint's training with the changes of this run's flags.

    Raises:
        UserError: There is no such model, or it is of no run and `env` is not given.
    """
    flags = sources.flags_of(config.checkpoint)
    if not flags and config.env == AS_TRAINED:
        sources.find(config.checkpoint)
        raise record.UserError(
            f"--env: {config.checkpoint} is of no run of this study, so its game is unknown; give one of "
            f"{', '.join(GAMES)}"
        )
    play_flags = {field.name: flag_name(field.name) for field in fields(PlayConfig)}
    trained = {name: flags[flag] for name, flag in play_flags.items() if flag in flags}
    changed = {
        field.name: value
        for field in fields(config)
        if (value := getattr(config, field.name)) not in (0, AS_TRAINED)
        and field.name in play_flags
    }
    if "size" not in changed and changed.get("env", trained.get("env")) != trained.get("env"):
        trained.pop("size", None)  # the size of another game
    here = {
        "model": config.checkpoint, "lora_rank": 0, "device": "auto", "final_levels": config.levels,
    }  # fmt: skip
    return PlayConfig(**trained | changed | here)


def main(config: Config) -> dict[str, Any]:
    """Play the validation games and return the result."""
    import numpy as np

    from textgames.games import example_texts, levels
    from textgames.models import loading, memory
    from textgames.results import dialogues

    played_as = trained_flags(config)
    if played_as.quantise != "none" and sources.find(config.checkpoint).checkpoints:
        raise record.UserError(
            f"--checkpoint: {config.checkpoint} was trained on 4-bit weights, into which it cannot be loaded again; "
            "give a finished run, which has its whole model, or the folder of a model"
        )
    if config.repeats > 1 and config.actions == "greedy" and not played_as.is_stochastic:
        raise record.UserError(
            f"--repeats: {played_as.env} has no randomness with the most likely replies; "
            "use --actions=sampled"
        )
    options.check(played_as, training=False)
    memory.check(played_as, training=False)
    options.limit_threads(played_as)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(
            played_as, run, lambda: example_texts.texts(played_as), training=False
        )
        run.add_parent(loaded.run_id)
        seeds = levels.evaluation(played_as, config.levels, config.val_data_num)
        game_seeds = np.repeat(seeds, config.repeats)
        replays = np.tile(np.arange(config.repeats), len(seeds))
        generator = run.seeds.torch("validation draws") if config.actions == "sampled" else None
        trajectories = validation.validate(
            loaded, played_as, game_seeds, generator, run=run, replays=replays
        )
        run.artifact("dialogues.md").write_text(
            dialogues.page(played_as.env, trajectories), encoding="utf-8"
        )
        curves = {
            "success": summary.success_by_turn(trajectories, config.max_turns),
            **summary.bound_curves(played_as, seeds, config.max_turns),
        }
        for turn in range(1, config.max_turns + 1):
            run.log({name: float(curve[turn - 1]) for name, curve in curves.items()}, turn)
        keys = levels.level_keys(played_as, seeds)
        summary.declare(run, config.levels, keys)
        outcomes = record.level_outcomes(keys, {"success": [t.success for t in trajectories]})
        return run.finish(result(played_as, trajectories, curves) | {"outcomes": [outcomes]})


def result(
    config: PlayConfig, trajectories: list[Trajectory], curves: dict[str, Any]
) -> dict[str, Any]:
    """Return the success rate within all turns, and a table of the curves."""
    statistics = validation.statistics(trajectories)
    return {
        "objective": {
            "name": "success", "value": statistics["success"], "kind": "rate", "count": len(trajectories),
            "goal": "max", "at": config.max_turns, "axis": "turn",
        },
        "variant": summary.variant(curves),
        "metrics": statistics,
        "table": summary.table(curves),
        "env_steps": sum(len(trajectory.turns) for trajectory in trajectories),
        "task": config.env,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
