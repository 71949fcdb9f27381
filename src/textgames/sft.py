"""Supervised training of a language model on the solver's games (section 7 of the source's data)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.learning.options import PlayConfig

if TYPE_CHECKING:
    import torch

    from textgames.learning.imitation import Imitation
    from textgames.models.loading import Loaded
    from textgames.models.trajectories import Text

POINTS = 100  # of the loss's curve
_BEST = "best."  # of the best weights in a checkpoint


@dataclass(frozen=True)
class Config(PlayConfig):
    """Flags of `ragen:sft`; the defaults of the training are the source's."""

    train_levels: int = option(2000, "whose solutions are learned from", low=1)
    test_levels: int = option(200, "on whose solutions the loss is measured", low=1)
    copies: int = option(1, "times that each level is played, wandering differently", low=1)
    wander: int = option(0, "random actions before the solver takes over, at most", low=0, high=100)
    teacher: str = option(
        "solver", "whose replies are learned from; chance: they teach how to reply, and nothing of the game",
        choices=("solver", "chance"),
    )  # fmt: skip
    safe: bool = option(
        False, "FrozenLake: in each state the shortest way as if nothing slipped; no: what succeeds with a seed's slips"
    )  # fmt: skip
    epochs: int = option(5, "times that all is learned from", low=1)
    lr: float = option(
        1e-4, "AdamW's highest step size [1]; a tiny model takes 2e-3", low=0, low_open=True, high=1
    )
    warm_up: float = option(0.05, "share of the updates in which the step size rises", low=0, high=1)  # fmt: skip
    batch_size: int = option(128, "texts of an update: an action's, or a game's with context=whole", low=1)  # fmt: skip
    micro_batch_size: int = option(4, "texts that are computed together", low=1)
    max_length: int = option(2048, "of a text; turns that do not fit are left out [tokens]", low=16)
    test_freq: int = option(0, "updates between measurements of the loss; 0: an epoch", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.micro_batch_size:
            raise record.UserError(
                f"--micro-batch-size: {self.micro_batch_size} does not divide batch-size ({self.batch_size})"
            )
        if self.copies > 1 and not self.wander:
            raise record.UserError("--copies: without wandering all copies are the same; give wander")  # fmt: skip


def main(config: Config) -> dict[str, Any]:
    """Trains, plays the validation games with the best weights, and returns what the record says."""
    from textgames.games import example_texts
    from textgames.learning import options
    from textgames.models import loading

    options.check(config)
    options.one_thread(config)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        run.add_parent(loaded.run_id)
        lesson = Lesson(config, run, loaded)
        lesson.train()
        run.digest_weights(loading.tensors(loaded))
        loading.save(loaded, run.artifact("model/config.json").parent)
        return run.finish(lesson.result())


class Lesson:
    """A model's way through the solver's games.

    Args:
        config: The flags.
        run: The record.
        loaded: The model.
    """

    def __init__(self, config: Config, run: record.Run, loaded: Loaded) -> None:
        from textgames.learning.imitation import Imitation, updates_of_an_epoch

        self.config, self.record, self.loaded = config, run, loaded
        self.texts, self.others = self._texts()
        an_epoch = updates_of_an_epoch(len(self.texts), config.batch_size)
        self.updates = config.epochs * an_epoch
        self.every = config.test_freq or an_epoch
        self.pupil: Imitation = Imitation(
            loaded, self.texts, updates=self.updates, batch=config.batch_size, micro=config.micro_batch_size,
            lr=config.lr, warm_up=config.warm_up, seeds=run.seeds,
        )  # fmt: skip
        self.best: dict[str, torch.Tensor] = {}
        self.best_loss, self.best_update = float("inf"), 0
        self._losses: list[dict[str, float]] = []

    def _texts(self) -> tuple[list[Text], list[Text]]:
        """What is learned from, and what is kept out."""
        import numpy as np

        from textgames.learning import demonstrations

        config, run = self.config, self.record
        chosen = demonstrations.seeds(config, config.train_levels, config.test_levels)
        copies = (np.tile(chosen[0], config.copies), chosen[1])
        found = [
            demonstrations.texts(
                config, each, self.loaded.tokenizer, run.seeds.generator("wandering", i),
                safe=config.safe, wander=config.wander, longest=config.max_length, by_chance=config.teacher == "chance",
            )
            for i, each in enumerate(copies)
        ]  # fmt: skip
        if not all(found):
            raise record.UserError(
                f"--max-length: no reply fits into {config.max_length} tokens; give more"
            )
        tokens = sum(len(text.tokens) for text in found[0])
        said = sum(int((text.turns >= 0).sum()) for text in found[0])
        run.event(
            f"{len(copies[0])} games to learn from: {len(found[0])} texts of {tokens} tokens, {said} of them replies"
        )
        return found[0], found[1]

    def train(self) -> None:
        """Makes the updates, from the run's newest checkpoint on; leaves the best weights in the model."""
        from textgames.models import loading

        run, pupil = self.record, self.pupil
        if (checkpoint := run.restore()) is not None:
            self._restore(checkpoint)
            run.event(f"continued after update {pupil.update}")
        else:
            self._judge()
        points = max(1, self.updates // POINTS)
        while pupil.update < self.updates:
            found = pupil.learn()
            record.check_finite(pupil.update, found)
            self._losses.append(found)
            last = pupil.update == self.updates
            if pupil.update % points == 0 or last:
                seen, self._losses = self._losses, []
                run.log({n: sum(each[n] for each in seen) / len(seen) for n in found}, pupil.update)
            if pupil.update % self.every == 0 or last:
                self._judge()
            run.progress(pupil.update, self.updates, "update")
        loading.restore(self.loaded, self.best)

    def _judge(self) -> None:
        """Measures the loss on what is kept out, keeps the weights if they are the best, and writes a checkpoint."""
        from textgames.learning.imitation import judged
        from textgames.models import loading

        pupil, run = self.pupil, self.record
        found = judged(self.loaded, self.others, self.config.micro_batch_size)
        record.check_finite(pupil.update, found)
        run.log({f"validation/{name}": value for name, value in found.items()}, pupil.update)
        if found["loss"] < self.best_loss:
            self.best_loss, self.best_update = found["loss"], pupil.update
            self.best = {name: each.clone() for name, each in loading.tensors(self.loaded).items()}
        run.event(
            f"update {pupil.update} of {self.updates}: loss {found['loss']:.4f} on {self.config.test_levels} levels "
            f"kept out, {100 * found['right']:.1f} % of their replies right"
        )
        best = {_BEST + name: each for name, each in self.best.items()}
        state = {
            "pupil": pupil.state(), "losses": self._losses,
            "best_loss": self.best_loss, "best_update": self.best_update,
        }  # fmt: skip
        run.checkpoint(pupil.update, loading.tensors(self.loaded) | best, state, keep=1)

    def _restore(self, checkpoint: record.Checkpoint) -> None:
        from textgames.models import loading

        loading.restore(self.loaded, checkpoint.tensors)
        self.pupil.restore(checkpoint.state["pupil"])
        self._losses = list(checkpoint.state["losses"])
        self.best_loss = checkpoint.state["best_loss"]
        self.best_update = checkpoint.state["best_update"]
        self.best = {
            name.removeprefix(_BEST): each.to(self.loaded.device)
            for name, each in checkpoint.tensors.items()
            if name.startswith(_BEST)
        }

    def result(self) -> dict[str, Any]:
        """Success in the validation games, beside chance and the best that can be."""
        from textgames.results import summary

        told = summary.tested(self.loaded, self.config, self.record)
        told["objective"] |= {"at": self.best_update, "axis": "update"}
        told["metrics"] |= {
            "loss": self.best_loss, "texts": float(len(self.texts)), "tokens": float(self.pupil.tokens),
            "weights": float(sum(each.numel() for each in self.best.values())),
        }  # fmt: skip
        return told


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
