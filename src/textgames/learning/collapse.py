"""Signs that reinforcement learning of a language model collapses.

RAGEN (Wang et al. 2025, section 4.1) observed them before the score fell: the outcomes of a game's replays stop
differing, the entropy swings, the gradient norm jumps, a phrase is repeated ("echo trap"). A solved game has some of
them too, so they count only while the success rate is below its best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

WINDOW = 5  # updates in a moving average
HISTORY = 50  # updates whose gradient norms give the median
ENTROPY_FACTOR = 5.0  # change from the first window, up or down
SPREAD_FACTOR = 0.1  # share of the first window's group_spread
GRADIENT_FACTOR = 10.0  # times the median
PHRASE_SHARE = 0.95  # share of the most common reply
STANDARD_ERRORS = 3.0  # between two success rates that differ
COLLAPSED = 0.5  # share of the best success rate below which a run has collapsed

CHOICES = ("mark", "end", "off")


def most_common_share(replies: Sequence[str]) -> float:
    """Return the share of the most common reply."""
    return max(Counter(replies).values()) / len(replies)


class CollapseDetector:
    """Detects signs of collapse in the metrics of a run's updates.

    Attributes:
        signs: {sign: update at which it first appeared}.
        collapsed: Update at which the success rate was first below half of its best, both over `WINDOW` updates; 0
            until then.
    """

    def __init__(self) -> None:
        self.signs: dict[str, int] = {}
        self.collapsed = 0
        self._history: list[dict[str, float]] = []
        self._first: dict[str, float] = {}  # means of the first window
        self._best = -np.inf  # highest success rate of a window

    def check(self, update: int, metrics: dict[str, float]) -> list[str]:
        """Add an update's metrics and return new signs.

        Args:
            update: Its number.
            metrics: `games` (number of games), `success` (share of them), `group_spread` (standard deviation of the
                scores of a game, mean over games; 0 without replays), `entropy`, `grad_norm`, `commonest` (share of the
                most common reply).
        """
        # While a critic warms up, grad_norm is 0.
        norms = [earlier["grad_norm"] for earlier in self._history if earlier["grad_norm"]]
        signs = []
        median_known = len(norms) >= 2 * WINDOW
        if median_known and metrics["grad_norm"] > GRADIENT_FACTOR * float(np.median(norms)):
            signs.append("gradient")
        self._history = [*self._history, metrics][-HISTORY:]
        if len(self._history) >= WINDOW:
            window = {
                name: float(np.mean([earlier[name] for earlier in self._history[-WINDOW:]]))
                for name in metrics
            }
            self._first = self._first or window
            self._best = max(self._best, window["success"])
            if not self.collapsed and window["success"] < COLLAPSED * self._best:
                self.collapsed = update
            signs += self._window_signs(window)
        new = [sign for sign in signs if sign not in self.signs]
        self.signs.update(dict.fromkeys(new, update))
        return new

    def _window_signs(self, window: dict[str, float]) -> list[str]:
        first = self._first
        games, success = WINDOW * window["games"], window["success"]
        margin = STANDARD_ERRORS * np.sqrt(max(success * (1 - success), 1 / games) / games)
        if success > first["success"] + margin and success >= self._best - margin:
            return []
        signs = []
        low, high = first["entropy"] / ENTROPY_FACTOR, first["entropy"] * ENTROPY_FACTOR
        if not low <= window["entropy"] <= high:
            signs.append("entropy")
        if window["group_spread"] < SPREAD_FACTOR * first["group_spread"]:
            signs.append("spread")
        if window["commonest"] > max(PHRASE_SHARE, first["commonest"]):
            signs.append("phrase")
        return signs

    @property
    def lead(self) -> int | None:
        """Updates from the first sign to the collapse, negative if it came after; None without a sign or a collapse."""
        if not self.collapsed or not self.signs:
            return None
        return self.collapsed - min(self.signs.values())

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "raised": self.signs,
            "collapsed": self.collapsed,
            "seen": self._history,
            "first": self._first,
            "best": float(self._best),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state of `state()`."""
        self.signs, self._history = dict(state["raised"]), list(state["seen"])
        self._first, self._best = dict(state["first"]), state["best"]
        self.collapsed = state.get("collapsed", 0)  # missing in older checkpoints
