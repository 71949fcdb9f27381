"""FrozenLake: from a random start to a random goal over cells that may be holes, on ice that may be slippery.

Maps and rules are those of gymnasium's FrozenLake-v1, where start and goal are in two corners.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.draws import begin, draw, switch_stream
from rl.kernels import kernel, part
from textgames.games.interface import (
    FROZENLAKE,
    INVALID_PENALTY,
    NONE,
    Outcome,
    check_actions,
    grids,
)

FROZEN, HOLE, GOAL = 0, 1, 2
"""Cells."""
SYMBOLS = "_OGPX√"  # the last three with the player
SLIPS = 3
_WORD = 1 << 32


class FrozenLake:
    """See `interface.Game`.

    Args:
        size: Side of the grid.
        frozen: Probability that a cell other than start and goal is no hole.
        slippery: A step goes in the intended direction or to either side, with probability 1/3 each.
        max_steps: Actions after which a game is over.

    Attributes:
        cells: The maps, uint8 [B, size, size].
        player: Cell of the player, counted by rows, int64 [B].
    """

    name, actions = FROZENLAKE, ("Left", "Down", "Right", "Up")

    def __init__(
        self, size: int = 4, frozen: float = 0.8, slippery: bool = True, max_steps: int = 100
    ) -> None:
        self.size, self.frozen, self.slippery = size, frozen, slippery
        self.max_steps = max_steps
        self.reset(np.zeros(0, np.int64))

    def reset(self, seeds: NDArray[np.int64], replays: NDArray[np.int64] | None = None) -> None:
        """See `interface.Game`. Seed and replay index determine the slip of the k-th valid action, whatever it is and
        wherever the player is."""
        self.cells, self.player, self._rng = generate(seeds, self.size, self.frozen)
        if replays is not None:
            _select_streams(self._rng, np.asarray(replays, np.int64))
        self.success, self.done = np.zeros(len(seeds), bool), np.zeros(len(seeds), bool)
        self.steps = np.zeros(len(seeds), np.int64)

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """See `interface.Game`. The reward is 1 at the goal, else 0."""
        check_actions(self, actions, which)
        actions, which = np.asarray(actions, np.int64), np.asarray(which, np.int64)
        before = self.player[which]
        _step(self.cells, self.player, self._rng, actions, which, self.slippery)
        reached = self.cells.reshape(len(self.cells), -1)[which, self.player[which]]
        self.steps[which] += 1
        self.success[which] = reached == GOAL
        self.done[which] = (reached != FROZEN) | (self.steps[which] >= self.max_steps)
        penalty = np.where(actions == NONE, np.float32(INVALID_PENALTY), np.float32(0))
        success = self.success[which]
        return Outcome(
            success.astype(np.float32),
            penalty,
            self.done[which],
            success,
            self.player[which] != before,
        )

    def slips(self, which: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return the random states of the slips to come, uint64 [n, 1]; None without slips."""
        return self._rng[which] if self.slippery else None

    def render(self, which: NDArray[np.int64]) -> list[str]:
        """See `interface.Game`; `_` frozen, `O` hole, `G` goal, `P` player, `X` player in a hole, `√` on the goal."""
        shown = self.cells[which]
        shown.reshape(len(shown), -1)[np.arange(len(shown)), self.player[which]] += 3
        return grids(shown, SYMBOLS)


def generate(
    seeds: NDArray[np.int64], size: int = 4, frozen: float = 0.8
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint64]]:
    """Return the levels of seeds.

    Map, start and goal are drawn again until the goal is reachable.

    Returns:
        Maps, uint8 [n, size, size]; start cells of the players, int64 [n]; random states of the slips, uint64 [n, 1].
    """
    cells = np.zeros((len(seeds), size, size), np.uint8)
    player, rng = np.zeros(len(seeds), np.int64), np.zeros((len(seeds), 1), np.uint64)
    _generate(np.asarray(seeds, np.int64), frozen, cells, player, rng)
    return cells, player, rng


@part
def moved(cell, action, size):
    """Return the cell to which an action, 1 to 4, leads; the same cell at the edge."""
    y, x = cell // size, cell % size
    y += (action == 2) - (action == 4)
    x += (action == 3) - (action == 1)
    return min(max(y, 0), size - 1) * size + min(max(x, 0), size - 1)


@part
def slipped(action, slip):
    """Return the direction of an action on ice: slip 1 keeps it, 0 and 2 turn it to either side."""
    return 1 + (action + slip + 2) % 4


@kernel
def _select_streams(rng, replays):
    for n in range(len(replays)):
        switch_stream(rng[n], replays[n])


@kernel
def _step(cells, player, rng, actions, which, slippery):
    size = cells.shape[1]
    for n in range(len(which)):
        if actions[n] != NONE:
            b = which[n]
            slip = draw(rng[b], SLIPS) if slippery else 1
            player[b] = moved(player[b], slipped(actions[n], slip), size)


@kernel
def _generate(seeds, frozen, cells, player, rng):
    """Fill the arrays."""
    size, area = cells.shape[1], cells.shape[1] ** 2
    reached, stack = np.empty(area, np.bool_), np.empty(area, np.int64)
    for n in range(len(seeds)):
        begin(rng[n], seeds[n])
        grid = cells[n].reshape(-1)
        while True:  # ends even without ice: start and goal may be neighbours
            for cell in range(area):
                grid[cell] = FROZEN if draw(rng[n], _WORD) < frozen * _WORD else HOLE
            start, goal = draw(rng[n], area), draw(rng[n], area - 1)
            goal += goal >= start
            grid[start], grid[goal], player[n] = FROZEN, GOAL, start
            if _reaches(grid, size, start, goal, reached, stack):
                break


@part
def _reaches(grid, size, start, goal, reached, stack):
    """Return whether the goal is reachable over cells that are no holes."""
    reached[:] = False
    reached[start], stack[0], count = True, start, 1
    while count > 0:
        count -= 1
        cell = stack[count]
        for action in range(1, 5):
            to = moved(cell, action, size)
            if not reached[to] and grid[to] != HOLE:
                reached[to], stack[count] = True, to
                count += 1
    return reached[goal]
