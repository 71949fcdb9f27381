"""Many environments at once: minigrid's rules in one compiled call, arrays in and out.

What an environment does depends on its seed and its actions alone, not on the others beside it nor on their order.
`skills.env` is the same as an ordinary minigrid environment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl.draws import following_seed
from rl.kernels import kernel, part
from skills.codes import ACTIONS, VIEW
from skills.generate import Work, generate, work
from skills.levels import SIZE, stage_table
from skills.rules import NOTHING, SUCCESS, act, observe, sight_table
from skills.shaping import potentials
from skills.state import (
    DIRECTION,
    LIMIT,
    PAD,
    SEED,
    STEPS,
    VERB,
    Levels,
    State,
    empty_state,
    packed,
    unpacked,
)


class Step(NamedTuple):
    """What a step of N environments gives. With leading axes these are buffers of a rollout.

    Attributes:
        image: uint8 [N, 7, 7, 3] as minigrid's: type, colour, state by column and row of the view.
        direction: 0 right, 1 down, 2 left, 3 up; uint8 [N].
        mission: uint8 [N, 4], see `skills.codes`.
        reward: float32 [N].
        terminated: bool [N].
        truncated: bool [N]; the last step may be both.
        last_image, last_direction: Where an episode has ended and the next one has begun in the same step,
            what was seen last of the old one; elsewhere old content. uint8 [N, 7, 7, 3] and [N].
    """

    image: np.ndarray
    direction: np.ndarray
    mission: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    last_image: np.ndarray
    last_direction: np.ndarray

    @classmethod
    def buffers(cls, *shape: int) -> Step:
        """Returns arrays for steps, for example `buffers(T, N)`; :meth:`at` is one of its steps."""
        view = (VIEW, VIEW, 3)
        return cls(
            np.zeros((*shape, *view), np.uint8), np.zeros(shape, np.uint8), np.zeros((*shape, 4), np.uint8),
            np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool),
            np.zeros((*shape, *view), np.uint8), np.zeros(shape, np.uint8),
        )  # fmt: skip

    def at(self, index: int) -> Step:
        """Views of the arrays at an index of the first axis."""
        return Step(*(each[index] for each in self))


class Engine:
    """N environments.

    Args:
        levels: Name of a stage, of which a seed draws a level; or levels that were made elsewhere
            (`skills.loading`), of which a seed draws one.
        count: N.

    Attributes:
        auto_reset: Whether a step that ends an episode begins the next one, on the level whose seed follows. If not,
            an environment that has ended goes on as minigrid's would, and means nothing until it is reset.

    Raises:
        ValueError: There is no such stage, or there are no levels.
    """

    def __init__(self, levels: str | Levels, count: int, *, auto_reset: bool = True) -> None:
        if isinstance(levels, str):
            self._table, bank = stage_table(levels), empty_state(0, SIZE, SIZE)
            self._size = SIZE, SIZE
        else:
            if not len(levels):
                raise ValueError("no levels to draw from")
            self._table, bank = stage_table("gtg0")[:0], packed(levels)
            self._size = levels.size
        self.auto_reset = auto_reset
        self._stride = self._size[0] + 2 * PAD
        self._state = empty_state(count, *self._size)
        self._source = Source(self._table, bank, work(), sight_table())
        self._own = Step.buffers(count)

    def __len__(self) -> int:
        return len(self._state.info)

    @property
    def seeds(self) -> np.ndarray:
        """Of the present levels, int64 [N]."""
        return self._state.info[:, SEED].copy()

    def reset(
        self, seeds: np.ndarray, which: np.ndarray | None = None, out: Step | None = None
    ) -> Step:
        """Begins episodes.

        Args:
            seeds: Of the levels, int [N], 0 to 2^63 - 1.
            which: The environments that begin, bool [N]; the others only show what they see. Default: all.
            out: Where to write; by default arrays of the engine, which the next call overwrites.
        """
        seeds = np.ascontiguousarray(np.broadcast_to(seeds, len(self)), np.int64)
        if (seeds < 0).any():
            raise ValueError("a seed is a whole number from 0 to 2^63 - 1")
        chosen = np.ones(len(self), bool) if which is None else np.ascontiguousarray(which, bool)
        out = self._own if out is None else out
        _run(self._state, self._source, self._stride, chosen, seeds, _NO_ACTIONS, False, out)
        return out

    def step(self, actions: np.ndarray, out: Step | None = None) -> Step:
        """Acts in every environment.

        Args:
            actions: minigrid's, int64 [N], 0 to 6.
            out: Where to write, for example `buffers.at(t)`; by default arrays of the engine, which the next
                call overwrites.

        Raises:
            ValueError: There is an action that there is not, or not one for each environment.
        """
        actions = np.ascontiguousarray(actions, np.int64)
        if actions.shape != (len(self),) or actions.min() < 0 or actions.max() >= ACTIONS:
            raise ValueError(f"actions: {len(self)} whole numbers from 0 to {ACTIONS - 1}")
        out = self._own if out is None else out
        auto = self.auto_reset
        _run(self._state, self._source, self._stride, _NOBODY, _NO_ACTIONS, actions, auto, out)
        return out

    def potentials(self, out: np.ndarray) -> None:
        """Writes how far keys and locks have come in each environment, float32 [N], see `skills.shaping`."""
        potentials(self._state.cells, self._state.info, out)

    def state(self) -> Levels:
        """Returns a copy of where all environments are."""
        return unpacked(self._state, *self._size)

    def load(
        self, levels: Levels, which: np.ndarray | None = None, out: Step | None = None
    ) -> Step:
        """Puts environments at given moments of given levels, of the engine's size of grid.

        Args:
            levels: One for each environment that is chosen, in order.
            which: These environments, bool [N]. Default: all.
            out: As in :meth:`reset`.

        Raises:
            ValueError: Number or size of the levels is another.
        """
        chosen = np.ones(len(self), bool) if which is None else np.asarray(which, bool)
        if levels.size != self._size or len(levels) != chosen.sum():
            raise ValueError(
                f"{len(levels)} levels of {levels.size}: {chosen.sum()} of {self._size} are needed"
            )
        for mine, theirs in zip(self._state, packed(levels), strict=True):
            mine[chosen] = theirs
        return self.reset(np.zeros(len(self), np.int64), np.zeros(len(self), bool), out)


class Source(NamedTuple):
    """Where levels come from: `table` of stages, or, if it is empty, a bank; and what kernels work with."""

    table: np.ndarray
    bank: State
    work: Work
    sight: np.ndarray


_NOBODY, _NO_ACTIONS = np.zeros(0, bool), np.zeros(0, np.int64)


@part
def _begin(source, seed, cells, inside, info):  # type: ignore[no-untyped-def]
    """Puts an environment at the beginning of the level of a seed."""
    if len(source.table):
        generate(source.table, seed, source.work, cells, inside, info)
        return
    chosen = following_seed(seed) % len(source.bank.info)
    for i in range(len(cells)):
        cells[i], inside[i] = source.bank.cells[chosen, i], source.bank.inside[chosen, i]
    for i in range(len(info)):
        info[i] = source.bank.info[chosen, i]
    info[SEED] = seed


@kernel
def _run(state, source, stride, chosen, seeds, actions, auto, out):  # type: ignore[no-untyped-def]
    """Begins the chosen environments if there are no actions, else steps all; one kernel, to be compiled once."""
    image = out.image.reshape(len(state.info), -1)
    last_image = out.last_image.reshape(len(state.info), -1)
    for n in range(len(state.info)):
        cells, inside, info = state.cells[n], state.inside[n], state.info[n]
        out.reward[n], out.terminated[n], out.truncated[n] = 0, False, False
        if len(actions):
            outcome = act(cells, inside, info, stride, actions[n])
            if outcome == SUCCESS:
                out.reward[n] = 1 - 0.9 * (info[STEPS] / info[LIMIT])
            out.terminated[n], out.truncated[n] = outcome != NOTHING, info[STEPS] >= info[LIMIT]
        ended = out.terminated[n] or out.truncated[n]
        if ended and auto:
            observe(cells, info, stride, source.sight, last_image[n])
            out.last_direction[n] = info[DIRECTION]
        if (ended and auto) or (len(chosen) and chosen[n]):
            seed = following_seed(info[SEED]) if ended else seeds[n]
            _begin(source, seed, cells, inside, info)
        observe(cells, info, stride, source.sight, image[n])
        out.direction[n] = info[DIRECTION]
        for i in range(4):
            out.mission[n, i] = info[VERB + i]
