"""Flags of how games are played with a model, and playing games that it never saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runcatalog import record
from runcatalog.record import option
from textgames.games.config import GameConfig
from textgames.models.loading import ModelConfig

if TYPE_CHECKING:
    pass

VAL_DATA_MOST = 100_000
MARGIN = 8  # tokens around a message, of a chat template


@dataclass(frozen=True)
class PlayConfig(ModelConfig, GameConfig):
    """How a model speaks, and the games it is judged by."""

    max_turns: int = option(5, "turns of a game, an action each", low=1, high=1000)
    max_response_length: int = option(400, "of a reply [tokens]", low=1, high=100_000)
    think: bool = option(True, "a reply's <think> is opened for the model (the source: yes)")
    no_think_rl: bool = option(
        False, "a reply is remembered, and learned from, as its action alone"
    )
    numbers: bool = option(
        False,
        "an action alone (no-think-rl, imitation) is its number, not its name",
    )
    temperature: float = option(0.7, "of drawing tokens", low=0, low_open=True, high=10)
    top_p: float = option(
        0.95, "share of probability that is drawn from", low=0, low_open=True, high=1
    )
    top_k: int = option(0, "likeliest tokens that are drawn from; 0: all", low=0)
    val_data_num: int = option(500, "games that training never saw", low=1, high=VAL_DATA_MOST)
    val_batch_size: int = option(500, "of them that are played together", low=1, resumable=True)

    def needed_tokens(self, prompt: int, message: int) -> int:
        """Tokens of the longest conversation.

        Args:
            prompt: Tokens of the first message.
            message: Of a later one.
        """
        turn = self.max_response_length + MARGIN
        if self.context == "last":
            return prompt + turn
        return prompt + turn + (self.max_turns - 1) * (message + turn)


def one_thread(config: PlayConfig) -> None:
    """Lets torch compute a tiny model on one thread: of small matrices more only get into each other's way."""
    import torch

    from textgames.models.loading import TINY

    if config.model == TINY:
        torch.set_num_threads(1)


def unseen(config: PlayConfig) -> int:
    """How many of the validation games have levels that the model was never trained on, in no run of its past.

    A run keeps those levels out that it is judged by, and never fewer than the source's; runs of games with other
    grids do not count.
    """
    from textgames.games import levels
    from textgames.models import sources

    found = VAL_DATA_MOST
    for flags in sources.lineage(config.model):
        game = {name: flags[name] for name in ("env", "size", "boxes") if name in flags}
        if not game or GameConfig(**game).grid == config.grid:
            found = min(found, max(levels.VALIDATION, int(flags.get("val-data-num", 0))))
    return found


def check(config: PlayConfig, *, training: bool = True) -> None:
    """Finds what is wrong with model, machine and length of conversations before a weight is loaded.

    Raises:
        UserError: See `loading.check`; or there are validation games that the model may have been trained on.
    """
    import numpy as np

    from textgames.games import levels, wording
    from textgames.games.config import make_game
    from textgames.models import loading

    game = make_game(config)
    game.reset(np.asarray(levels.validation(config, 1)))
    told = (
        wording.first_prompt(config, game, 0, think=config.think),
        wording.feedback(config, game, 0, True, -0.1, False),
    )
    source = loading.find(config.model)
    if config.val_data_num > (most := unseen(config)):
        raise record.UserError(
            f"--val-data-num: the training of {config.model} kept the levels of {most} validation games out; give "
            f"{most} or fewer, or train from its beginning with val-data-num={config.val_data_num}"
        )
    if source.folder is None:
        prompt, message = (
            len(text) // 2 for text in told
        )  # a word of its tokenizer has two letters and more
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source.folder, local_files_only=True)
        prompt, message = (len(each) for each in tokenizer(list(told))["input_ids"])
    loading.check(config, config.needed_tokens(prompt, message), training=training)
