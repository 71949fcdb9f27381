"""The games as gymnasium environments: observations are prompts, actions are replies."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from textgames.games.config import GameConfig, make_game
from textgames.games.interface import FROZENLAKE
from textgames.games.wording import feedback, first_prompt, parse

REPLY = 4096  # characters of sampled actions; longer replies are valid too


class TextGame(gymnasium.Env[str, str]):
    """A game in words.

    An observation is the message to a model: first the prompt, then the outcome of the last reply (with
    `context="last"` the prompt with the current state). An action is a reply, any text; see `wording.parse`. The reward
    is the game's, and -1 for an invalid reply. `reset(seed=s)` starts the game of seed s, without a seed a random game.
    `info` has `seed`, and after a step `action`, `penalty`, `success` and `effective`.

    Args:
        env: "bandit", "sokoban" or "frozenlake".
        render_mode: None, or "ansi" for the grid as text.
        think: Whether the prompt asks for thoughts.
        flags: Further fields of `config.GameConfig`, such as `size` or `boxes`.

    Raises:
        UserError: A flag or a combination is invalid.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        env: str = "sokoban",
        render_mode: str | None = None,
        think: bool = False,
        **flags: Any,
    ) -> None:
        self.config = GameConfig(env=env, **flags)
        self.game = make_game(self.config)
        self.render_mode, self.think = render_mode, think
        signs = "".join(
            sorted({*string.printable, "√", *self.config.low_name, *self.config.high_name})
        )
        self.observation_space = Text(8192, min_length=0, charset=signs)
        self.action_space = Text(REPLY, min_length=0, charset=signs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a game; see the class."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**62)) if seed is None else seed
        self.game.reset(np.array([chosen]))
        return first_prompt(self.config, self.game, 0, think=self.think), {"seed": chosen}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action of a reply; see the class."""
        number = parse(self.game, action)
        outcome = self.game.step(np.array([number]), np.zeros(1, np.int64))
        reward, penalty, done, success, effective = (value[0].item() for value in outcome)
        if self.config.context == "last":
            observation = first_prompt(self.config, self.game, 0, think=self.think)
        else:
            observation = feedback(self.config, self.game, 0, number > 0, reward, done)
        truncated = done and not success and self._unfinished()
        info = {"action": number, "penalty": penalty, "success": success, "effective": effective}
        return observation, reward + penalty, done and not truncated, truncated, info

    def render(self) -> str | None:
        """Return the grid as text."""
        return self.game.render(np.zeros(1, np.int64))[0] if self.render_mode == "ansi" else None

    def _unfinished(self) -> bool:
        """Return whether a lost game ended by the limit of steps."""
        if self.config.env == FROZENLAKE:
            return "X" not in self.game.render(np.zeros(1, np.int64))[0]
        return self.config.env != "bandit"
