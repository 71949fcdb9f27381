"""What was said in a game, as texts to read and as tokens to learn from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Turn:
    """What was said in a turn.

    Attributes:
        shown: The user's message.
        reply: The model's, as it was drawn.
        kept: As it is remembered and trained on: the reply, or its action alone (`no_think_rl`).
        action: 0 is none.
        reward: Of the game, and the penalty of a reply without an action.
    """

    shown: str
    reply: str
    kept: str
    action: int
    reward: float


@dataclass(frozen=True)
class Text:
    """Tokens that the model saw in one piece, and which of them it said.

    Attributes:
        tokens: int64 [T].
        turns: The turn in which the model said a token, -1 of the others, int64 [T].
    """

    tokens: NDArray[np.int64]
    turns: NDArray[np.int64]

    def counted(self, *, all_tokens: bool = False) -> NDArray[np.int64]:
        """The turn of each token that is learned from, -1 of the others, int64 [T].

        Args:
            all_tokens: Also what the game said after the first reply, as of the turn before, which the source's
                first version learned from.
        """
        return np.maximum.accumulate(self.turns) if all_tokens else self.turns


@dataclass
class Trajectory:
    """A game from its beginning to its end or the limit of turns.

    Attributes:
        seed, luck: Of the game.
        texts: One, or one a turn where each turn shows the last state alone.
        turns: What was said.
        rewards: Of each turn, penalties included.
        success, done: See `Game`.
        effective: Actions that changed something.
    """

    seed: int
    texts: list[Text] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: bool = False
    done: bool = False
    effective: int = 0
    luck: int = 0

    @property
    def score(self) -> float:
        """The sum of its rewards."""
        return float(sum(self.rewards))

    @property
    def valid(self) -> int:
        """Turns with an action."""
        return sum(turn.action > 0 for turn in self.turns)

    def told(self) -> list[bytes]:
        """What the model had been told when it spoke, of each turn; equal where all of it is."""
        found = {}
        for text in self.texts:
            said = text.turns
            at = np.flatnonzero(said[1:] != said[:-1]) + 1  # a first token is never the model's
            found |= {said[i]: text.tokens[:i].tobytes() for i in at if said[i] >= 0}
        return [found[turn] for turn in sorted(found)]
