"""Conversations in which the solver plays, for supervised training.

RAGEN makes a training example of every action of a solution: the conversation so far and the answer. A conversation in
which all replies are trained on is equivalent for a causal model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runcatalog import record
from textgames.games import levels, solver, wording
from textgames.games.bandit import HIGH
from textgames.games.bounds import frozenlake_actions
from textgames.games.config import make_game
from textgames.games.frozenlake import FrozenLake
from textgames.games.interface import BANDIT, FROZENLAKE, NONE, Game
from textgames.games.sokoban import Sokoban, turned
from textgames.games.wording import THINK
from textgames.learning.options import CHANCE, OPTIMAL, SOLVER, PlayConfig
from textgames.models.chat_template import chat_parts
from textgames.models.trajectories import Text

_LEAST_NEW = 0.001  # share of new levels in further ones below which no more are looked for
_THINK_END = THINK.replace("<", "</")


def seeds(
    config: PlayConfig, train: int, test: int, *, augment: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return seeds of solvable levels for training, int64 [train], and for the validation of the loss, int64 [test].

    The levels of the validation games are excluded, and test seeds have no training level, also not turned or mirrored
    where training turns and mirrors levels. (Every seed of the bandit is a level of its own.)

    Raises:
        UserError: There are too few such levels.
    """
    excluded = max(levels.VALIDATION, config.val_data_num)
    keys_of = levels.symmetric_keys if augment else levels.level_keys
    solvable, keys, first = np.zeros(0, np.int64), np.zeros(0, "S1"), levels.FIRST_SFT
    while True:
        # After 16,000 levels about one in four further ones is not among them.
        new = levels.training(config, train + 8 * test, first, excluded)
        first = int(new[-1]) + 1
        new = new[[solution is not None for solution in solver.solutions(config, new)]]
        solvable, keys = (
            np.concatenate(parts) for parts in ((solvable, new), (keys, keys_of(config, new)))
        )
        others = ~np.isin(keys, keys[:train])
        further = len(solvable) - train
        if further >= 0 and others.sum() >= test:
            return solvable[:train], solvable[others][:test]
        if further >= 1000 and others.sum() < _LEAST_NEW * further:
            raise record.UserError(
                f"--test-levels: {test}, but of {further} levels beyond the {train} of the training only "
                f"{others.sum()} are others; give fewer train-levels, or use more cells (size)"
            )


def texts(
    config: PlayConfig,
    game_seeds: NDArray[np.int64],
    tokenizer: Any,
    rng: np.random.Generator,
    *,
    safe: bool = False,
    wander: int = 0,
    max_length: int = 1 << 30,
    teacher: str = SOLVER,
    augment: bool = False,
) -> list[Text]:
    """Return the texts of games: a text per game with `context=whole`, otherwise a text per action.

    Replies have the form that the flags let a model give: `numbers` for an action's number; with `think` an opened
    thought that is closed at once, except with `no_think_rl`, whose stored replies have no thought.

    Args:
        config: The flags.
        game_seeds: Seeds of solvable games, int64 [n].
        tokenizer: The model's tokenizer.
        rng: Random numbers of the random actions.
        safe: On slippery ice, the first action of the shortest way without slips in every state; otherwise the actions
            that succeed with the slips of the seed, as in RAGEN.
        wander: Largest number of random actions before the solver starts; they are shown, but not trained on.
        max_length: Length of a text [tokens]; turns beyond it are left out.
        teacher: One of `TEACHERS`. Random actions are `max_turns` per game.
        augment: Sokoban: turn and mirror the levels at random.
    """
    conversations = _Conversations(config, tokenizer, len(game_seeds), max_length)
    game = make_game(config)
    game.reset(game_seeds)
    if augment:
        assert isinstance(game, Sokoban)
        game.load(turned(game.cells, rng))
    random = teacher == CHANCE
    first_solved = rng.integers(wander + 1, size=len(game_seeds))
    if teacher == OPTIMAL and isinstance(game, FrozenLake):
        planner: _Planner | _BestPlayer = _BestPlayer(game, config.max_turns, config.slippery)
    else:
        from_start = not wander and not random and not augment
        plans = solver.solutions(config, game_seeds, safe=safe) if from_start else None
        planner = _Planner(game, plans, safe)
    active, turn = np.arange(len(game_seeds)), 0
    while len(active) and not (random and turn == config.max_turns):
        conversations.add_messages(game, active)
        wandering = turn < first_solved[active]
        actions = rng.integers(1, len(game.actions) + 1, size=len(active))
        if not random:
            actions[~wandering] = planner.actions(active[~wandering])
        solvable = actions != NONE
        active, actions = active[solvable], actions[solvable]
        conversations.add_replies(game, active, actions, ~wandering[solvable])
        outcome = game.step(actions, active)
        conversations.add_feedback(game, active, outcome.reward)
        active, turn = active[~outcome.done], turn + 1
    return conversations.texts()


