"""What agents have seen of their levels: their partial views, put together to a map that is remembered.

Nothing else of a level is known here. Where the agent is and looks is: it can be counted from its actions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skills.levels.codes import (
    ACTIONS,
    BALL,
    BOX,
    COLOURS,
    DOOR,
    EMPTY,
    GOAL,
    KEY,
    LOCKED,
    OPEN,
    PICKUP,
    PKP,
    TOGGLE,
    VIEW,
)
from skills.levels.engine import Step

_THINGS = (DOOR, KEY, BALL, BOX, GOAL)
_AHEAD = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])  # by direction: column and row
_COLUMNS, _ROWS = np.divmod(np.arange(VIEW**2), VIEW)
_OWN = VIEW // 2 * VIEW + VIEW - 1  # the agent's cell in a view, which shows what it carries


@dataclass(frozen=True)
class Thing:
    """A thing that was seen.

    Attributes:
        kind, colour, state: As in `skills.levels.codes`.
        distance: Steps without turns to the cell beside it, over what is known to be free; -1: no such way is known.
    """

    kind: int
    colour: int
    state: int
    distance: int


class Scenes:
    """The maps of N environments.

    Args:
        count: N.
        size: Width and height of the grids.
        spoken: Colour of the door of which each mission speaks, int [N]. Until it is seen it is taken for locked.

    Attributes:
        locks: Whether a door of a colour is known to have a lock, bool [N, colours].
    """

    def __init__(
        self, count: int, size: tuple[int, int], spoken: NDArray[Any] | None = None
    ) -> None:
        self._cells = np.zeros((count, size[1], size[0], 3), np.uint8)
        self._view = np.zeros((count, VIEW**2, 3), np.uint8)
        self._agent = np.zeros((count, 3), np.int64)
        self._met: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        self.locks = np.zeros((count, len(COLOURS)), bool)
        self._doors = self.locks.copy()  # seen so far
        if spoken is not None:
            self.locks[np.arange(count), spoken] = True

    def look(self, step: Step, agent: NDArray[np.int32]) -> None:
        """Adds what is seen.

        Args:
            step: Its `image`.
            agent: Column, row, direction; [N, 3].
        """
        self._agent[:] = agent
        self._view[:] = step.image.reshape(len(agent), -1, 3)
        forward = _AHEAD[agent[:, 2]][:, None]
        right = _AHEAD[(agent[:, 2] + 1) % 4][:, None]
        depth, aside = (VIEW - 1 - _ROWS)[:, None], (_COLUMNS - VIEW // 2)[:, None]
        x, y = np.moveaxis(agent[:, None, :2] + forward * depth + right * aside, -1, 0)
        seen = self._view[..., 0] > 0
        seen[:, _OWN] = False
        who = np.broadcast_to(np.arange(len(agent))[:, None], seen.shape)
        self._cells[who[seen], y[seen], x[seen]] = self._view[seen]
        own = self._cells[np.arange(len(agent)), agent[:, 1], agent[:, 0]]
        own[own[:, 0] == 0] = (EMPTY, 0, 0)
        self._cells[np.arange(len(agent)), agent[:, 1], agent[:, 0]] = own
        which, place = np.nonzero(np.isin(self._view[..., 0], _THINGS) & seen)
        for n, kind, colour in zip(which, *self._view[which, place, :2].T, strict=True):
            self._met[n].add((int(kind), int(colour)))
        kinds, colours, states = np.moveaxis(self._view, -1, 0)
        which, place = np.nonzero(kinds == DOOR)
        hues, locked = colours[which, place], states[which, place] == LOCKED
        new = ~self._doors[which, hues]  # a lock that was opened is one all the same
        self.locks[which[new], hues[new]] = locked[new]
        self._doors[which, hues] = True

    def forbidden(self, wanted: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Actions that would end the composite task without reward, as far as is known, bool [N, ACTIONS].

        To open a box; to pick up a thing other than the key of a locked door that was seen or is spoken of.

        Args:
            wanted: Sub-tasks as missions, uint8 [N, 4]; a key that one means to pick up may be picked up.
        """
        kind, colour = self._view[:, _OWN - 1, :2].T
        everyone = np.arange(len(kind))
        asked = (wanted[:, 0] == PKP) & (wanted[:, 1] == colour) & (wanted[:, 2] == kind)
        useful = asked | ((kind == KEY) & self.locks[everyone, colour % len(COLOURS)])
        found = np.zeros((len(kind), ACTIONS), bool)
        found[:, PICKUP] = np.isin(kind, (KEY, BALL, BOX)) & ~useful
        found[:, TOGGLE] = kind == BOX
        return found

    def met(self, n: int) -> int:
        """How many different things (kind and colour) were seen so far."""
        return len(self._met[n])

    def carried(self, n: int) -> tuple[int, int] | None:
        """Kind and colour of what the agent carries."""
        kind, colour, _ = self._view[n, _OWN].tolist()
        return (kind, colour) if kind in _THINGS else None

    def faced(self, n: int) -> tuple[int, int]:
        """Kind and colour of what is in front of the agent."""
        kind, colour, _ = self._view[n, _OWN - 1].tolist()
        return kind, colour

    def door_open(self, n: int, colour: int) -> bool:
        """Whether a door of this colour is known to be open."""
        kinds, colours, states = np.moveaxis(self._cells[n], -1, 0)
        return bool(((kinds == DOOR) & (colours == colour) & (states == OPEN)).any())

    def things(self, n: int) -> list[Thing]:
        """All things that were seen and, as far as known, still lie there, the nearest first."""
        distances = self._distances(n)
        found = []
        for y, x in np.argwhere(np.isin(self._cells[n, ..., 0], _THINGS)):
            beside = [
                distances[y + dy, x + dx] for dx, dy in _AHEAD if _inside(distances, y + dy, x + dx)
            ]
            reached = [int(each) for each in beside if each >= 0]
            found.append(Thing(*self._cells[n, y, x].tolist(), min(reached, default=-1)))
        return sorted(found, key=lambda thing: (thing.distance < 0, thing.distance))

    def _distances(self, n: int) -> NDArray[np.int64]:
        """Steps from the agent to each cell over free cells and open doors that were seen; -1: none known."""
        kinds, _, states = np.moveaxis(self._cells[n], -1, 0)
        free = (kinds == EMPTY) | ((kinds == DOOR) & (states == OPEN))
        distances = np.full(free.shape, -1)
        x, y = self._agent[n, :2].tolist()
        distances[y, x] = 0
        queue = deque([(x, y)])
        while queue:
            x, y = queue.popleft()
            for dx, dy in _AHEAD.tolist():
                beside = y + dy, x + dx
                if _inside(free, *beside) and free[beside] and distances[beside] < 0:
                    distances[beside] = distances[y, x] + 1
                    queue.append((x + dx, y + dy))
        return distances


def _inside(grid: NDArray, y: int, x: int) -> bool:
    return 0 <= y < grid.shape[0] and 0 <= x < grid.shape[1]
