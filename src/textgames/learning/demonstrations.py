"""Conversations in which the solver plays: what supervised training learns from.

The source makes an example of each action of a solution: all that was said so far, and the answer to it (section 7 of
its data). A conversation whose replies all count is the same, as a causal model reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from textgames.games import levels, solver, wording
from textgames.games.bandit import HIGH
from textgames.games.config import make_game
from textgames.games.interface import BANDIT, FROZENLAKE, NONE, Game
from textgames.games.wording import THINK
from textgames.learning.options import PlayConfig
from textgames.models.chat_template import pieces
from textgames.models.trajectories import Text

_OPENED = THINK.replace("<", "</")


def seeds(config: PlayConfig, train: int, test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Seeds whose levels have solutions, to learn from and to measure the loss on; int64 [train], [test].

    They rise from the source's first one on; none has a level of the validation games, none to measure the loss on has
    one that is learned from (of the bandit, which has no levels, there is only the seed to tell games apart).
    """
    kept_out = max(levels.VALIDATION, config.val_data_num)
    found, first = np.zeros(0, np.int64), levels.FIRST_SFT
    while True:
        new = levels.training(config, 2 * (train + test), first, kept_out)
        solved = [each is not None for each in solver.solutions(config, new)]
        found, first = np.concatenate([found, new[solved]]), int(new[-1]) + 1
        keys = levels.level_keys(config, found)
        others = ~np.isin(keys, keys[:train])
        if len(found) >= train and others.sum() >= test:
            return found[:train], found[others][:test]


def texts(
    config: PlayConfig,
    chosen: NDArray[np.int64],
    tokenizer: Any,
    rng: np.random.Generator,
    *,
    safe: bool = False,
    wander: int = 0,
    longest: int = 1 << 30,
    by_chance: bool = False,
) -> list[Text]:
    """Returns what is said in the games of seeds: with `context=whole` a text a game, else one an action.

    A reply has the form that the flags let a model give: `numbers` for an action's number, and with `think` an
    opened thought that is closed at once, but for `no_think_rl`, whose kept replies have no thought.

    Args:
        config: The flags.
        chosen: Of the games, int64 [n]; each has a solution.
        tokenizer: The model's.
        rng: Of the wandering.
        safe: On slippery ice: in each state the first action of the shortest way as if nothing slipped. Else the
            actions that happen to succeed with the slips of the seed, as in the source.
        wander: Random actions before the solver takes over, at most; they are shown, but not learned from.
        longest: Tokens of a text; turns that do not fit are left out.
        by_chance: All actions are random, `max_turns` a game: they teach how to reply, and nothing of the game.
    """
    told = _Told(config, tokenizer, len(chosen), longest)
    game = make_game(config)
    game.reset(chosen)
    astray = rng.integers(wander + 1, size=len(chosen))
    asked = not wander and not by_chance
    guide = _Guide(game, solver.solutions(config, chosen, safe=safe) if asked else None, safe)
    going, turn = np.arange(len(chosen)), 0
    while len(going) and not (by_chance and turn == config.max_turns):
        told.shown(game, going)
        wandering = turn < astray[going]
        actions = rng.integers(1, len(game.actions) + 1, size=len(going))
        if not by_chance:
            actions[~wandering] = guide.actions(going[~wandering])
        known = actions != NONE
        going, actions = going[known], actions[known]
        told.said(game, going, actions, ~wandering[known])
        outcome = game.step(actions, going)
        told.heard(game, going, outcome.reward)
        going, turn = going[~outcome.done], turn + 1
    return told.texts()


