"""Dark rooms with gymnasium's interface; `darkroom.rooms.batch` steps many of them at once.

The semantics are toy-meta-gym's; deviations are stated with the classes.
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
    """A square room without light: the observation is the agent's cell alone."""

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
    """A room with an invisible goal; the reward is 1 in every step that ends on it, also after staying there.

    Args:
        size: Cells of a side.
        goal: (row, column); None draws a goal once, the same for the same `seed`.
        random_start: Begin in a random cell instead of the centre.
        terminate_on_goal: The goal ends the episode.
        render_mode: None, or "rgb_array": a pixel per cell, goal red, agent green.
        seed: Seed of the drawn goal. (The original draws it from unseeded numbers.)
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
        """Begin an episode; the goal stays."""
        super().reset(seed=seed, options=options)
        self._begin()
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move; the episode is never truncated."""
        self._move(action)
        on_goal = self.cell == self.goal
        return self.cell, float(on_goal), on_goal and self.terminate_on_goal, False, {}

    def render(self) -> np.ndarray | None:
        """Return the room, uint8 [size, size, 3], in the mode rgb_array."""
        return self._draw({self.goal: _RED, self.cell: _GREEN})


class DarkKeyToDoor(_Room):
    """A room with an invisible key and door: reward 1 for the key, once, and for the door, which ends the episode.

    Args:
        size: Cells of a side.
        goal: (door, key), each (row, column); None draws two different cells.
        random_start: Begin in a random cell instead of the centre.
        render_mode: None, or "rgb_array": key yellow, door brown, agent green.
        seed: Seed of the drawn cells. (The original fails to draw them.)
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
            self.door, self.key = map(int, drawn)
        else:
            self.door, self.key = (cell_of(row, column, size) for row, column in goal)
        self.has_key = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begin an episode without the key."""
        super().reset(seed=seed, options=options)
        self._begin()
        self.has_key = False
        return self.cell, {"has_key": False}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move; the episode is never truncated."""
        self._move(action)
        taken = self.cell == self.key and not self.has_key
        self.has_key = self.has_key or taken
        opened = self.cell == self.door and self.has_key
        return self.cell, float(taken) + float(opened), opened, False, {"has_key": self.has_key}

    def render(self) -> np.ndarray | None:
        """Return the room, uint8 [size, size, 3], in the mode rgb_array."""
        return self._draw({self.key: _YELLOW, self.door: _BROWN, self.cell: _GREEN})


class EpisodeLimit(gymnasium.Wrapper[int, int, int, int], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that truncates an episode after `limit` steps and adds the steps so far to `info`, as `time`.

    Args:
        env: Environment.
        limit: Steps of an episode, at least 1.
    """

    def __init__(self, env: gymnasium.Env[int, int], limit: int = 20) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, limit=limit)
        gymnasium.Wrapper.__init__(self, env)
        if limit < 1:
            raise ValueError(f"limit {limit}: an episode has at least one step")
        self.limit, self.time = limit, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begin an episode at time 0."""
        cell, info = self.env.reset(seed=seed, options=options)
        self.time = 0
        return cell, {**info, "time": 0}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Step; as with gymnasium's `TimeLimit`, the last step within the limit is truncated even if it terminates."""
        cell, reward, terminated, truncated, info = self.env.step(action)
        self.time += 1
        truncated = truncated or self.time >= self.limit
        return cell, float(reward), terminated, truncated, {**info, "time": self.time}
