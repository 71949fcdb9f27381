"""Signs that training a language model by reinforcement is collapsing.

RAGEN (Wang et al. 2025, section 4.1) saw them before the score fell: replies of one game no longer differ in outcome,
entropy swings, the gradient's norm jumps, one phrase is repeated ("echo trap"). A solved game shows some of them too:
they count only while success is not at its best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

WINDOW = 5  # updates that are averaged
KEPT = 50  # norms of the gradient that one is compared with
ENTROPY = 5.0  # times more or less than at first
SPREAD = 0.1  # of the spread at first
GRADIENT = 10.0  # times the median
PHRASE = 0.95  # of the replies are the same
ERRORS = 3.0  # standard errors that a rate of success has to be above another one to be better

CHOICES = ("mark", "end", "off")


def commonest(replies: Sequence[str]) -> float:
    """The share of the reply that is said most."""
    return max(Counter(replies).values()) / len(replies)


class Alarms:
    """Watches the updates of a run.

    Attributes:
        raised: The update at which each sign was first seen.
    """

    def __init__(self) -> None:
        self.raised: dict[str, int] = {}
        self._seen: list[dict[str, float]] = []
        self._first: dict[str, float] = {}
        self._best = -np.inf

    def look(self, update: int, seen: dict[str, float]) -> list[str]:
        """Looks at an update; returns what is new.

        Args:
            update: Its number.
            seen: `games` (played), `success` (share of them), `group_spread` (of the scores, mean over those of the
                same seed; 0 where none was played twice), `entropy`, `grad_norm`, `commonest`.
        """
        # While a critic warms up there is no gradient.
        norms = [each["grad_norm"] for each in self._seen if each["grad_norm"]]
        signs = []
        if len(norms) >= 2 * WINDOW and seen["grad_norm"] > GRADIENT * float(np.median(norms)):
            signs.append("gradient")
        self._seen = [*self._seen, seen][-KEPT:]
        if len(self._seen) >= WINDOW:
            now = {
                name: float(np.mean([each[name] for each in self._seen[-WINDOW:]])) for name in seen
            }
            self._first = self._first or now
            self._best = max(self._best, now["success"])
            signs += self._slow(now)
        new = [sign for sign in signs if sign not in self.raised]
        self.raised.update(dict.fromkeys(new, update))
        return new

    def _slow(self, now: dict[str, float]) -> list[str]:
        """The signs that windows show."""
        first = self._first
        games, rate = WINDOW * now["games"], now["success"]
        near = ERRORS * np.sqrt(max(rate * (1 - rate), 1 / games) / games)
        if rate > first["success"] + near and rate >= self._best - near:
            return []
        found = []
        if not first["entropy"] / ENTROPY <= now["entropy"] <= first["entropy"] * ENTROPY:
            found.append("entropy")
        if now["group_spread"] < SPREAD * first["group_spread"]:
            found.append("spread")
        if now["commonest"] > max(PHRASE, first["commonest"]):
            found.append("phrase")
        return found

    def state(self) -> dict[str, Any]:
        """What it takes to go on."""
        return {
            "raised": self.raised,
            "seen": self._seen,
            "first": self._first,
            "best": float(self._best),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.raised, self._seen = dict(state["raised"]), list(state["seen"])
        self._first, self._best = dict(state["first"]), state["best"]
