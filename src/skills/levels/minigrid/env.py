"""The levels as minigrid environments: for minigrid's wrappers, for pictures, and as the reference of the engine.

Movement and observations are minigrid's own code; missions are verified here, in Python.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import WorldObj
from minigrid.minigrid_env import MiniGridEnv

from skills.levels.codes import (
    BOX,
    COLOUR_SHIFT,
    EMPTY,
    GTG,
    GTO,
    NLM,
    PICKUP,
    PKP,
    STATE_SHIFT,
    TARGET,
    TGL,
    THREE_BITS,
    TOGGLE,
    TOOL,
    TWO_BITS,
    TYPE_MASK,
    mission_code,
    mission_text,
)
from skills.levels.generate import levels, next_seed
from skills.levels.stages import MAX_STEPS, SIZE, STAGES
from skills.levels.state import Levels

SUCCESS, FAILURE = "success", "failure"


class MissionWords(MissionSpace):
    """All missions of `skills.levels.codes`."""

    def __init__(self) -> None:
        super().__init__(mission_func=lambda: "go to the green goal square")

    def contains(self, x: Any) -> bool:
        """Return whether a sentence is a mission."""
        try:
            mission_code(x)
        except (TypeError, ValueError):
            return False
        return True


class SkillsEnv(MiniGridEnv):
    """A stage of `skills.levels.stages`. Observations, actions and rewards are minigrid's.

    `reset(seed=s)` begins the level of the seed s, the same as the engine's; without a seed, the level that follows the
    current one. `reset(options={"level": levels[i : i + 1]})` sets any state of any level of the same size.

    Args:
        stage: Name of a stage.
        more: Arguments of `MiniGridEnv`, such as `render_mode`.

    Attributes:
        mission_code: uint8 [4], see `skills.levels.codes`.
        strict: Whether a wrong pick-up or toggle ends the episode.

    Raises:
        ValueError: Unknown stage, or a level of another size.
    """

    def __init__(self, stage: str = "gtg0", **more: Any) -> None:
        if stage not in STAGES:
            raise ValueError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
        self.stage = stage
        self.mission_code, self.strict = np.zeros(4, np.uint8), True
        self._level: Levels | None = None
        self._given: Levels | None = None
        super().__init__(MissionWords(), width=SIZE, height=SIZE, max_steps=MAX_STEPS, **more)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; see the class."""
        self._given = (options or {}).get("level")
        if self._given is None:
            self._given = levels(
                self.stage, np.array([self._following() if seed is None else seed])
            )
        if self._given.size != (SIZE, SIZE) or len(self._given) != 1:
            raise ValueError(
                f"{len(self._given)} levels of {self._given.size}: one of {SIZE, SIZE} is needed"
            )
        super().reset(seed=seed)
        level, self._level = self._given, self._given
        self.carrying = _object(int(level.carried[0, 0]), int(level.carried[0, 1]))
        self.step_count = int(level.steps[0])
        return self.gen_obs(), {"seed": int(level.seed[0]), "mission_code": self.mission_code}

    def _following(self) -> int:
        if self._level is None:
            return int(self.np_random.integers(2**63 - 1))
        return next_seed(self._level.seed[0])

    def _gen_grid(self, width: int, height: int) -> None:
        level = self._given
        assert level is not None
        self.grid = Grid(width, height)
        self._target_cells = set()
        for y, x in np.ndindex(height, width):
            cell = int(level.cells[0, y, x])
            self.grid.set(x, y, thing := _object(cell, int(level.inside[0, y, x])))
            if thing is not None:
                thing.cur_pos = thing.init_pos = (x, y)
            if cell & TARGET:
                self._target_cells.add((x, y))
        x, y, direction = map(int, level.agent[0])
        self.agent_pos, self.agent_dir = (x, y), direction
        self.mission_code = level.mission[0].copy()
        self.mission, self.strict = mission_text(self.mission_code), bool(level.strict[0])
        self.max_steps = int(level.max_steps[0])

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Make minigrid's step, then verify the mission."""
        x, y = map(int, self.front_pos)
        faced, carried = self.grid.get(x, y), self.carrying
        before = None if faced is None else faced.encode()
        observation, reward, terminated, truncated, info = super().step(action)
        now = self.grid.get(x, y)
        changed = now is not faced or (now is not None and now.encode() != before)
        took = self.carrying if carried is None else None
        verdict = self._verdict(int(action), faced if changed else None, took)
        if verdict is not None:
            terminated, reward = True, self._reward() if verdict == SUCCESS else 0
        return observation, reward, terminated, truncated, info

    def _verdict(self, action: int, changed: WorldObj | None, took: WorldObj | None) -> str | None:
        """Return the mission's verdict on an action that changed or picked up an object."""
        verb = int(self.mission_code[0])
        if verb == GTO:
            x, y = map(int, self.front_pos)
            return SUCCESS if (x, y) in self._target_cells else None
        if verb == GTG:
            return None  # the goal square ends an episode by itself
        if action == PICKUP and took is not None and verb in (PKP, NLM):
            if verb == PKP and took.marks & TARGET:
                return SUCCESS
            return FAILURE if self.strict and not took.marks & TOOL else None
        if action != TOGGLE or changed is None:
            return None
        if verb == TGL and changed.marks & TARGET:
            return SUCCESS if changed.type == "box" or changed.is_open else None
        wrong = BOX if verb in (PKP, NLM) else int(self.mission_code[2])
        return FAILURE if self.strict and changed.encode()[0] == wrong else None


def _object(cell: int, inside: int) -> WorldObj | None:
    """Return the minigrid object of a cell with its marks, or None."""
    if cell & TYPE_MASK in (0, EMPTY):
        return None
    colour, state = cell >> COLOUR_SHIFT & THREE_BITS, cell >> STATE_SHIFT & TWO_BITS
    thing = WorldObj.decode(cell & TYPE_MASK, colour, state)
    thing.marks = cell & (TARGET | TOOL)
    if inside:
        thing.contains = _object(inside, 0)
    return thing