class _Planner:
    """The solver's next actions in games, from plans that are made at the first request or in every state.

    Args:
        game: The games.
        plans: Plans of all games; None: not made yet.
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
        """Return the next action in the games `which`; 0 without a solution."""
        replan = self._safe and self._game.name == FROZENLAKE
        new = which if replan else which[[b not in self._plans for b in which]]
        for b, plan in zip(new, self._solve(new), strict=True):
            self._plans[b] = [] if plan is None else plan.tolist()
        return np.array([self._plans[b].pop(0) if self._plans[b] else NONE for b in which], int)

    def _solve(self, which: NDArray[np.int64]) -> list[NDArray[np.int64] | None]:
        game = self._game
        if not len(which) or game.name == BANDIT:
            return [np.array([HIGH])] * len(which)
        if game.name == FROZENLAKE:
            slips = None if self._safe else game.slips(which)
            return solver.walk(game.cells[which], game.player[which], slips)
        return solver.solve(game.cells[which])


class _BestPlayer:
    """FrozenLake's optimal actions in every cell, whatever the turn: those with `turns` turns left."""

    def __init__(self, game: FrozenLake, turns: int, slippery: bool) -> None:
        self._game = game
        self._table = frozenlake_actions(game.cells, turns, slippery)

    def actions(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next action in the games `which`."""
        return self._table[which, self._game.player[which]]


class _Conversations:
    """Tokens of the conversations of a batch of games, turn by turn."""

    def __init__(self, config: PlayConfig, tokenizer: Any, count: int, max_length: int) -> None:
        self._config, self._tokenizer, self._max_length = config, tokenizer, max_length
        self._template = chat_parts(tokenizer, think=config.think)
        self._closes_thought = config.think and not config.no_think_rl
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._turns: list[list[int]] = [[] for _ in range(count)]
        self._messages: dict[int, str] = {}
        self._turn = 0
        self._texts: list[Text] = []
        self._full = np.zeros(count, bool)

    def add_messages(self, game: Game, active: NDArray[np.int64]) -> None:
        """Append the user's messages in the active games."""
        whole = self._config.context == "whole"
        if whole and len(active) and self._tokens[active[0]]:
            messages = [self._template.next(self._messages[b], ended=True) for b in active]
        else:
            prompts = wording.first_prompts(self._config, game, active, think=self._config.think)
            messages = [self._template.first(prompt) for prompt in prompts]
        for b, tokens in zip(active, self._encode(messages), strict=True):
            if not whole:
                self._tokens[b], self._turns[b] = [], []
            self._append(b, tokens, -1)

    def add_replies(
        self,
        game: Game,
        active: NDArray[np.int64],
        actions: NDArray[np.int64],
        trained: NDArray[np.bool_],
    ) -> None:
        """Append replies with these actions; `trained` says which of them are trained on."""
        style = "number" if self._config.numbers else "word"
        thought = _THINK_END if self._closes_thought else ""
        replies = [
            f"{thought}{wording.answer(game, int(action), style)}{self._template.end}"
            for action in actions
        ]
        for b, tokens, is_trained in zip(active, self._encode(replies), trained, strict=True):
            self._append(b, tokens, self._turn if is_trained else -1)
            if self._config.context == "last" and is_trained:
                self._finish(b)
        self._turn += 1

    def add_feedback(
        self, game: Game, active: NDArray[np.int64], rewards: NDArray[np.float32]
    ) -> None:
        """Prepare the games' messages about the actions."""
        if self._config.context == "whole":
            for b, reward in zip(active, rewards, strict=True):
                self._messages[b] = wording.feedback(
                    self._config, game, int(b), True, float(reward), bool(game.done[b])
                )

    def texts(self) -> list[Text]:
        """Return all texts."""
        if self._config.context == "whole":
            for b in range(len(self._tokens)):
                self._finish(b)
        return self._texts

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return list(self._tokenizer(texts, add_special_tokens=False)["input_ids"])

    def _append(self, b: int, tokens: list[int], turn: int) -> None:
        self._full[b] |= len(self._tokens[b]) + len(tokens) > self._max_length
        if not self._full[b]:
            self._tokens[b] += tokens
            self._turns[b] += [turn] * len(tokens)

    def _finish(self, b: int) -> None:
        """Add a conversation to the texts, up to its last trained token."""
        turns = np.array(self._turns[b], np.int64)
        trained = np.flatnonzero(turns >= 0)
        if len(trained):
            end = trained[-1] + 1
            self._texts.append(Text(np.array(self._tokens[b][:end], np.int64), turns[:end]))
