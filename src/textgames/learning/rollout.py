"""Plays games in conversation with a language model: many at once, turn by turn.

After RAGEN (Wang et al. 2025, arXiv 2504.20073): the user shows the game, the model's reply holds an action in
`<answer>`, the game's answer is the user's next message. A reply ends with `</answer>`, so that a model cannot write
itself what the game would say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.games import wording
from textgames.games.config import GameConfig
from textgames.games.interface import Game
from textgames.learning.options import PlayConfig
from textgames.models.chat_template import Pieces, pieces
from textgames.models.kv_cache import Reading
from textgames.models.prefix_cache import Recall
from textgames.models.sampling import draw
from textgames.models.trajectories import Text, Trajectory, Turn

CLOSE = "</answer>"


@dataclass(frozen=True)
class Speech:
    """How the model speaks and how long.

    Attributes:
        draw: Logits [n, vocabulary] to tokens [n].
        max_turns: Of a game.
        max_tokens: Of a reply.
        think: A reply's `<think>` is opened for the model.
        no_think: A reply is remembered as its action alone (`no_think_rl`).
        numbers: The remembered action is a number, not a name.
    """

    draw: Callable[[Tensor], Tensor]
    max_turns: int
    max_tokens: int
    think: bool = False
    no_think: bool = False
    numbers: bool = False


def speech(config: PlayConfig, generator: Any | None, max_turns: int = 0) -> Speech:
    """How the flags let a model speak.

    Args:
        config: The flags.
        generator: Of the draws; None: the likeliest token.
        max_turns: In place of the flags'.
    """
    drawn = partial(
        draw, generator=generator, temperature=0 if generator is None else config.temperature, top_p=config.top_p,
        top_k=config.top_k,
    )  # fmt: skip
    return Speech(
        drawn, max_turns or config.max_turns, config.max_response_length, think=config.think,
        no_think=config.no_think_rl, numbers=config.numbers,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _closing(tokenizer: Any) -> NDArray[np.bool_]:
    """Which tokens have a `>`: only after one of them can a reply have ended; bool [vocabulary]."""
    words = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return np.array([">" in word for word in words])


class _Talk:
    """The conversations of `play` with the tokens that were exchanged."""

    def __init__(self, model: Any, tokenizer: Any, speech: Speech, count: int, remembers: bool):
        self._tokenizer, self._speech, self._remembers = tokenizer, speech, remembers
        self._around: Pieces = pieces(tokenizer, think=speech.think)
        self._end = tokenizer.convert_tokens_to_ids(self._around.end)
        self._closing = _closing(tokenizer)
        # Conversations that only grow keep their own cache, those that begin anew each turn what they had before.
        self.reading: Reading | Recall = Reading(model, count) if remembers else Recall(model)
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._said: list[list[int]] = [[] for _ in range(count)]  # the turn, -1: not said
        self._pending: list[list[int]] = [[] for _ in range(count)]  # not read yet
        # What is said is often said again, in other games or later.
        self._coded: dict[str, list[int]] = {}
        self._closes: dict[tuple[int, ...], bool] = {}

    def hear(self, going: NDArray[np.int64], messages: Sequence[str]) -> Tensor:
        """The user's messages, to the conversations that are going on; returns the logits of the first tokens."""
        if not self._remembers or not self._tokens[going[0]]:
            texts = [self._around.first(message) for message in messages]
            for row in going:
                self._tokens[row], self._said[row], self._pending[row] = [], [], []
        else:
            texts = [
                self._around.next(message, ended=self._tokens[row][-1:] == [self._end])
                for row, message in zip(going, messages, strict=True)
            ]
        for row, chunk in zip(going, self._code(texts), strict=True):
            self._add(row, chunk, -1)
        chunks = [self._read(row) for row in going]
        if isinstance(self.reading, Recall):
            return self.reading.begin(chunks)
        logits = self.reading.add(chunks)
        self._columns = self.reading.columns
        return logits

    def reply(self, going: NDArray[np.int64], logits: Tensor) -> list[list[int]]:
        """The replies' tokens; the last of each is not read yet."""
        replies: list[list[int]] = [[] for _ in going]
        speaking = np.ones(len(going), bool)
        for _ in range(self._speech.max_tokens):
            drawn = self._speech.draw(logits)
            tokens = drawn.cpu().numpy()
            for i in np.flatnonzero(speaking):
                replies[i].append(int(tokens[i]))
            over = tokens == self._end
            for i in np.flatnonzero(speaking & ~over & self._closing[tokens]):
                over[i] = self._closed(tuple(replies[i]))
            speaking &= ~over
            if (
                not speaking.any()
                or len(replies[int(speaking.argmax())]) == self._speech.max_tokens
            ):
                break
            logits = self.reading.add_one(drawn, torch.from_numpy(speaking))
        return replies

    def remember(
        self, going: NDArray[np.int64], turn: int, replies: Sequence[Sequence[int]]
    ) -> None:
        """The replies as they were drawn become part of the conversations."""
        for row, reply in zip(going, replies, strict=True):
            self._add(row, reply, turn)
            self._pending[row] = list(reply[-1:])

    def replace(self, going: NDArray[np.int64], turn: int, replies: Sequence[str]) -> None:
        """Other replies take the place of those that were drawn."""
        if isinstance(self.reading, Reading):
            self.reading.cut(self._columns)
        chunks = self._code([each + self._around.end for each in replies])
        for row, chunk in zip(going, chunks, strict=True):
            self._add(row, chunk, turn)

    def keep(self, going: NDArray[np.bool_]) -> None:
        """Goes on with some of those that are going on; bool [n]."""
        if isinstance(self.reading, Reading) and going.any():
            self.reading.keep(going)

    def text(self, row: int) -> Text:
        """What a conversation's tokens are now."""
        return Text(np.array(self._tokens[row]), np.array(self._said[row]))

    def words(self, replies: Sequence[Sequence[int]]) -> list[str]:
        """Replies as texts, without what ends a message."""
        cut = [reply[:-1] if reply[-1:] == [self._end] else reply for reply in replies]
        return list(self._tokenizer.batch_decode(cut))

    def _code(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._coded]
        if new:
            found = self._tokenizer(new, add_special_tokens=False)["input_ids"]
            self._coded |= dict(zip(new, found, strict=True))
        return [self._coded[text] for text in texts]

    def _closed(self, reply: tuple[int, ...]) -> bool:
        """Whether a reply has ended its answer."""
        if reply not in self._closes:
            self._closes[reply] = CLOSE in self._tokenizer.decode(reply)
        return self._closes[reply]

    def _add(self, row: int, tokens: Sequence[int], turn: int) -> None:
        self._tokens[row] += tokens
        self._said[row] += [turn] * len(tokens)
        self._pending[row] += tokens

    def _read(self, row: int) -> list[int]:
        chunk, self._pending[row] = self._pending[row], []
        return chunk


