"""Rollouts: a language model plays many games at once in conversation, turn by turn.

After RAGEN (Wang et al. 2025, arXiv 2504.20073): the user's message shows the game, the model's reply has an action in
`<answer>`, the next message shows what followed. Generation stops at `</answer>`, so that the model cannot write the
game's messages itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.games import wording
from textgames.games.config import GameConfig
from textgames.games.interface import Game
from textgames.learning.options import PlayConfig
from textgames.models.chat_template import ChatParts, chat_parts
from textgames.models.kv_cache import KVCache
from textgames.models.prefix_cache import PrefixCache
from textgames.models.sampling import sample
from textgames.models.trajectories import Text, Trajectory, Turn

CLOSE = "</answer>"


@dataclass(frozen=True)
class Generation:
    """How replies are generated.

    Attributes:
        sample: Logits [n, vocabulary] -> tokens [n].
        max_turns: Turns of a game.
        max_tokens: Tokens of a reply.
        think: Replies begin with an opened `<think>`.
        no_think: Only the action of a reply is stored (`no_think_rl`).
        numbers: Stored actions are numbers, not names.
    """

    sample: Callable[[Tensor], Tensor]
    max_turns: int
    max_tokens: int
    think: bool = False
    no_think: bool = False
    numbers: bool = False


class Rollout(NamedTuple):
    """Played games.

    Attributes:
        trajectories: A trajectory per game.
        computed_tokens: Number of tokens that the model computed, without cached ones.
    """

    trajectories: list[Trajectory]
    computed_tokens: int


def generation(config: PlayConfig, generator: torch.Generator | None) -> Generation:
    """Return how replies are generated according to the flags.

    Args:
        config: The flags.
        generator: Random generator of the samples; None: the most likely tokens.
    """
    temperature = 0 if generator is None else config.temperature
    sampler = partial(
        sample, generator=generator, temperature=temperature, top_p=config.top_p, top_k=config.top_k
    )  # fmt: skip
    return Generation(
        sampler, config.max_turns, config.max_response_length, think=config.think,
        no_think=config.no_think_rl, numbers=config.numbers,
    )  # fmt: skip


def play(
    model: Any,
    tokenizer: Any,
    game: Game,
    config: GameConfig,
    seeds: NDArray[np.int64],
    how: Generation,
    replays: NDArray[np.int64] | None = None,
) -> Rollout:
    """Play a game for every seed.

    Args:
        model: A causal model of `transformers`; it is put into evaluation mode.
        tokenizer: Its tokenizer.
        game: A batch of games.
        config: The games' flags: prompts, and whether a turn shows the whole conversation.
        seeds: Seeds of the games, int64 [B].
        how: How replies are generated.
        replays: Random streams of the games, see `Game.reset`; None: 0.
    """
    model.eval()
    game.reset(seeds, replays)
    whole = config.context == "whole"
    conversations = _Conversations(model, tokenizer, how, len(seeds), whole)
    streams = np.zeros(len(seeds), np.int64) if replays is None else replays
    trajectories = [
        Trajectory(int(seed), replay=int(replay))
        for seed, replay in zip(seeds, streams, strict=True)
    ]
    active = np.arange(len(seeds))
    messages = dict(enumerate(wording.first_prompts(config, game, active, think=how.think)))
    for turn in range(how.max_turns):
        logits = conversations.add_messages(active, [messages[int(b)] for b in active])
        reply_tokens = conversations.generate(logits)
        replies = conversations.decode(reply_tokens)
        actions = np.array([wording.parse(game, reply) for reply in replies])
        if how.no_think:
            style = "number" if how.numbers else "word"
            stored = [wording.answer(game, int(action), style) for action in actions]
            conversations.replace_replies(active, turn, stored)
        else:
            stored = replies
            conversations.append_replies(active, turn, reply_tokens)
        outcome = game.step(actions, active)
        rewards = outcome.reward + outcome.penalty
        for i, b in enumerate(active):
            trajectory, action, reward = trajectories[b], int(actions[i]), float(rewards[i])
            trajectory.turns.append(Turn(messages[int(b)], replies[i], stored[i], action, reward))
            trajectory.rewards.append(reward)
            trajectory.success, trajectory.done = bool(outcome.success[i]), bool(outcome.done[i])
            trajectory.effective += int(outcome.effective[i])
            if not whole:
                trajectory.texts.append(conversations.text(int(b)))
        unfinished = ~outcome.done & (turn + 1 < how.max_turns)
        conversations.keep(unfinished)
        active = active[unfinished]
        if not len(active):
            break
        if whole:
            last = zip(active, actions[unfinished], outcome.reward[unfinished], strict=True)
            for b, action, reward in last:
                messages[int(b)] = wording.feedback(
                    config, game, int(b), bool(action), float(reward), False
                )
        else:
            prompts = wording.first_prompts(config, game, active, think=how.think)
            messages |= dict(zip(active.tolist(), prompts, strict=True))
    if whole:
        for b, trajectory in enumerate(trajectories):
            trajectory.texts.append(conversations.text(b))
    return Rollout(trajectories, conversations.cache.computed)


class _Conversations:
    """Tokens of the conversations of `play`, and the model's cache of them."""

    def __init__(self, model: Any, tokenizer: Any, how: Generation, count: int, whole: bool):
        self._tokenizer, self._how, self._whole = tokenizer, how, whole
        self._template: ChatParts = chat_parts(tokenizer, think=how.think)
        self._end = tokenizer.convert_tokens_to_ids(self._template.end)
        self._closing = _closing_tokens(tokenizer, model.config.get_text_config().vocab_size)
        # Whole conversations only grow; those that begin anew every turn reuse equal prompts.
        self.cache: KVCache | PrefixCache = KVCache(model, count) if whole else PrefixCache(model)
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._turns: list[list[int]] = [[] for _ in range(count)]  # -1: not a reply
        self._pending: list[list[int]] = [[] for _ in range(count)]  # not in the cache yet
        # Messages and replies repeat, in other games and later turns.
        self._token_ids: dict[str, list[int]] = {}
        self._is_closed: dict[tuple[int, ...], bool] = {}

    def add_messages(self, active: NDArray[np.int64], messages: Sequence[str]) -> Tensor:
        """Append the user's messages to the active conversations and return the logits of the first tokens."""
        if not self._whole or not self._tokens[active[0]]:
            texts = [self._template.first(message) for message in messages]
            for row in active:
                self._tokens[row], self._turns[row], self._pending[row] = [], [], []
        else:
            texts = [
                self._template.next(message, ended=self._tokens[row][-1:] == [self._end])
                for row, message in zip(active, messages, strict=True)
            ]
        for row, tokens in zip(active, self._encode(texts), strict=True):
            self._append(row, tokens, -1)
        chunks = [self._take_pending(row) for row in active]
        if isinstance(self.cache, PrefixCache):
            return self.cache.begin(chunks)
        logits = self.cache.add(chunks)
        self._columns = self.cache.columns
        return logits

    def generate(self, logits: Tensor) -> list[list[int]]:
        """Return the tokens of the replies; the last token of a reply is not in the cache yet.

        Args:
            logits: Logits of the first tokens, [n, vocabulary].
        """
        replies: list[list[int]] = [[] for _ in range(len(logits))]
        unfinished = np.ones(len(replies), bool)
        for _ in range(self._how.max_tokens):
            sampled = self._how.sample(logits)
            tokens = sampled.cpu().numpy()
            for i in np.flatnonzero(unfinished):
                replies[i].append(int(tokens[i]))
            ended = tokens == self._end
            for i in np.flatnonzero(unfinished & ~ended & self._closing[tokens]):
                ended[i] = self._closed(tuple(replies[i]))
            unfinished &= ~ended
            if (
                not unfinished.any()
                or len(replies[int(unfinished.argmax())]) == self._how.max_tokens
            ):
                break
            logits = self.cache.add_one(sampled, torch.from_numpy(unfinished))
        return replies

    def append_replies(
        self, active: NDArray[np.int64], turn: int, replies: Sequence[Sequence[int]]
    ) -> None:
        """Append the generated replies to the conversations."""
        for row, reply in zip(active, replies, strict=True):
            self._append(row, reply, turn)
            self._pending[row] = list(reply[-1:])

    def replace_replies(self, active: NDArray[np.int64], turn: int, replies: Sequence[str]) -> None:
        """Append other replies in place of the generated ones."""
        if isinstance(self.cache, KVCache):
            self.cache.cut(self._columns)
        tokens = self._encode([reply + self._template.end for reply in replies])
        for row, reply in zip(active, tokens, strict=True):
            self._append(row, reply, turn)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep some of the active conversations; bool [n]."""
        if isinstance(self.cache, KVCache) and mask.any():
            self.cache.keep(mask)

    def text(self, row: int) -> Text:
        """Return the tokens of a conversation."""
        return Text(np.array(self._tokens[row]), np.array(self._turns[row]))

    def decode(self, replies: Sequence[Sequence[int]]) -> list[str]:
        """Return replies as text, without the token that ends a message."""
        cut = [reply[:-1] if reply[-1:] == [self._end] else reply for reply in replies]
        return list(self._tokenizer.batch_decode(cut))

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._token_ids]
        if new:
            ids = self._tokenizer(new, add_special_tokens=False)["input_ids"]
            self._token_ids |= dict(zip(new, ids, strict=True))
        return [self._token_ids[text] for text in texts]

    def _closed(self, reply: tuple[int, ...]) -> bool:
        """Return whether a reply has a closed answer."""
        if reply not in self._is_closed:
            self._is_closed[reply] = CLOSE in self._tokenizer.decode(reply)
        return self._is_closed[reply]

    def _append(self, row: int, tokens: Sequence[int], turn: int) -> None:
        self._tokens[row] += tokens
        self._turns[row] += [turn] * len(tokens)
        self._pending[row] += tokens

    def _take_pending(self, row: int) -> list[int]:
        pending, self._pending[row] = self._pending[row], []
        return pending


@lru_cache(maxsize=8)
def _closing_tokens(tokenizer: Any, vocabulary: int) -> NDArray[np.bool_]:
    """Return which tokens contain `>`: a closed answer ends with such a token; bool [vocabulary].

    Models can have more tokens than their tokenizers (Qwen2.5: 151,936 and 151,665). These have no text.
    """
    closing = np.zeros(vocabulary, bool)
    words = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    closing[: len(words)] = [">" in word for word in words]
    return closing
