"""Train a small language model from random weights to plan, on demonstrations of the oracle."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from skills.learning.schedule import COMPOSITE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skills.planner.demonstrations import Demonstration
    from skills.planner.small_lm import ImitationTrainer, Texts

POINTS = 50  # of the curve of the loss


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:planner_model`."""

    stage: str = option("nlm2", "stage of the composite task", choices=COMPOSITE)
    levels: int = option(2000, "training levels, with about eight demonstrations each", low=10)
    validation: int = option(100, "held-out levels", low=1, high=1000)
    astray: float = option(
        0.2, "share of random sub-tasks during the demonstrations", low=0, high=1
    )
    updates: int = option(1500, "updates of the weights", low=1)
    batch: int = option(32, "demonstrations per update", low=1, high=1024)
    lr: float = option(2e-3, "AdamW's highest step size [1]", low=0, low_open=True, high=1)
    prompt_weight: float = option(0.1, "weight of the loss on prompts relative to answers", low=0)
    width: int = option(128, "size of a token's embedding", low=8, high=4096)
    layers: int = option(3, "layers of the model", low=1, high=64)
    heads: int = option(4, "attention heads per layer", low=1, high=64)
    save_interval: int = option(250, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise record.UserError(
                f"--width: {self.width} is no multiple of twice the number of heads ({2 * self.heads})"
            )


def main(config: Config) -> dict[str, Any]:
    """Train and return the record's result."""
    import numpy as np
    import torch

    from skills.planner import small_lm

    torch.set_num_threads(1)  # more threads slow down products this small
    with record.start(config, study="skills") as run:
        training, held_out = demonstrations(config, run)
        tokens = small_lm.tokenizer_for([item.prompt for item in training])
        texts, held_out_texts = (small_lm.Texts.of(part, tokens) for part in (training, held_out))
        if len(texts.tokens) < config.batch:
            raise record.UserError(
                f"--levels: {len(texts.tokens)} demonstrations are less than a batch ({config.batch})"
            )
        sizes = small_lm.Sizes(config.width, config.layers, config.heads)
        first = run.seeds.integer("first weights")
        trainer = small_lm.ImitationTrainer(
            small_lm.model_for(sizes, tokens, first), texts, updates=config.updates, batch=config.batch,
            lr=config.lr, prompt_weight=config.prompt_weight, seeds=run.seeds,
        )  # fmt: skip
        train(config, run, trainer, held_out_texts)
        right = small_lm.exact_matches(trainer.model, held_out_texts)
        small_lm.save(trainer.model, tokens, run.artifact("model/config.json").parent)
        run.digest_weights(trainer.tensors())
        run.declare_evaluation(
            "validation", f"demonstrations in validation levels of {config.stage}"
        )
        lengths = np.array([len(conversation) for conversation in texts.tokens])
        return run.finish(result(config, trainer, len(training), right, lengths))


def level_seeds(config: Config) -> dict[str, NDArray[np.int64]]:
    """Return the seeds of the levels for training and for validation, int64; no level is in both or in a test set."""
    from skills.agents.evaluation import FIRST_TRAINING_SEED
    from skills.learning.level_sets import validation_seeds, without_evaluated

    # Enough seeds for the wanted levels: hardly any level is one of an evaluation.
    drawn = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 2 * config.levels)
    return {
        "taught": without_evaluated(config.stage, drawn, config.validation)[: config.levels],
        "kept_out": validation_seeds(config.stage)[: config.validation],
    }


def demonstrations(
    config: Config, run: record.Run
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Return training and held-out demonstrations; saved in the run's directory."""
    from skills.planner.demonstrations import demonstrate, load_or_make

    loaded = []
    for name, levels in level_seeds(config).items():
        path: Path = run.directory / f"{name}.jsonl"

        def make(levels: NDArray[np.int64] = levels) -> list[Demonstration]:
            return demonstrate(
                config.stage, levels, run.seeds, config.astray,
                lambda done: run.progress(done, len(levels), "level"),
            )  # fmt: skip

        loaded.append(load_or_make(path, make))
        run.event(
            f"{len(levels)} levels {name.replace('_', ' ')}: {len(loaded[-1])} demonstrations"
        )
    return loaded[0], loaded[1]


def train(config: Config, run: record.Run, trainer: ImitationTrainer, held_out: Texts) -> None:
    """Make the updates, from the run's newest checkpoint on."""
    from skills.planner.small_lm import exact_matches

    history: list[dict[str, float]] = []  # since the last logged point
    if (checkpoint := run.restore()) is not None:
        trainer.restore(checkpoint.tensors, checkpoint.state["pupil"])
        history = list(checkpoint.state["losses"])
        run.event(f"continued after update {trainer.update}")
    interval = record.log_interval(config.updates, POINTS)
    while trainer.update < config.updates:
        losses = trainer.learn()
        record.check_finite(trainer.update, losses)
        history.append(losses)
        if record.is_due(trainer.update, interval, config.updates):
            run.log(record.mean_metrics(history), trainer.update)
            history = []
        if record.is_due(trainer.update, config.save_interval, config.updates):
            share = exact_matches(trainer.model, held_out).mean()
            run.log({"validation/right": float(share)}, trainer.update)
            run.event(f"update {trainer.update} of {config.updates}: {100 * share:.1f} % right")
        if run.checkpoint_due(trainer.update, config.save_interval, config.updates):
            run.checkpoint(
                trainer.update, trainer.tensors(), {"pupil": trainer.state(), "losses": history}
            )
        run.progress(trainer.update, config.updates, "update")


def result(
    config: Config, trainer: ImitationTrainer, demonstrations: int, right: Any, lengths: Any
) -> dict[str, Any]:
    """Return the record's result: the share of held-out demonstrations with the oracle's answer."""
    weights = sum(tensor.numel() for tensor in trainer.tensors().values())
    return {
        "objective": {
            "name": "right", "value": float(right.mean()), "kind": "rate", "count": len(right), "goal": "max",
            "at": trainer.update, "axis": "update",
        },
        "metrics": {
            "right": float(right.mean()), "demonstrations": float(demonstrations), "weights": float(weights),
            "tokens/mean": float(lengths.mean()), "tokens/most": float(lengths.max()),
        },
        "task": config.stage,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
