"""The games one at a time, as gymnasium has environments: texts are what is seen, replies are the actions."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from textgames.games.config import GameConfig, make_game
from textgames.games.interface import FROZENLAKE
from textgames.games.wording import feedback, first_prompt, parse

REPLY = 4096  # characters of the replies that the action space draws; longer ones are read too


class TextGame(gymnasium.Env[str, str]):
    """A game in words.

    An observation is what a model would be told: at first the prompt, then what came of the last reply (with
    `context="last"` the prompt again, with the state as it is). An action is a reply, any text; see `wording.parse`.
    The reward is the game's and -1 for a reply that was not understood. `reset(seed=s)` gives the game of the seed s,
    without a seed any. `info` tells `seed`, and after a step `action`, `penalty`, `success` and `effective`.

    Args:
        env: "bandit", "sokoban" or "frozenlake".
        render_mode: None, or "ansi" for the grid as text.
        think: Whether the prompt asks for thoughts.
        flags: Further fields of `games.GameConfig`, such as `size` or `boxes`.

    Raises:
        UserError: A flag, or a combination, cannot be.
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
        """Begins a game; see the class."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**62)) if seed is None else seed
        self.game.reset(np.array([chosen]))
        return first_prompt(self.config, self.game, 0, think=self.think), {"seed": chosen}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays what a reply means; see the class."""
        meant = parse(self.game, action)
        outcome = self.game.step(np.array([meant]), np.zeros(1, np.int64))
        reward, penalty, done, success, effective = (each[0].item() for each in outcome)
        if self.config.context == "last":
            seen = first_prompt(self.config, self.game, 0, think=self.think)
        else:
            seen = feedback(self.config, self.game, 0, meant > 0, reward, done)
        cut = done and not success and self._unfinished()
        told = {"action": meant, "penalty": penalty, "success": success, "effective": effective}
        return seen, reward + penalty, done and not cut, cut, told

    def render(self) -> str | None:
        """The grid as text."""
        return self.game.render(np.zeros(1, np.int64))[0] if self.render_mode == "ansi" else None

    def _unfinished(self) -> bool:
        """Whether a game that is over and not won would have gone on with more steps."""
        if self.config.env == FROZENLAKE:
            return "X" not in self.game.render(np.zeros(1, np.int64))[0]
        return self.config.env != "bandit"
