"""Many environments in one compiled call: minigrid's rules on arrays.

An environment depends on its seed and its actions alone, not on the other environments or their order.
`skills.levels.minigrid.env` has the same levels as minigrid environments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl.draws import following_seed
from rl.kernels import kernel, part
from skills.levels.codes import ACTIONS, VIEW
from skills.levels.content import NOTHING as NO_LEVELS
from skills.levels.content import is_in, level_key
from skills.levels.generate import Work, generate, work
from skills.levels.rules import NOTHING, SUCCESS, act, observe, sight_table
from skills.levels.shaping import potentials
from skills.levels.stages import SIZE, stage_table
from skills.levels.state import (
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
    """Result of a step of N environments; with leading axes, buffers of a rollout.

    Attributes:
        image: minigrid's view: type, colour and state by column and row, uint8 [N, 7, 7, 3].
        direction: 0 right, 1 down, 2 left, 3 up; uint8 [N].
        mission: uint8 [N, 4], see `skills.levels.codes`.
        reward: float32 [N].
        terminated: bool [N].
        truncated: bool [N]; the last step may be both.
        last_image, last_direction: Last observation of an episode that ended in this step, when the next one began in
            the same step; elsewhere old content. uint8 [N, 7, 7, 3] and [N].
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
        """Return arrays for steps, such as `buffers(T, N)`, whose steps are `at(t)`."""
        view = (VIEW, VIEW, 3)
        return cls(
            np.zeros((*shape, *view), np.uint8), np.zeros(shape, np.uint8), np.zeros((*shape, 4), np.uint8),
            np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool),
            np.zeros((*shape, *view), np.uint8), np.zeros(shape, np.uint8),
        )  # fmt: skip

    def at(self, index: int) -> Step:
        """Return views of the arrays at an index of the first axis."""
        return Step(*(array[index] for array in self))


class Engine:
    """N environments.

    Args:
        levels: Name of a stage, whose levels are generated from seeds; or other levels
            (`skills.levels.minigrid.babyai`), from which seeds draw.
        count: Number of environments N.
        left_out: Table of levels that a stage's environments never begin, see `skills.levels.content.table_of`; the
            following seed's level takes the place of one. Without effect on other levels.

    Attributes:
        auto_reset: Whether a step that ends an episode begins the next one, on the level with the following seed. If
            not, an environment continues after its end as minigrid's would, and has to be reset.

    Raises:
        ValueError: Unknown stage, or no levels.
    """

    def __init__(
        self,
        levels: str | Levels,
        count: int,
        *,
        auto_reset: bool = True,
        left_out: np.ndarray = NO_LEVELS,
    ) -> None:
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
        self._source = Source(self._table, bank, work(), sight_table(), left_out)
        self._own = Step.buffers(count)

    def __len__(self) -> int:
        return len(self._state.info)

    @property
    def seeds(self) -> np.ndarray:
        """Seeds of the current levels, int64 [N]."""
        return self._state.info[:, SEED].copy()

    def reset(
        self, seeds: np.ndarray, which: np.ndarray | None = None, out: Step | None = None
    ) -> Step:
        """Begin episodes.

        Args:
            seeds: Seeds of the levels, int [N], 0 to 2^63 - 1.
            which: Mask of the environments that begin, bool [N]; others only return their observation. Default: all.
            out: Arrays to write; by default arrays of the engine, which the next call overwrites.
        """
        seeds = np.ascontiguousarray(np.broadcast_to(seeds, len(self)), np.int64)
        if (seeds < 0).any():
            raise ValueError("a seed is an integer from 0 to 2^63 - 1")
        chosen = np.ones(len(self), bool) if which is None else np.ascontiguousarray(which, bool)
        out = self._own if out is None else out
        _run(self._state, self._source, self._stride, chosen, seeds, _NO_ACTIONS, False, out)
        return out

    def step(self, actions: np.ndarray, out: Step | None = None) -> Step:
        """Act in every environment.

        Args:
            actions: minigrid's, int64 [N], 0 to 6.
            out: Arrays to write, such as `buffers.at(t)`; by default arrays of the engine, which the next call
                overwrites.

        Raises:
            ValueError: Wrong number of actions, or an action out of range.
        """
        actions = np.ascontiguousarray(actions, np.int64)
        if actions.shape != (len(self),) or actions.min() < 0 or actions.max() >= ACTIONS:
            raise ValueError(f"actions: {len(self)} integers from 0 to {ACTIONS - 1}")
        out = self._own if out is None else out
        auto = self.auto_reset
        _run(self._state, self._source, self._stride, _NOBODY, _NO_ACTIONS, actions, auto, out)
        return out

    def potentials(self, out: np.ndarray) -> None:
        """Write the potential of keys and locks, float32 [N], see `skills.levels.shaping`."""
        potentials(self._state.cells, self._state.info, out)

    def state(self) -> Levels:
        """Return a copy of the states of all environments."""
        return unpacked(self._state, *self._size)

    def load(
        self, levels: Levels, which: np.ndarray | None = None, out: Step | None = None
    ) -> Step:
        """Set the states of environments.

        Args:
            levels: States of the selected environments, in order.
            which: Mask of these environments, bool [N]. Default: all.
            out: See :meth:`reset`.

        Raises:
            ValueError: Number or grid size of the levels is wrong.
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
    """Source of levels: the `table` of stages without the levels `left_out`, or the `bank` if the table is empty.

    `work` and `sight` are the workspace of kernels.
    """

    table: np.ndarray
    bank: State
    work: Work
    sight: np.ndarray
    left_out: np.ndarray


_NOBODY, _NO_ACTIONS = np.zeros(0, bool), np.zeros(0, np.int64)


@part
def _begin(source, seed, cells, inside, info, stride):
    """Begin the level of a seed in one environment."""
    if len(source.table):
        generate(source.table, seed, source.work, cells, inside, info)
        while len(source.left_out) and is_in(source.left_out, level_key(cells, info, stride)):
            seed = following_seed(seed)
            generate(source.table, seed, source.work, cells, inside, info)
        return
    chosen = following_seed(seed) % len(source.bank.info)
    for i in range(len(cells)):
        cells[i], inside[i] = source.bank.cells[chosen, i], source.bank.inside[chosen, i]
    for i in range(len(info)):
        info[i] = source.bank.info[chosen, i]
    info[SEED] = seed


@kernel
def _run(state, source, stride, chosen, seeds, actions, auto, out):
    """Begin the chosen environments if there are no actions, else step all; one kernel saves compilation."""
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
            _begin(source, seed, cells, inside, info, stride)
        observe(cells, info, stride, source.sight, image[n])
        out.direction[n] = info[DIRECTION]
        for i in range(4):
            out.mission[n, i] = info[VERB + i]
