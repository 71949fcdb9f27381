"""Texts of games that a tiny model's tokenizer is made from: what both sides can say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from textgames.games import levels, wording
from textgames.games.config import GameConfig, make_game
from textgames.games.wording import THINK

GAMES = 32
TURNS = 4


def texts(config: GameConfig) -> list[str]:
    """Returns the messages of a few games of each kind, played at random, and every reply that is understood.

    The other games' words are among them, and those of both prompts: a model of one game can be shown another.

    Args:
        config: The flags; those of the game's kind are varied.
    """
    found = [THINK, THINK.replace("<", "</")]
    for env in GAMES:
        size = config.size if env == config.env else 0
        boxes = config.boxes if env == config.env else 1
        for prompt in ("full", "grid"):
            found += _of(replace(config, env=env, prompt=prompt, size=size, boxes=boxes))
    return found


def _of(config: GameConfig) -> list[str]:
    """Of one kind of game and prompt."""
    rng, game = np.random.default_rng(0), make_game(config)
    game.reset(levels.training(config, GAMES))
    found = [
        wording.answer(game, action, style)
        for action in range(len(game.actions) + 1)
        for style in ("word", "number")
    ]
    going = np.arange(GAMES)
    found += wording.first_prompts(config, game, going, think=True)
    for _ in range(TURNS):
        actions = rng.integers(len(game.actions) + 1, size=len(going))
        outcome = game.step(actions, going)
        found += [
            wording.feedback(config, game, int(b), bool(action), float(reward), bool(done))
            for b, action, reward, done in zip(
                going, actions, outcome.reward, outcome.done, strict=True
            )
        ]
        going = going[~outcome.done]
        if not len(going):
            break
    return found
