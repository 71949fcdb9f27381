"""Train a language model on the solver's games: supervised fine-tuning, as in RAGEN."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.games.config import GAMES, VALIDATION_SET
from textgames.games.interface import FROZENLAKE, SOKOBAN
from textgames.learning.options import CHANCE, OPTIMAL, SOLVER, TEACHERS, PlayConfig

if TYPE_CHECKING:
    import torch

    from textgames.learning.imitation import SupervisedLearner
    from textgames.models.loading import Loaded
    from textgames.models.trajectories import Text

POINTS = 100  # of the loss curve
_BEST = "best."  # of the names of the best weights in a checkpoint


@dataclass(frozen=True)
class Config(PlayConfig):
    """Flags of `ragen:sft`; the defaults of the training are RAGEN's."""

    train_levels: int = option(2000, "levels whose solutions are learned", low=1)
    test_levels: int = option(200, "levels on whose solutions the loss is validated", low=1)
    further_games: str = option(
        "", "games that are learned besides env, on as many levels of their default size: bandit, sokoban, frozenlake"
    )  # fmt: skip
    copies: int = option(1, "games per level, with different random first actions", low=1)
    wander: int = option(
        0, "largest number of random actions before the solver starts", low=0, high=100
    )
    augment: bool = option(
        False, "Sokoban: turn and mirror every copy of a level at random (data augmentation)"
    )
    teacher: str = option(
        SOLVER, "source of the actions: solver, shortest solutions; optimal, FrozenLake's actions with the highest "
        "probability of success within max-turns; chance, random ones, which teach the form of replies alone",
        choices=TEACHERS,
    )  # fmt: skip
    safe: bool = option(
        False, "FrozenLake's solver: in every state the shortest way without slips; no: the way for the seed's slips"
    )  # fmt: skip
    epochs: int = option(5, "passes over the texts", low=1)
    lr: float = option(
        1e-4, "AdamW's highest learning rate; 2e-3 for a tiny model", low=0, low_open=True, high=1
    )
    warm_up: float = option(
        0.05, "share of the updates in which the learning rate rises", low=0, high=1
    )
    batch_size: int = option(
        128, "texts per update: an action's, or a game's with context=whole", low=1
    )
    micro_batch_size: int = option(4, "texts that are computed together", low=1)
    max_length: int = option(
        2048, "length of a text; turns beyond it are left out [tokens]", low=16
    )
    test_freq: int = option(0, "updates between validations of the loss; 0: an epoch", low=0)
    save_freq: int = option(
        500, "updates between checkpoints; there is one after every validation too", low=1, resumable=True
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.micro_batch_size:
            raise record.UserError(
                f"--micro-batch-size: {self.micro_batch_size} does not divide batch-size ({self.batch_size})"
            )
        if self.copies > 1 and self.teacher != CHANCE and not (self.wander or self.augment):
            raise record.UserError(
                "--copies: without random actions all copies are equal; give wander or augment"
            )
        if self.augment and self.final_levels == VALIDATION_SET:
            raise record.UserError(
                "--augment: turned training levels equal validation levels; give final-levels=validation_disjoint"
            )
        if self.safe and self.teacher != SOLVER:
            raise record.UserError(f"--safe: belongs to teacher=solver, not {self.teacher}")
        further = self.further_games.split()
        if len(set(further) & set(GAMES)) < len(further):
            raise record.UserError(
                f"--further-games: {self.further_games!r} is no list of games; give some of {' '.join(GAMES)}"
            )

    @property
    def games(self) -> list[Config]:
        """The flags of every game that is learned, `env` first."""
        further = [name for name in self.further_games.split() if name != self.env]
        return [self, *(replace(self, env=name, size=0, boxes=1) for name in further)]


@dataclass
class Best:
    """The weights with the lowest validation loss so far."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float = float("inf")
    update: int = 0


def main(config: Config) -> dict[str, Any]:
    """Train a model, play the validation games with the best weights, and return the result."""
    from textgames.games import example_texts
    from textgames.learning import options
    from textgames.models import loading, memory

    options.check(config)
    memory.check(config)
    if config.augment and all(game.env != SOKOBAN for game in config.games):
        raise record.UserError("--augment: only Sokoban's levels are turned; give augment=no")
    if config.teacher == OPTIMAL and all(game.env != FROZENLAKE for game in config.games):
        raise record.UserError("--teacher: optimal is FrozenLake's; give teacher=solver")
    options.limit_threads(config)
    with record.start(config, study="textgames") as run:
        loaded = loading.load(config, run, lambda: example_texts.texts(config))
        run.add_parent(loaded.run_id)
        train_texts, test_texts = solver_texts(config, run, loaded)
        learner = make_learner(config, run, loaded, train_texts)
        best = train(config, run, learner, test_texts)
        loading.restore(loaded, best.weights)
        run.digest_weights(loading.tensors(loaded))
        loading.save(loaded, run.artifact("model/config.json").parent)
        return run.finish(result(config, run, learner, best, len(train_texts)))


def train(
    config: Config, run: record.Run, learner: SupervisedLearner, test_texts: list[Text]
) -> Best:
    """Train from the run's newest checkpoint on; return the weights with the lowest validation loss."""
    from textgames.learning.imitation import evaluate
    from textgames.models import loading

    loaded, updates = learner.loaded, learner.settings.updates
    best, unlogged = Best(), []

    def validate_and_save() -> None:
        metrics = evaluate(loaded, test_texts, config.micro_batch_size)
        record.check_finite(learner.update, metrics)
        run.log({f"validation/{name}": value for name, value in metrics.items()}, learner.update)
        if metrics["loss"] < best.loss:
            best.loss, best.update = metrics["loss"], learner.update
            best.weights = {
                name: weight.clone() for name, weight in loading.tensors(loaded).items()
            }
        run.event(
            f"update {learner.update} of {updates}: loss {metrics['loss']:.4f} on {config.test_levels} "
            f"validation levels, {100 * metrics['right']:.1f} % of their replies right"
        )
        save(run, learner, best, unlogged)

    if restore(run, learner, best, unlogged):
        run.event(f"continued after update {learner.update}")
    else:
        validate_and_save()
    interval = record.log_interval(updates, POINTS)
    test_interval = config.test_freq or updates // config.epochs
    while learner.update < updates:
        metrics = learner.learn()
        record.check_finite(learner.update, metrics)
        unlogged.append(metrics)
        if record.is_due(learner.update, interval, updates):
            run.log(record.mean_metrics(unlogged), learner.update)
            unlogged.clear()
        due = run.checkpoint_due(learner.update, config.save_freq)
        if record.is_due(learner.update, test_interval, updates):
            validate_and_save()
        elif due:
            save(run, learner, best, unlogged)
        run.progress(learner.update, updates, "update")
    return best


def solver_texts(config: Config, run: record.Run, loaded: Loaded) -> tuple[list[Text], list[Text]]:
    """Return the training texts and the texts for the validation of the loss, of all games."""
    trained: list[Text] = []
    validated: list[Text] = []
    for config_of_game in config.games:
        texts = game_texts(config_of_game, run, loaded)
        trained, validated = trained + texts[0], validated + texts[1]
    return trained, validated


def game_texts(config: Config, run: record.Run, loaded: Loaded) -> tuple[list[Text], list[Text]]:
    """Return the training texts and the texts for the validation of the loss of the game `env`."""
    import numpy as np

    from textgames.learning import demonstrations

    augment = config.augment and config.env == SOKOBAN
    train_seeds, test_seeds = demonstrations.seeds(
        config, config.train_levels, config.test_levels, augment=config.augment
    )
    game_seeds = np.tile(train_seeds, config.copies), test_seeds
    texts = [
        demonstrations.texts(
            config, seeds, loaded.tokenizer, run.seeds.generator("wandering", i),
            safe=config.safe, wander=config.wander, max_length=config.max_length, teacher=config.teacher,
            augment=augment and i == 0,
        )
        for i, seeds in enumerate(game_seeds)
    ]  # fmt: skip
    if not all(texts):
        raise record.UserError(
            f"--max-length: no reply fits into {config.max_length} tokens; give more"
        )
    tokens = sum(len(text.tokens) for text in texts[0])
    trained = sum(int((text.turns >= 0).sum()) for text in texts[0])
    run.event(
        f"{config.env}: {len(game_seeds[0])} training games, {len(texts[0])} texts with {tokens} tokens, {trained} of "
        "them in replies"
    )
    return texts[0], texts[1]


def make_learner(
    config: Config, run: record.Run, loaded: Loaded, train_texts: list[Text]
) -> SupervisedLearner:
    """Return the model with its optimizer."""
    from textgames.learning.imitation import (
        ImitationSettings,
        SupervisedLearner,
        updates_per_epoch,
    )

    settings = ImitationSettings(
        updates=config.epochs * updates_per_epoch(len(train_texts), config.batch_size),
        batch_size=config.batch_size, micro_batch_size=config.micro_batch_size, lr=config.lr, warm_up=config.warm_up,
    )  # fmt: skip
    return SupervisedLearner(loaded, train_texts, settings, run.seeds)


def save(
    run: record.Run, learner: SupervisedLearner, best: Best, unlogged: list[dict[str, float]]
) -> None:
    """Save a checkpoint with the current and the best weights; older checkpoints are deleted."""
    from textgames.models import loading

    best_weights = {_BEST + name: weight for name, weight in best.weights.items()}
    state = {
        "pupil": learner.state(), "losses": list(unlogged), "best_loss": best.loss, "best_update": best.update,
    }  # fmt: skip
    run.checkpoint(learner.update, loading.tensors(learner.loaded) | best_weights, state, keep=1)


def restore(
    run: record.Run, learner: SupervisedLearner, best: Best, unlogged: list[dict[str, float]]
) -> bool:
    """Restore everything from the run's newest checkpoint; return whether there is one."""
    from textgames.models import loading

    checkpoint = run.restore()
    if checkpoint is None:
        return False
    loading.restore(learner.loaded, checkpoint.tensors)
    learner.restore(checkpoint.state["pupil"])
    unlogged[:] = checkpoint.state["losses"]
    best.loss, best.update = checkpoint.state["best_loss"], checkpoint.state["best_update"]
    best.weights = {
        name.removeprefix(_BEST): weight.to(learner.loaded.device)
        for name, weight in checkpoint.tensors.items()
        if name.startswith(_BEST)
    }
    return True


def result(
    config: Config, run: record.Run, learner: SupervisedLearner, best: Best, texts: int
) -> dict[str, Any]:
    """Return the success rates in the validation games, beside random actions and the best possible player."""
    from textgames.results import summary

    final = summary.final_result(learner.loaded, config, run)
    final["objective"] |= {"at": best.update, "axis": "update"}
    final["metrics"] |= {
        "loss": best.loss, "texts": float(texts), "tokens": float(learner.tokens),
        "weights": float(sum(weight.numel() for weight in best.weights.values())),
    }  # fmt: skip
    return final


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
