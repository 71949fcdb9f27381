"""Maps of N environments, assembled from the agents' partial views.

The position and direction of the agent are known, since they follow from its actions; nothing else of the level is.
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
    DROP,
    EMPTY,
    FORWARD,
    GOAL,
    KEY,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    PKP,
    RIGHT,
    TOGGLE,
    VIEW,
    WALL,
)
from skills.levels.engine import Step

_THINGS = (DOOR, KEY, BALL, BOX, GOAL)
_AHEAD = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])  # by direction: column and row
# The eight neighbours in a circle: column and row.
_RING = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
_COLUMNS, _ROWS = np.divmod(np.arange(VIEW**2), VIEW)
_OWN = VIEW // 2 * VIEW + VIEW - 1  # the agent's cell in a view, which shows the carried object


@dataclass(frozen=True)
class Thing:
    """An observed object.

    Attributes:
        kind, colour, state: As in `skills.levels.codes`.
        distance: Steps, turns excluded, to a cell next to it over cells known to be free; -1: no known path.
    """

    kind: int
    colour: int
    state: int
    distance: int


class Scenes:
    """Maps of N environments.

    Args:
        count: Number N.
        size: Width and height of the grids.
        mission_doors: Colour of the door in every mission, int [N]. Until it is observed it counts as locked.

    Attributes:
        locks: Whether the door of a colour is known to have a lock, bool [N, colours].
    """

    def __init__(
        self, count: int, size: tuple[int, int], mission_doors: NDArray[Any] | None = None
    ) -> None:
        self._cells = np.zeros((count, size[1], size[0], 3), np.uint8)
        self._view = np.zeros((count, VIEW**2, 3), np.uint8)
        self._agent = np.zeros((count, 3), np.int64)
        self._observed: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        self.locks = np.zeros((count, len(COLOURS)), bool)
        self._doors = self.locks.copy()  # observed so far
        if mission_doors is not None:
            self.locks[np.arange(count), mission_doors] = True

    def look(self, step: Step, agent: NDArray[np.int32]) -> None:
        """Add an observation.

        Args:
            step: The observation; its `image` is used.
            agent: Column, row, direction; [N, 3].
        """
        self._agent[:] = agent
        self._view[:] = step.image.reshape(len(agent), -1, 3)
        forward = _AHEAD[agent[:, 2]][:, None]
        right = _AHEAD[(agent[:, 2] + 1) % 4][:, None]
        depth, aside = (VIEW - 1 - _ROWS)[:, None], (_COLUMNS - VIEW // 2)[:, None]
        x, y = np.moveaxis(agent[:, None, :2] + forward * depth + right * aside, -1, 0)
        visible = self._view[..., 0] > 0
        visible[:, _OWN] = False
        env = np.broadcast_to(np.arange(len(agent))[:, None], visible.shape)
        self._cells[env[visible], y[visible], x[visible]] = self._view[visible]
        own = self._cells[np.arange(len(agent)), agent[:, 1], agent[:, 0]]
        own[own[:, 0] == 0] = (EMPTY, 0, 0)
        self._cells[np.arange(len(agent)), agent[:, 1], agent[:, 0]] = own
        which, place = np.nonzero(np.isin(self._view[..., 0], _THINGS) & visible)
        for n, kind, colour in zip(which, *self._view[which, place, :2].T, strict=True):
            self._observed[n].add((int(kind), int(colour)))
        kinds, colours, states = np.moveaxis(self._view, -1, 0)
        which, place = np.nonzero(kinds == DOOR)
        hues, locked = colours[which, place], states[which, place] == LOCKED
        new = ~self._doors[which, hues]  # an opened lock remains a lock
        self.locks[which[new], hues[new]] = locked[new]
        self._doors[which, hues] = True

    def forbidden(self, wanted: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the actions known to end the composite task without reward, bool [N, ACTIONS].

        These are opening a box, and picking up anything but the key of a locked door that was observed or is in the
        mission.

        Args:
            wanted: Sub-tasks as missions, uint8 [N, 4]; a key that is to be picked up is allowed.
        """
        kind, colour = self._view[:, _OWN - 1, :2].T
        everyone = np.arange(len(kind))
        asked = (wanted[:, 0] == PKP) & (wanted[:, 1] == colour) & (wanted[:, 2] == kind)
        useful = asked | ((kind == KEY) & self.locks[everyone, colour % len(COLOURS)])
        actions = np.zeros((len(kind), ACTIONS), bool)
        actions[:, PICKUP] = np.isin(kind, (KEY, BALL, BOX)) & ~useful
        actions[:, TOGGLE] = kind == BOX
        return actions

    def before_doorway(self) -> NDArray[np.bool_]:
        """Return whether the cell in front of each agent is a doorway, or next to one, by what is observed, bool [N].

        A doorway is a door, or a cell between two walls.
        """
        kinds = np.pad(self._cells[..., 0], ((0, 0), (2, 2), (2, 2)))
        wall = kinds == WALL
        between = (_shifted(wall, 0, 1) & _shifted(wall, 0, -1)) | (
            _shifted(wall, 1, 0) & _shifted(wall, -1, 0)
        )
        doorway = (kinds == DOOR) | (between & ~wall)
        near = doorway.copy()
        for right, down in _AHEAD.tolist():
            near |= _shifted(doorway, down, right)
        x, y = (self._agent[:, :2] + _AHEAD[self._agent[:, 2]]).T
        return near[np.arange(len(near)), y + 2, x + 2]

    def action_to_lay_down(self, n: int) -> int | None:
        """Return the first action of a shortest way to lay the carried object down where it cuts nothing off.

        The way is over cells known to be free; None where none is known.
        """
        resting, free = self._resting_cells(n), self._free_cells(n)
        start = tuple(self._agent[n].tolist())
        queue, first = deque([start]), {start: -1}
        while queue:
            x, y, direction = queue.popleft()
            right, down = _AHEAD[direction].tolist()
            ahead = y + down, x + right
            is_inside = _inside(free, *ahead)
            if is_inside and resting[ahead]:
                action = first[x, y, direction]
                return DROP if action < 0 else action
            poses = {LEFT: (x, y, (direction - 1) % 4), RIGHT: (x, y, (direction + 1) % 4)}
            if is_inside and free[ahead]:
                poses[FORWARD] = (x + right, y + down, direction)
            for action, pose in poses.items():
                if pose not in first:
                    first[pose] = first[x, y, direction] if first[x, y, direction] >= 0 else action
                    queue.append(pose)
        return None

    def _resting_cells(self, n: int) -> NDArray[np.bool_]:
        """Return the cells, known to be empty, on which an object would cut nothing off, bool [height, width].

        Their free neighbours stay connected around them: the 4-connectivity number is at most 1 (Yokoi, Toriwaki and
        Fukumura 1975). And no object has them as its only free neighbour. Unknown cells count as free, and doors.
        """
        kinds = np.pad(self._cells[n, ..., 0], 2, constant_values=WALL)
        objects = np.isin(kinds, (KEY, BALL, BOX))
        free = ~objects & (kinds != WALL)
        ring = [_shifted(free, down, right) for right, down in _RING]
        number = sum(
            ring[k].astype(int) - (ring[k] & ring[k + 1] & ring[(k + 2) % 8]) for k in (0, 2, 4, 6)
        )
        one_way = objects & (np.sum(ring[::2], axis=0) < 2)
        only_way = np.any([_shifted(one_way, down, right) for right, down in _RING[::2]], axis=0)
        return ((kinds == EMPTY) & (number < 2) & ~only_way)[2:-2, 2:-2]

    def observed(self, n: int) -> int:
        """Return the number of different objects (kind and colour) observed so far."""
        return len(self._observed[n])

    def carried(self, n: int) -> tuple[int, int] | None:
        """Return kind and colour of the carried object."""
        kind, colour, _ = self._view[n, _OWN].tolist()
        return (kind, colour) if kind in _THINGS else None

    def faced(self, n: int) -> tuple[int, int]:
        """Return kind and colour of the object in front of the agent."""
        kind, colour, _ = self._view[n, _OWN - 1].tolist()
        return kind, colour

    def door_open(self, n: int, colour: int) -> bool:
        """Return whether a door of this colour is known to be open."""
        kinds, colours, states = np.moveaxis(self._cells[n], -1, 0)
        return bool(((kinds == DOOR) & (colours == colour) & (states == OPEN)).any())

    def things(self, n: int) -> list[Thing]:
        """Return the observed objects that are still there as far as known, nearest first."""
        distances = self._distances(n)
        things = []
        for y, x in np.argwhere(np.isin(self._cells[n, ..., 0], _THINGS)):
            neighbours = [
                distances[y + dy, x + dx] for dx, dy in _AHEAD if _inside(distances, y + dy, x + dx)
            ]
            reached = [int(distance) for distance in neighbours if distance >= 0]
            things.append(Thing(*self._cells[n, y, x].tolist(), min(reached, default=-1)))
        return sorted(things, key=lambda thing: (thing.distance < 0, thing.distance))

    def _free_cells(self, n: int) -> NDArray[np.bool_]:
        """Return the empty cells and open doors that were observed, bool [height, width]."""
        kinds, _, states = np.moveaxis(self._cells[n], -1, 0)
        return (kinds == EMPTY) | ((kinds == DOOR) & (states == OPEN))

    def _distances(self, n: int) -> NDArray[np.int64]:
        """Return the steps from the agent to all cells over observed free cells and open doors; -1: no known path."""
        free = self._free_cells(n)
        distances = np.full(free.shape, -1)
        x, y = self._agent[n, :2].tolist()
        distances[y, x] = 0
        queue = deque([(x, y)])
        while queue:
            x, y = queue.popleft()
            for dx, dy in _AHEAD.tolist():
                cell = y + dy, x + dx
                if _inside(free, *cell) and free[cell] and distances[cell] < 0:
                    distances[cell] = distances[y, x] + 1
                    queue.append((x + dx, y + dy))
        return distances


def _shifted(grids: NDArray[np.bool_], down: int, right: int) -> NDArray[np.bool_]:
    """Return what each cell has at a distance of rows and columns, […, height, width]; past the edge the other side."""
    return np.roll(grids, (-down, -right), (-2, -1))


def _inside(grid: NDArray, y: int, x: int) -> bool:
    return 0 <= y < grid.shape[0] and 0 <= x < grid.shape[1]
