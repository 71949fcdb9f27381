"""Plays games that training never saw with a loaded checkpoint: success over the number of turns, as one curve."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import flag_name
from textgames.games.config import GAMES, ORDERS
from textgames.learning import options
from textgames.learning.options import PlayConfig
from textgames.models import sources
from textgames.results import summary, validation

if TYPE_CHECKING:
    from textgames.models.trajectories import Trajectory

AS_TRAINED = "as trained"


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ragen:evaluate`. What they leave open is as the checkpoint was trained."""

    checkpoint: str = option(
        "", "a run of this study, a checkpoint of one, or a model as of ragen:train"
    )
    env: str = option(AS_TRAINED, "game", choices=(AS_TRAINED, *GAMES))
    size: int = option(0, "side of the grid [cells]; 0: as trained", low=0, high=12)
    boxes: int = option(0, "Sokoban: boxes and targets; 0: as trained", low=0, high=4)
    search_depth: int = option(
        0, "Sokoban: moves of the reverse play; 0: as trained", low=0, high=1000
    )
    low_name: str = option(AS_TRAINED, "bandit: name of the arm with little risk")
    high_name: str = option(AS_TRAINED, "bandit: name of the arm with the higher mean")
    names_swapped: bool = option(False, "bandit: each arm has the other one's name")
    names_order: str = option(
        AS_TRAINED, "bandit: which arm is named first", choices=(AS_TRAINED, *ORDERS)
    )  # fmt: skip
    max_turns: int = option(25, "turns of a game, an action each", low=1, high=1000)
    actions: str = option(
        "greedy", "of the model: its likeliest tokens, or drawn", choices=validation.ACTIONS
    )
    temperature: float = option(0, "of drawing; 0: as trained", low=0, high=10)
    val_data_num: int = option(
        500, "games that training never saw; no more than it kept out", low=1, high=options.VAL_DATA_MOST
    )  # fmt: skip
    val_batch_size: int = option(500, "of them that are played together", low=1, resumable=True)
    repeats: int = option(
        1, "how often each is played: first with its own slips or rewards, then with others", low=1, high=10_000
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.checkpoint:
            raise record.UserError(
                "--checkpoint: name a run of ragen:train or ragen:sft by its id or its folder, or a model"
            )


def as_trained(config: Config) -> PlayConfig:
    """How the checkpoint was trained to play, with what the flags change."""
    trained = sources.flags_of(config.checkpoint)
    of_trained = {field.name: flag_name(field.name) for field in fields(PlayConfig)}
    found = {name: trained[flag] for name, flag in of_trained.items() if flag in trained}
    changed = {
        field.name: value
        for field in fields(config)
        if (value := getattr(config, field.name)) not in (0, AS_TRAINED)
        and field.name in of_trained
    }
    if "size" not in changed and changed.get("env", found.get("env")) != found.get("env"):
        found.pop("size", None)  # of another game
    here = {"model": config.checkpoint, "lora_rank": 0, "device": "auto"}
    return PlayConfig(**found | changed | here)


def main(config: Config) -> dict[str, Any]:
    """Plays and returns what the record says."""
    import numpy as np

    from textgames.games import example_texts, levels
    from textgames.models import loading
    from textgames.results import dialogues

    played_as = as_trained(config)
    if played_as.quantise != "none" and sources.find(config.checkpoint).checkpoints:
        raise record.UserError(
            f"--checkpoint: {config.checkpoint} was trained over 4-bit weights and cannot be laid over them again; "
            "give a run that has finished, which has its model as a whole, or the folder of a model"
        )
    if config.repeats > 1 and config.actions == "greedy" and not played_as.left_to_chance:
        raise record.UserError(
            f"--repeats: nothing is left to chance in {played_as.env} with likeliest replies; "
            "--actions=sampled draws them"
        )
    options.check(played_as, training=False)
    options.one_thread(played_as)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(
            played_as, run, lambda: example_texts.texts(played_as), training=False
        )
        run.add_parent(loaded.run_id)
        seeds = levels.validation(played_as, config.val_data_num)
        games, luck = (
            np.repeat(seeds, config.repeats),
            np.tile(np.arange(config.repeats), len(seeds)),
        )
        generator = run.seeds.torch("validation draws") if config.actions == "sampled" else None
        played = validation.validate(loaded, played_as, games, generator, run=run, luck=luck)
        run.artifact("dialogues.md").write_text(dialogues.page(played_as.env, played))
        curves = {
            "success": summary.by_turn(played, config.max_turns),
            **summary.known(played_as, seeds, config.max_turns),
        }
        for turn in range(1, config.max_turns + 1):
            run.log({name: float(curve[turn - 1]) for name, curve in curves.items()}, turn)
        return run.finish(result(played_as, played, curves))


def result(config: PlayConfig, played: list[Trajectory], curves: dict[str, Any]) -> dict[str, Any]:
    """The share of games that are won within all turns, and the curve's main points."""
    found = validation.statistics(played)
    return {
        "objective": {
            "name": "success", "value": found["success"], "kind": "rate", "count": len(played), "goal": "max",
            "at": config.max_turns, "axis": "turn",
        },
        "variant": summary.beside(curves),
        "metrics": {name.replace("/", "_"): value for name, value in found.items()},
        "table": summary.table(curves),
        "env_steps": sum(len(each.turns) for each in played),
        "task": config.env,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
