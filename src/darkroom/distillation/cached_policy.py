"""Playing with a transformer: what it has computed of earlier steps is kept, so that a step costs a step.

When the window is full, the older half is forgotten and the newer half is computed anew in the first half of the
window (`halve`): the logits are at each step those of the steps that are kept, computed from nothing, and a step costs
two on average. A ring buffer (`ring`), in which the newest step takes the oldest's place, is cheaper, but is another
function than the one that was trained: deeper blocks remember what the window has lost. It needs tokens that
know no place.
"""

from __future__ import annotations

import numpy as np
import torch

from darkroom.distillation.blocks import Place
from darkroom.distillation.context import FIELDS, Context
from darkroom.distillation.shape import TOKENS
from darkroom.distillation.transformer import Transformer


class Player:
    """Actions of R agents that go on together.

    Args:
        model: Not to be trained meanwhile.
        cells: Where the agents begin, int [R].
        sizes: Sides of their rooms, int [R].
        when_full: See :data:`darkroom.distillation.shape.WHEN_FULL`.

    Attributes:
        kept: Steps of the window that are filled.

    Raises:
        ValueError: The rooms are beyond the model's reach, or it knows places and so can keep no ring.
    """

    def __init__(
        self, model: Transformer, cells: np.ndarray, sizes: np.ndarray, when_full: str = "halve"
    ) -> None:
        if when_full == "ring" and len(model.positions):
            raise ValueError("a ring needs a model whose tokens know no place (positions=time)")
        for size in np.unique(sizes):
            if not model.shape.fits(int(size)):
                raise ValueError(f"the model cannot be told the cells of a {size} x {size} room")
        self.model, self.when_full = model.eval(), when_full
        self.window = Context.empty(sizes, model.shape.window)
        self.kept = 0
        self._written = 0
        self._memories = model.memories(len(sizes))
        self._next = Context.first(cells, np.asarray(sizes, np.int64))

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """Takes in the present step and returns the logits of its action, float32 [R, 5], on the processor."""
        full = self.model.shape.window
        if self.kept == full and self.when_full == "halve":
            self._halve()
        at = self._written % full
        self.window.put(at, self._next)
        self._written += 1
        self.kept = min(self.kept + 1, full)
        return self._extend(at)

    def act(self, uniform: np.ndarray) -> np.ndarray:
        """Draws actions, int64 [R].

        Args:
            uniform: Numbers in [0, 1), float [R].
        """
        chances = self.model.policy(self.logits()).cumsum(dim=-1).numpy()
        return (chances[:, :-1] <= np.asarray(uniform)[:, None]).sum(axis=1)

    def best(self) -> np.ndarray:
        """Takes the likeliest actions, int64 [R]."""
        return self.logits().argmax(dim=-1).numpy()

    def saw(
        self, actions: np.ndarray, rewards: np.ndarray, cells: np.ndarray, times: np.ndarray
    ) -> None:
        """Takes in what the actions did, each int or float [R]; see :class:`darkroom.distillation.context.Context`."""
        now, then = self._next, Context.empty(self._next.sizes, 1)
        then.before[:], then.acted[:] = now.cells, now.times
        told = (
            (then.actions, actions),
            (then.rewards, rewards),
            (then.cells, cells),
            (then.times, times),
        )
        for into, values in told:
            into[:, 0] = values
        self._next = then

    def _extend(self, at: int) -> torch.Tensor:
        tokens = TOKENS[self.model.shape.layout]
        begin, seen = at * tokens, self.kept * tokens
        mask = None
        if tokens > 1:
            # A token does not see those that come after it, nor what they are about to overwrite.
            mask = torch.ones(tokens, seen, dtype=torch.bool)
            mask[:, begin : begin + tokens] = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            mask = mask.to(self.model.head.weight.device)
        place = Place(begin, seen, mask)
        step = self.window.cut(at, at + 1)
        return self.model(step, self._memories, place, first=at)[:, -1].cpu()

    def _halve(self) -> None:
        full = self.model.shape.window
        kept = full // 2
        newer = self.window.cut(full - kept, full)
        self.window.put(0, Context(*(getattr(newer, f).copy() for f in FIELDS), newer.sizes))
        self.kept = self._written = kept
        self.model.remember(self.window.cut(0, kept), self._memories)
