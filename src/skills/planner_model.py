"""Trains a small language model from nothing to plan: it learns to say what the search would do next."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from skills.planner.demonstrations import Demonstration
    from skills.planner.small_lm import Pupil, Texts

POINTS = 50  # of the loss's curve


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `skill:planner_model`."""

    stage: str = option("nlm2", "of the composite task", choices=("nlm0", "nlm1", "nlm2"))
    levels: int = option(2000, "whose demonstrations are learned from, about eight each", low=10)
    validation: int = option(100, "levels kept out", low=1, high=1000)
    astray: float = option(
        0.2, "share of sub-tasks that chance decides while demonstrating", low=0, high=1
    )
    updates: int = option(1500, "of the weights", low=1)
    batch: int = option(32, "demonstrations of an update", low=1, high=1024)
    lr: float = option(2e-3, "AdamW's highest step size [1]", low=0, low_open=True, high=1)
    prompt_weight: float = option(0.1, "of the loss on prompts beside that on answers", low=0)
    width: int = option(128, "of a token's vector", low=8, high=4096)
    layers: int = option(3, "of the model", low=1, high=64)
    heads: int = option(4, "of a layer", low=1, high=64)
    save_interval: int = option(250, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise record.UserError(
                f"--width: {self.width} is no multiple of twice the number of heads ({2 * self.heads})"
            )


def main(config: Config) -> dict[str, Any]:
    """Trains and returns what the record says."""
    import numpy as np
    import torch

    from skills.planner import small_lm

    torch.set_num_threads(1)  # of small matrices: more only get into each other's way
    with record.start(config, study="skills") as run:
        taught, kept_out = demonstrations(config, run)
        tokens = small_lm.tokenizer_for([told.prompt for told in taught])
        texts, others = (small_lm.Texts.of(each, tokens) for each in (taught, kept_out))
        if len(texts.tokens) < config.batch:
            raise record.UserError(
                f"--levels: {len(texts.tokens)} demonstrations are less than a batch ({config.batch})"
            )
        sizes = small_lm.Sizes(config.width, config.layers, config.heads)
        first = int(run.seeds.sequence("first weights").generate_state(1)[0])
        pupil = small_lm.Pupil(
            small_lm.model_for(sizes, tokens, first), texts, updates=config.updates, batch=config.batch,
            lr=config.lr, prompt_weight=config.prompt_weight, seeds=run.seeds,
        )  # fmt: skip
        train(config, run, pupil, others)
        right = small_lm.right(pupil.model, others)
        small_lm.save(pupil.model, tokens, run.artifact("model/config.json").parent)
        run.digest_weights(pupil.tensors())
        lengths = np.array([len(each) for each in texts.tokens])
        return run.finish(result(config, pupil, len(taught), right, lengths))


def demonstrations(
    config: Config, run: record.Run
) -> tuple[list[Demonstration], list[Demonstration]]:
    """What is learned from, and what is kept out; made once and kept in the run's folder."""
    from skills.agents.evaluation import FIRST_TRAINING_SEED, VALIDATION_SEEDS
    from skills.planner.demonstrations import demonstrate, kept

    first = FIRST_TRAINING_SEED
    parts = {
        "taught": range(first, first + config.levels),
        "kept_out": VALIDATION_SEEDS[: config.validation],
    }
    found = []
    for name, levels in parts.items():
        path: Path = run.directory / f"{name}.jsonl"

        def make(levels: range = levels) -> list[Demonstration]:
            return demonstrate(
                config.stage, levels, run.seeds, config.astray,
                lambda done: run.progress(done, len(levels), "level"),
            )  # fmt: skip

        found.append(kept(path, make))
        run.event(f"{len(levels)} levels {name.replace('_', ' ')}: {len(found[-1])} demonstrations")
    return found[0], found[1]


def train(config: Config, run: record.Run, pupil: Pupil, others: Texts) -> None:
    """Makes the updates, from the run's newest checkpoint on."""
    from skills.planner.small_lm import right

    losses: list[dict[str, float]] = []
    if (checkpoint := run.restore()) is not None:
        pupil.restore(checkpoint.tensors, checkpoint.state["pupil"])
        losses = list(checkpoint.state["losses"])
        run.event(f"continued after update {pupil.update}")
    every = max(1, config.updates // POINTS)
    while pupil.update < config.updates:
        found = pupil.learn()
        record.check_finite(pupil.update, found)
        losses.append(found)
        if pupil.update % every == 0 or pupil.update == config.updates:
            means = {name: sum(each[name] for each in losses) / len(losses) for name in found}
            run.log(means, pupil.update)
            losses = []
        if pupil.update % config.save_interval == 0 or pupil.update == config.updates:
            share = right(pupil.model, others).mean()
            run.log({"validation/right": float(share)}, pupil.update)
            run.event(f"update {pupil.update} of {config.updates}: {100 * share:.1f} % right")
            run.checkpoint(
                pupil.update, pupil.tensors(), {"pupil": pupil.state(), "losses": losses}
            )
        run.progress(pupil.update, config.updates, "update")


def result(config: Config, pupil: Pupil, taught: int, right: Any, lengths: Any) -> dict[str, Any]:
    """The share of demonstrations kept out that it answers as the search does."""
    weights = sum(each.numel() for each in pupil.tensors().values())
    return {
        "objective": {
            "name": "right", "value": float(right.mean()), "kind": "rate", "count": len(right), "goal": "max",
            "at": pupil.update, "axis": "update",
        },
        "metrics": {
            "right": float(right.mean()), "demonstrations": float(taught), "weights": float(weights),
            "tokens/mean": float(lengths.mean()), "tokens/most": float(lengths.max()),
        },
        "task": config.stage,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
