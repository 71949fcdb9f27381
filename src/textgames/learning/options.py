"""Flags of playing games with a model, and the checks before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.games.config import SETS, VALIDATION_SET, GameConfig
from textgames.games.interface import FROZENLAKE, SOKOBAN
from textgames.models.loading import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_VALIDATION_GAMES = 100_000
TEACHERS = (SOLVER, OPTIMAL, CHANCE) = ("solver", "optimal", "chance")
"""Sources of the actions that supervised training imitates."""
TEMPLATE_TOKENS = 8  # tokens of a chat template around a message, at most


@dataclass(frozen=True)
class PlayConfig(ModelConfig, GameConfig):
    """Flags of generation and validation."""

    max_turns: int = option(5, "turns of a game, with an action per turn", low=1, high=1000)
    max_response_length: int = option(400, "length of a reply [tokens]", low=1, high=100_000)
    think: bool = option(True, "replies begin with an opened <think>, as in RAGEN")
    no_think_rl: bool = option(
        False, "store only the action of a reply in the conversation, and train on it"
    )
    numbers: bool = option(
        False, "replies with an action alone (no-think-rl, imitation) have its number, not its name"
    )
    temperature: float = option(0.7, "sampling temperature", low=0, low_open=True, high=10)
    top_p: float = option(
        0.95, "nucleus sampling: share of probability", low=0, low_open=True, high=1
    )
    top_k: int = option(0, "number of most likely tokens to sample from; 0: all", low=0)
    val_data_num: int = option(
        500, "validation games, with levels that training excludes", low=1, high=MAX_VALIDATION_GAMES
    )  # fmt: skip
    val_batch_size: int = option(
        500, "validation games that are played together", low=1, resumable=True
    )
    final_levels: str = option(
        VALIDATION_SET, "levels that the result is measured on: validation; validation_disjoint, no level of which is "
        "in a training, turned or mirrored; or a test set, for settings that will not be changed by its numbers",
        choices=SETS,
    )  # fmt: skip

    def needed_tokens(self, prompt: int, message: int) -> int:
        """Return the length of the longest conversation [tokens].

        Args:
            prompt: Length of the first message [tokens].
            message: Length of a later message [tokens].
        """
        turn = self.max_response_length + TEMPLATE_TOKENS
        if self.context == "last":
            return prompt + turn
        return prompt + turn + (self.max_turns - 1) * (message + turn)


def limit_threads(config: PlayConfig) -> None:
    """Let torch compute a tiny model on one thread: for small matrices more threads are slower."""
    import torch

    from textgames.models.loading import TINY

    if config.model == TINY:
        torch.set_num_threads(1)


def excluded_validation_games(config: PlayConfig) -> int:
    """Return how many validation games have levels that none of the model's trainings used.

    A training excludes the levels of its own validation games, and at least those of the first 500. Trainings on other
    grids do not count.
    """
    from textgames.games import levels
    from textgames.models import sources

    count = MAX_VALIDATION_GAMES
    for flags in sources.lineage(config.model):
        if _played(flags, config):
            count = min(count, max(levels.VALIDATION, int(flags.get("val-data-num", 0))))
    return count


def _played(flags: Mapping[str, Any], config: PlayConfig) -> bool:
    """Return whether a training with these flags played on grids as those of `config`; without flags it may have."""
    game = {name: flags[name] for name in ("env", "size", "boxes") if name in flags}
    further = str(flags.get("further-games", "")).split()
    return not game or GameConfig(**game).grid == config.grid or config.env in further


def _check_levels(config: PlayConfig, flag: str) -> None:
    """Check that there are levels as `final_levels` says, on which the model was not trained; `flag`: its name."""
    import numpy as np

    from textgames.games import levels
    from textgames.models import sources

    judged_on = levels.evaluation(config, config.final_levels, config.val_data_num)
    played = [flags for flags in sources.lineage(config.model) if _played(flags, config)]
    turned = any(flags.get("augment") for flags in played)
    if config.final_levels == VALIDATION_SET and config.env == SOKOBAN and turned:
        raise record.UserError(
            f"--{flag}: {config.model} was trained on turned levels (augment), and some of these equal validation "
            f"levels; give {flag}=validation_disjoint or a test set"
        )
    # A training leaves out the levels of sets that its own generator draws.
    drawn_by = {SOKOBAN: "search-depth", FROZENLAKE: "frozen"}.get(config.env, "")
    value = getattr(config, drawn_by.replace("-", "_"), None)
    others = [flags for flags in played if flags.get(drawn_by, value) != value]
    if config.final_levels == VALIDATION_SET and others:
        raise record.UserError(
            f"--{flag}: {config.model} was trained on levels of another {drawn_by}, and some of these equal validation "
            f"levels; give {flag}=validation_disjoint or a test set"
        )
    if not others:
        return
    keys = levels.symmetric_keys(config, judged_on)
    for flags in others:
        common = np.isin(keys, _trained_keys(config, flags, drawn_by)).sum()
        if common:
            raise record.UserError(
                f"--{flag}: {config.model} was trained with {drawn_by}={flags[drawn_by]:g}, and {common} of the "
                f"{len(keys)} levels of {config.final_levels} are among its levels, turned or mirrored; give another "
                f"set, or train it with {drawn_by}={value:g}"
            )


def _trained_keys(
    config: PlayConfig, flags: Mapping[str, Any], drawn_by: str
) -> NDArray[np.bytes_]:
    """Return the keys, see `levels.symmetric_keys`, of the levels of a training with these flags.

    Args:
        config: Flags with the same grid.
        flags: Flags of the training.
        drawn_by: The flag of its generator that differs.
    """
    from textgames.games import levels

    trained = replace(config, **{drawn_by.replace("-", "_"): flags[drawn_by]})
    excluded = max(levels.VALIDATION, int(flags.get("val-data-num", 0)))
    supervised = "train-levels" in flags
    count = int(flags["train-levels" if supervised else "train-size"])
    seeds = levels.training(trained, count, levels.FIRST_SFT if supervised else None, excluded)
    return levels.symmetric_keys(trained, seeds)


def check(config: PlayConfig, *, training: bool = True) -> None:
    """Check model, machine and length of conversations before weights are loaded.

    Raises:
        UserError: See `loading.check`, `sources.check_architecture` and `chat_template.chat_parts`; the model may have
            been trained on levels of the validation games or of `final_levels`, or there are no such levels.
    """
    import numpy as np

    from textgames.games import levels, wording
    from textgames.games.config import make_game
    from textgames.models import loading, sources
    from textgames.models.chat_template import chat_parts

    game = make_game(config)
    game.reset(np.asarray(levels.validation(config, 1)))
    messages = (
        wording.first_prompt(config, game, 0, think=config.think),
        wording.feedback(config, game, 0, True, -0.1, False),
    )
    source = loading.find(config.model)
    if config.val_data_num > (most := excluded_validation_games(config)):
        raise record.UserError(
            f"--val-data-num: the training of {config.model} excluded the levels of {most} validation games only; give "
            f"{most} or fewer, or train from the beginning with val-data-num={config.val_data_num}"
        )
    _check_levels(config, "final-levels" if training else "levels")
    if source.folder is None:
        # A token of its tokenizer has at least two letters.
        prompt, message = (len(text) // 2 for text in messages)
    else:
        from transformers import AutoTokenizer

        model = sources.check_architecture(source.folder).get_text_config()
        tokenizer = sources.pretrained(AutoTokenizer, source.folder)
        if len(tokenizer) <= len(tokenizer.added_tokens_decoder):
            raise record.UserError(f"--model: {source.folder} has no tokenizer (tokenizer.json)")
        if len(tokenizer) > model.vocab_size:
            raise record.UserError(
                f"--model: the tokenizer in {source.folder} has {len(tokenizer)} tokens, the model {model.vocab_size}"
            )
        chat_parts(tokenizer, think=config.think)
        prompt, message = (len(tokens) for tokens in tokenizer(list(messages))["input_ids"])
    loading.check(config, config.needed_tokens(prompt, message), training=training)
