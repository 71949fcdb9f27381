"""In-context learning: rollouts of the transformer in many rooms at once, without a gradient step.

Keys and values of earlier steps are cached. When the window is full, `halve` forgets its older half and recomputes the
newer one at the beginning of the window: at every step the logits are those of the remaining steps computed from
nothing, and a step costs two on average. `ring` overwrites the oldest step. It is cheaper, but another function than
the trained one: deeper blocks remember forgotten steps. It needs tokens without a position (`positions=time`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from darkroom.distillation.context import Context
from darkroom.distillation.shape import TOKENS
from darkroom.distillation.transformer import CacheSlot, Transformer
from darkroom.rooms import grid
from darkroom.rooms.batch import RoomBatch, Step
from darkroom.rooms.play import Tasks, returns_and_lengths, steps_of

AGENTS_AT_ONCE = 480  # more would not be faster, and their caches would not fit the CPU's


class CachedPolicy:
    """The policy of R agents that act in step, with cached keys and values.

    Args:
        model: The transformer, which must not be trained meanwhile.
        cells: First cells of the agents, int [R].
        sizes: Sides of their rooms, int [R].
        when_full: One of :data:`darkroom.distillation.shape.WHEN_FULL`.

    Attributes:
        agents: R.
        window: The steps that the agents know.
        length: How many there are.

    Raises:
        ValueError: A room is too large for the model, or a ring is impossible with its positions.
    """

    def __init__(
        self, model: Transformer, cells: np.ndarray, sizes: np.ndarray, when_full: str = "halve"
    ) -> None:
        if when_full == "ring" and len(model.positions):
            raise ValueError("a ring needs a model without learned positions (positions=time)")
        for size in np.unique(sizes):
            if not model.shape.fits(int(size)):
                raise ValueError(
                    f"the model has no embedding of the cells of a {size} x {size} room"
                )
        self.model, self.when_full = model.eval(), when_full
        self.window = Context.empty(sizes, model.shape.window)
        self.length = 0
        self.agents = len(sizes)
        self._written = 0
        self._caches = model.empty_caches(len(sizes))
        self._present = Context.first(cells, np.asarray(sizes, np.int64))

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """Append the present step to the window and return the logits of its action, float32 [R, 5], on the CPU."""
        full = self.model.shape.window
        if self.length == full and self.when_full == "halve":
            self._halve()
        at = self._written % full
        self.window.put(at, self._present)
        self._written += 1
        self.length = min(self.length + 1, full)
        step = self.window.cut(at, at + 1)
        return self.model(step, self._caches, self._slot(at), first=at)[:, -1].cpu()

    def sample(self, uniform: np.ndarray) -> np.ndarray:
        """Sample actions, int64 [R].

        Args:
            uniform: Random numbers in [0, 1), float [R].
        """
        cumulative = self.model.policy(self.logits()).cumsum(dim=-1).numpy()
        return (cumulative[:, :-1] <= np.asarray(uniform)[:, None]).sum(axis=1)

    def greedy(self) -> np.ndarray:
        """Return the most probable actions, int64 [R]."""
        return self.logits().argmax(dim=-1).numpy()

    def observe(
        self, actions: np.ndarray, rewards: np.ndarray, cells: np.ndarray, times: np.ndarray
    ) -> None:
        """Set the next step from the result of the actions, each int or float [R].

        Args:
            actions: Actions.
            rewards: Their rewards.
            cells: Cells after them; after the end of an episode the first one of the next.
            times: Steps of these episodes so far.
        """
        now, following = self._present, Context.empty(self._present.sizes, 1)
        following.previous_cells[:], following.previous_times[:] = now.cells, now.times
        following.actions[:, 0], following.rewards[:, 0] = actions, rewards
        following.cells[:, 0], following.times[:, 0] = cells, times
        self._present = following

    def _slot(self, at: int) -> CacheSlot:
        """Return where step `at` is written, and what its tokens see."""
        tokens = TOKENS[self.model.shape.layout]
        begin, end = at * tokens, self.length * tokens
        mask = None
        if tokens > 1:
            # A token sees neither the later ones of its step nor the old ones in their places.
            mask = torch.ones(tokens, end, dtype=torch.bool)
            mask[:, begin : begin + tokens] = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            mask = mask.to(self.model.head.weight.device)
        return CacheSlot(begin, end, mask)

    def _halve(self) -> None:
        """Keep the newer half of the window."""
        full = self.model.shape.window
        kept = full // 2
        self.window.put(0, self.window.cut(full - kept, full).copy())
        self.length = self._written = kept
        self.model.fill(self.window.cut(0, kept), self._caches)


@dataclass(frozen=True)
class Acting:
    """How agents act in a rollout.

    Attributes:
        episodes: Episodes of an agent, in one context.
        when_full: One of :data:`darkroom.distillation.shape.WHEN_FULL`.
        greedy: Take the most probable action instead of a sampled one.
    """

    episodes: int
    when_full: str
    greedy: bool


def learn_in_context(
    model: Transformer, tasks: Tasks, acting: Acting, copies: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Let agents act in every task, beginning with an empty context.

    Args:
        model: The transformer.
        tasks: The tasks, T.
        acting: How the agents act.
        copies: Independent agents of a task.
        rng: Source of the actions.

    Returns:
        Return and length of every episode, both float32 [T, copies, episodes].
    """
    agents = tasks.repeated(copies)
    parts = [
        returns_and_lengths(
            *_begin(model, agents.cut(begin, begin + AGENTS_AT_ONCE), acting, rng), acting.episodes
        )
        for begin in range(0, len(agents), AGENTS_AT_ONCE)
    ]
    shape = 2, len(tasks), copies, acting.episodes
    returns, lengths = np.concatenate(parts, axis=1).reshape(shape)
    return returns, lengths


def paths(model: Transformer, tasks: Tasks, acting: Acting, rng: np.random.Generator) -> np.ndarray:
    """Let one agent act in every task, as :func:`learn_in_context`, and return its cells.

    Returns:
        The first cell of an episode and that after every step, int64 [T, episodes, limit + 1]; -1 after its end.
    """
    rows = np.arange(len(tasks))
    cells = np.full((len(tasks), acting.episodes + 1, tasks.limit + 1), -1)
    cells[:, :, 0] = np.array([grid.centre(int(size)) for size in tasks.sizes])[:, None]
    for episode, times, step in steps_of(*_begin(model, tasks, acting, rng), acting.episodes):
        cells[rows, episode, times] = step.final
    return cells[:, :-1]


@dataclass(frozen=True)
class _Agents:
    """Agents that act by a policy; an :class:`darkroom.rooms.play.Agents`."""

    policy: CachedPolicy
    greedy: bool
    rng: np.random.Generator

    def act(self) -> np.ndarray:
        if self.greedy:
            return self.policy.greedy()
        return self.policy.sample(self.rng.random(self.policy.agents))

    def observe(self, actions: np.ndarray, step: Step, times: np.ndarray) -> None:
        self.policy.observe(actions, step.rewards, step.cells, times)


def _begin(
    model: Transformer, tasks: Tasks, acting: Acting, rng: np.random.Generator
) -> tuple[RoomBatch, _Agents]:
    """Return the tasks' rooms, and an agent for each."""
    rooms = tasks.rooms()
    policy = CachedPolicy(model, rooms.cells, rooms.sizes, acting.when_full)
    return rooms, _Agents(policy, acting.greedy, rng)
