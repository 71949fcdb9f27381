"""A two-armed bandit whose arms' names hint at their rewards, with a single pull per game.

The low-risk arm pays more in 57 % of pairs of pulls, but the high-risk arm has the higher mean (.325 against .2).
Success is choosing the high-risk arm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.draws import begin, draw, switch_stream
from rl.kernels import kernel, part
from textgames.games.interface import BANDIT, NONE, Outcome, check_actions

LOW, HIGH = 1, 2
"""Actions."""
LOW_MEAN, SPREAD = 0.2, 0.1
HIGH_CHANCE, HIGH_RARE, HIGH_USUAL = 0.25, 1.0, 0.1
_WORD = 1 << 32


class Bandit:
    """See `interface.Game`.

    Args:
        names: Names of the low-risk and the high-risk arm.
        order: Order of the names in a prompt: "shuffled" (by the seed), "low-first" or "high-first".

    Attributes:
        first: The action that a prompt names first, int64 [B].
        pulled: The action taken, 0 before, int64 [B].
    """

    name = BANDIT

    def __init__(self, names: tuple[str, str], order: str = "shuffled") -> None:
        self.actions = names
        self._order = order
        self.reset(np.zeros(0, np.int64))

    def reset(self, seeds: NDArray[np.int64], replays: NDArray[np.int64] | None = None) -> None:
        """See `interface.Game`. The rewards of both arms are drawn here."""
        count = len(seeds)
        self.success, self.done = np.zeros(count, bool), np.zeros(count, bool)
        self.steps = np.zeros(count, np.int64)
        self._rewards = np.empty((count, 2), np.float32)
        self.first, self.pulled = np.empty(count, np.int64), np.zeros(count, np.int64)
        replays = np.zeros(count, np.int64) if replays is None else np.asarray(replays, np.int64)
        _draw(np.asarray(seeds, np.int64), replays, self._rewards, self.first)
        if self._order != "shuffled":
            self.first[:] = LOW if self._order == "low-first" else HIGH

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """See `interface.Game`. The game is over after any action, also an invalid one."""
        check_actions(self, actions, which)
        valid = actions != NONE
        reward = np.where(valid, self._rewards[which, np.maximum(actions, 1) - 1], np.float32(0))
        self.done[which], self.success[which] = True, actions == HIGH
        self.pulled[which] = actions
        self.steps[which] += 1
        return Outcome(
            reward, np.zeros(len(which), np.float32), self.done[which], self.success[which], valid
        )

    def render(self, which: NDArray[np.int64]) -> list[str]:
        """Return empty texts: there is no grid."""
        return [""] * len(which)


@part
def _normal(rng):
    """Return a standard normal number by Box and Muller's transform of two uniform numbers, the first above 0."""
    radius = np.sqrt(-2 * np.log((draw(rng, _WORD) + 1) / _WORD))
    return radius * np.cos(2 * np.pi * draw(rng, _WORD) / _WORD)


@kernel
def _draw(seeds, replays, rewards, first):
    rng = np.empty(1, np.uint64)
    for n in range(len(seeds)):
        begin(rng, seeds[n])
        first[n] = LOW + draw(rng, 2)
        switch_stream(rng, replays[n])
        rewards[n, 0] = LOW_MEAN + SPREAD * _normal(rng)
        mean = HIGH_RARE if draw(rng, _WORD) < HIGH_CHANCE * _WORD else HIGH_USUAL
        rewards[n, 1] = mean + SPREAD * _normal(rng)