def play(
    model: Any,
    tokenizer: Any,
    game: Game,
    config: GameConfig,
    seeds: NDArray[np.int64],
    speech: Speech,
    told: Callable[[int], None] | None = None,
    luck: NDArray[np.int64] | None = None,
) -> list[Trajectory]:
    """Plays a game for each seed.

    Args:
        model: A causal model of `transformers`; it is put into evaluation mode.
        tokenizer: Its own.
        game: A batch of games.
        config: The games' flags: how they are shown, and whether a turn shows the whole conversation.
        seeds: Of the games, int64 [B].
        speech: How the model speaks.
        luck: Of the games, see `Game.reset`.
        told: Called with the tokens that were computed, at the end.
    """
    model.eval()
    game.reset(seeds, luck)
    remembers = config.context == "whole"
    talk = _Talk(model, tokenizer, speech, len(seeds), remembers)
    lucks = np.zeros(len(seeds), np.int64) if luck is None else luck
    found = [Trajectory(int(seed), luck=int(of)) for seed, of in zip(seeds, lucks, strict=True)]
    going = np.arange(len(seeds))
    prompts = wording.first_prompts(config, game, going, think=speech.think)
    shown = dict(enumerate(prompts))
    for turn in range(speech.max_turns):
        logits = talk.hear(going, [shown[int(b)] for b in going])
        replies = talk.reply(going, logits)
        words = talk.words(replies)
        actions = np.array([wording.parse(game, each) for each in words])
        if speech.no_think:
            kept = [
                wording.answer(game, int(action), "number" if speech.numbers else "word")
                for action in actions
            ]
            talk.replace(going, turn, kept)
        else:
            kept = words
            talk.remember(going, turn, replies)
        outcome = game.step(actions, going)
        rewards = outcome.reward + outcome.penalty
        for i, b in enumerate(going):
            each = found[b]
            each.turns.append(
                Turn(shown[int(b)], words[i], kept[i], int(actions[i]), float(rewards[i]))
            )
            each.rewards.append(float(rewards[i]))
            each.success, each.done = bool(outcome.success[i]), bool(outcome.done[i])
            each.effective += int(outcome.effective[i])
            if not remembers:
                each.texts.append(talk.text(int(b)))
        rest = ~outcome.done & (turn + 1 < speech.max_turns)
        talk.keep(rest)
        going = going[rest]
        if not len(going):
            break
        if remembers:
            for b, action, reward in zip(going, actions[rest], outcome.reward[rest], strict=True):
                shown[int(b)] = wording.feedback(
                    config, game, int(b), bool(action), float(reward), False
                )
        else:
            prompts = wording.first_prompts(config, game, going, think=speech.think)
            shown |= dict(zip(going.tolist(), prompts, strict=True))
    if remembers:
        for b, each in enumerate(found):
            each.texts.append(talk.text(b))
    if told is not None:
        told(talk.reading.read)
    return found
