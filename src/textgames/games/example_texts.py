"""Example texts of all games, from which a tiny model's tokenizer is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from textgames.games import levels, wording
from textgames.games.config import GAMES, GameConfig, make_game
from textgames.games.wording import THINK

GAMES_PER_KIND = 32
TURNS = 4


def texts(config: GameConfig) -> list[str]:
    """Return the messages of some random games of every kind, and every valid reply.

    All games and both prompts are included, so that a model of one game can play another.

    Args:
        config: The flags of the game; other games have their default size.
    """
    examples = [THINK, THINK.replace("<", "</")]
    for env in GAMES:
        size = config.size if env == config.env else 0
        boxes = config.boxes if env == config.env else 1
        for prompt in ("full", "grid"):
            examples += _game_texts(replace(config, env=env, prompt=prompt, size=size, boxes=boxes))
    return examples


def _game_texts(config: GameConfig) -> list[str]:
    rng, game = np.random.default_rng(0), make_game(config)
    game.reset(levels.training(config, GAMES_PER_KIND))
    examples = [
        wording.answer(game, action, style)
        for action in range(len(game.actions) + 1)
        for style in ("word", "number")
    ]
    active = np.arange(GAMES_PER_KIND)
    examples += wording.first_prompts(config, game, active, think=True)
    for _ in range(TURNS):
        actions = rng.integers(len(game.actions) + 1, size=len(active))
        outcome = game.step(actions, active)
        examples += [
            wording.feedback(config, game, int(b), bool(action), float(reward), bool(done))
            for b, action, reward, done in zip(
                active, actions, outcome.reward, outcome.done, strict=True
            )
        ]
        active = active[~outcome.done]
        if not len(active):
            break
    return examples
