"""The dark rooms with gymnasium's interface; `darkroom.rooms.batch` steps many of them together.

Semantics are those of toy-meta-gym. What differs is said with each class.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from darkroom.rooms.grid import ACTIONS, cell_of, centre, transitions

Cell = tuple[int, int]  # row, column
_WHITE, _RED, _GREEN = (255, 255, 255), (255, 0, 0), (0, 255, 0)
_YELLOW, _BROWN = (255, 255, 0), (128, 64, 48)


class _Room(gymnasium.Env[int, int]):
    """A square room without light: the observation is the agent's cell, and nothing else is seen."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, size: int, random_start: bool, render_mode: str | None) -> None:
        if size < 2:
            raise ValueError(f"size {size}: a room has at least 2 x 2 cells")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r}: None or rgb_array")
        self.size, self.random_start, self.render_mode = size, random_start, render_mode
        self.observation_space = spaces.Discrete(size * size)
        self.action_space = spaces.Discrete(ACTIONS)
        self.cell = centre(size)

    def _begin(self) -> None:
        cells = self.size * self.size
        self.cell = int(self.np_random.integers(cells)) if self.random_start else centre(self.size)

    def _move(self, action: int) -> None:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r}: an integer from 0 to {ACTIONS - 1}")
        self.cell = int(transitions(self.size)[self.cell, action])

    def _draw(self, colours: dict[int, tuple[int, int, int]]) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        image = np.full((self.size * self.size, 3), _WHITE, np.uint8)
        for cell, colour in colours.items():
            image[cell] = colour
        return image.reshape(self.size, self.size, 3)


class DarkRoom(_Room):
    """One goal, not seen; the reward is 1 in each step that ends on it, staying there included.

    Args:
        size: Cells of a side.
        goal: (row, column); None draws one, the same for the same `seed` and never drawn again.
        random_start: Begin anywhere instead of in the centre.
        terminate_on_goal: The goal ends the episode.
        render_mode: None, or "rgb_array": one pixel a cell, goal red, agent green.
        seed: Of the drawn goal. (The original draws it from unseeded numbers.)
    """

    def __init__(
        self,
        size: int = 9,
        goal: Cell | None = None,
        random_start: bool = False,
        terminate_on_goal: bool = False,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(size, random_start, render_mode)
        self.terminate_on_goal = terminate_on_goal
        if goal is None:
            self.goal = int(np.random.default_rng(seed).integers(size * size))
        else:
            self.goal = cell_of(*goal, size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begins an episode; the goal stays where it is."""
        super().reset(seed=seed, options=options)
        self._begin()
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Moves; never truncates."""
        self._move(action)
        found = self.cell == self.goal
        return self.cell, float(found), found and self.terminate_on_goal, False, {}

    def render(self) -> np.ndarray | None:
        """Returns the room, uint8 [size, size, 3], in the mode rgb_array."""
        return self._draw({self.goal: _RED, self.cell: _GREEN})


class DarkKeyToDoor(_Room):
    """A key, then a door, neither seen: 1 for the key once, 1 for the door with it, which ends the episode.

    Args:
        size: Cells of a side.
        goal: (door, key), each (row, column); None draws two different cells.
        random_start: Begin anywhere instead of in the centre.
        render_mode: None, or "rgb_array": key yellow, door brown, agent green.
        seed: Of what is drawn. (The original fails where it draws them.)
    """

    def __init__(
        self,
        size: int = 9,
        goal: tuple[Cell, Cell] | None = None,
        random_start: bool = False,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(size, random_start, render_mode)
        if goal is None:
            drawn = np.random.default_rng(seed).choice(size * size, 2, replace=False)
            self.door, self.key = (int(each) for each in drawn)
        else:
            self.door, self.key = (cell_of(*each, size) for each in goal)
        self.has_key = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begins an episode without the key."""
        super().reset(seed=seed, options=options)
        self._begin()
        self.has_key = False
        return self.cell, {"has_key": False}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Moves; never truncates."""
        self._move(action)
        taken = self.cell == self.key and not self.has_key
        self.has_key = self.has_key or taken
        opened = self.cell == self.door and self.has_key
        return self.cell, float(taken) + float(opened), opened, False, {"has_key": self.has_key}

    def render(self) -> np.ndarray | None:
        """Returns the room, uint8 [size, size, 3], in the mode rgb_array."""
        return self._draw({self.key: _YELLOW, self.door: _BROWN, self.cell: _GREEN})


class EpisodeLimit(gymnasium.Wrapper[int, int, int, int]):
    """Truncates an episode after so many steps and tells in `info` how many there have been: `time`.

    Args:
        env: What is limited.
        limit: Steps of an episode, at least 1.
    """

    def __init__(self, env: gymnasium.Env[int, int], limit: int = 20) -> None:
        super().__init__(env)
        if limit < 1:
            raise ValueError(f"limit {limit}: an episode has at least one step")
        self.limit, self.time = limit, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begins an episode at time 0."""
        cell, info = self.env.reset(seed=seed, options=options)
        self.time = 0
        return cell, {**info, "time": 0}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Steps; as with gymnasium's `TimeLimit`, the last step within the limit is truncated in any case."""
        cell, reward, terminated, truncated, info = self.env.step(action)
        self.time += 1
        truncated = truncated or self.time >= self.limit
        return cell, float(reward), terminated, truncated, {**info, "time": self.time}
