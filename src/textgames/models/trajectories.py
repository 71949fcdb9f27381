"""Trajectories: the messages of a game as text, and as tokens to train on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Turn:
    """Messages and outcome of a turn.

    Attributes:
        observation: The user's message.
        reply: The model's message, as sampled.
        stored_reply: What the conversation keeps and the model is trained on: the reply, or its action alone
            (`no_think_rl`).
        action: Number of the action; 0 if the reply has none.
        reward: Reward of the game plus the penalty for a reply without an action.
    """

    observation: str
    reply: str
    stored_reply: str
    action: int
    reward: float


@dataclass(frozen=True)
class Text:
    """Tokens of a conversation as the model reads them, labelled with the turns of its replies.

    Attributes:
        tokens: int64 [T].
        turns: The turn in which the model wrote a token; -1 for tokens of messages to the model; int64 [T].
    """

    tokens: NDArray[np.int64]
    turns: NDArray[np.int64]

    def trained_turns(self, *, all_tokens: bool = False) -> NDArray[np.int64]:
        """Return the turn of every token that is trained on, -1 for other tokens, int64 [T].

        Args:
            all_tokens: Also train on the game's messages after the first reply, as part of the turn before
                them. RAGEN's first version did that.
        """
        return np.maximum.accumulate(self.turns) if all_tokens else self.turns


@dataclass
class Trajectory:
    """A game from its beginning to its end or the limit of turns.

    Attributes:
        seed: Seed of the game.
        texts: The whole conversation; or one text per turn if a turn shows only the current state.
        turns: Messages and outcomes of all turns.
        rewards: Rewards of all turns, penalties included.
        success, done: See `Game`.
        effective: Number of actions that changed the state.
        replay: Which random stream of the seed's slips and rewards the game used, see `Game.reset`.
    """

    seed: int
    texts: list[Text] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: bool = False
    done: bool = False
    effective: int = 0
    replay: int = 0

    @property
    def score(self) -> float:
        """Sum of the rewards."""
        return float(sum(self.rewards))

    @property
    def valid(self) -> int:
        """Number of turns with an action."""
        return sum(turn.action > 0 for turn in self.turns)

    def token_turns(self, *, all_tokens: bool = False) -> NDArray[np.int64]:
        """Return the turns of all trained tokens in order, int64 [N]; see `Text.trained_turns`."""
        turns = np.concatenate([text.trained_turns(all_tokens=all_tokens) for text in self.texts])
        return turns[turns >= 0]

    def contexts(self) -> list[bytes]:
        """Return the tokens that precede the reply of every turn, as bytes; equal contexts are the same state."""
        contexts = {}
        for text in self.texts:
            turns = text.turns
            starts = np.flatnonzero(turns[1:] != turns[:-1]) + 1  # the first token is never a reply
            contexts |= {turns[i]: text.tokens[:i].tobytes() for i in starts if turns[i] >= 0}
        return [contexts[turn] for turn in sorted(contexts)]