class _Guide:
    """What the solver does in games: its plans, made when they are first asked for, or in each state anew.

    Args:
        game: The games.
        plans: Of each game; None: not made yet.
        safe: See `texts`.
    """

    def __init__(
        self, game: Game, plans: list[NDArray[np.int64] | None] | None, safe: bool
    ) -> None:
        self._game, self._safe = game, safe
        self._plans: dict[int, list[int]] = {
            b: [] if plan is None else plan.tolist() for b, plan in enumerate(plans or ())
        }

    def actions(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next action in each of the games `which`; 0 where there is no way on."""
        anew = self._safe and self._game.name == FROZENLAKE
        new = which if anew else which[[b not in self._plans for b in which]]
        for b, plan in zip(new, self._ways(new), strict=True):
            self._plans[b] = [] if plan is None else plan.tolist()
        return np.array([self._plans[b].pop(0) if self._plans[b] else NONE for b in which], int)

    def _ways(self, which: NDArray[np.int64]) -> list[NDArray[np.int64] | None]:
        game = self._game
        if not len(which) or game.name == BANDIT:
            return [np.array([HIGH])] * len(which)
        if game.name == FROZENLAKE:
            slips = None if self._safe else game.slips(which)
            return solver.walk(game.cells[which], game.player[which], slips)
        return solver.solve(game.cells[which])


class _Told:
    """What is said in a batch of games, turn by turn."""

    def __init__(self, config: PlayConfig, tokenizer: Any, count: int, longest: int) -> None:
        self._config, self._tokenizer, self._longest = config, tokenizer, longest
        self._around = pieces(tokenizer, think=config.think)
        self._closes = config.think and not config.no_think_rl
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._turns: list[list[int]] = [[] for _ in range(count)]
        self._messages: dict[int, str] = {}
        self._turn = 0
        self._done: list[Text] = []
        self._full = np.zeros(count, bool)

    def shown(self, game: Game, going: NDArray[np.int64]) -> None:
        """The users' messages come to the games that go on."""
        whole = self._config.context == "whole"
        if whole and len(going) and self._tokens[going[0]]:
            texts = [self._around.next(self._messages[b], ended=True) for b in going]
        else:
            prompts = wording.first_prompts(self._config, game, going, think=self._config.think)
            texts = [self._around.first(message) for message in prompts]
        for b, tokens in zip(going, self._cut(texts), strict=True):
            if not whole:
                self._tokens[b], self._turns[b] = [], []
            self._add(b, tokens, -1)

    def said(
        self,
        game: Game,
        going: NDArray[np.int64],
        actions: NDArray[np.int64],
        counts: NDArray[np.bool_],
    ) -> None:
        """The replies that mean the actions; which of them count."""
        style = "number" if self._config.numbers else "word"
        before = _OPENED if self._closes else ""
        texts = [
            f"{before}{wording.answer(game, int(action), style)}{self._around.end}"
            for action in actions
        ]
        for b, tokens, counted in zip(going, self._cut(texts), counts, strict=True):
            self._add(b, tokens, self._turn if counted else -1)
            if self._config.context == "last" and counted:
                self._keep(b)
        self._turn += 1

    def heard(self, game: Game, going: NDArray[np.int64], rewards: NDArray[np.float32]) -> None:
        """What the games say to the actions."""
        if self._config.context == "whole":
            for b, reward in zip(going, rewards, strict=True):
                self._messages[b] = wording.feedback(
                    self._config, game, int(b), True, float(reward), bool(game.done[b])
                )

    def texts(self) -> list[Text]:
        """All that was said."""
        if self._config.context == "whole":
            for b in range(len(self._tokens)):
                self._keep(b)
        return self._done

    def _cut(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return list(self._tokenizer(texts, add_special_tokens=False)["input_ids"])

    def _add(self, b: int, tokens: list[int], turn: int) -> None:
        self._full[b] |= len(self._tokens[b]) + len(tokens) > self._longest
        if not self._full[b]:
            self._tokens[b] += tokens
            self._turns[b] += [turn] * len(tokens)

    def _keep(self, b: int) -> None:
        turns = np.array(self._turns[b], np.int64)
        counted = np.flatnonzero(turns >= 0)
        if len(counted):  # what stands behind the last reply that counts teaches nothing
            end = counted[-1] + 1
            self._done.append(Text(np.array(self._tokens[b][:end], np.int64), turns[:end]))
