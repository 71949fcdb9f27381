"""Levels of minigrid's and BabyAI's environments for the engine.

BabyAI itself generates the levels; the objects that a mission means, location words included, are those of its verifier
and get the mark TARGET. An agent trained on them in the engine is tested in BabyAI.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium
import minigrid
from minigrid.envs.babyai.core import verifier
from minigrid.minigrid_env import MiniGridEnv

from skills.levels.codes import (
    ANY_COLOUR,
    ANY_TYPE,
    COLOURS,
    EMPTY,
    FIXED,
    GOAL,
    GREEN,
    GTG,
    GTO,
    PKP,
    PLACES,
    TARGET,
    TGL,
    cell,
    put_code,
)
from skills.levels.minigrid.env import SkillsEnv
from skills.levels.state import Levels

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj

_VERBS = {"GoToInstr": GTO, "PickupInstr": PKP, "OpenInstr": TGL}


def from_env(env: gymnasium.Env, seed: int = 0) -> Levels:
    """Return the state of a minigrid environment, as one level.

    Args:
        env: After a reset: this project's environment, BabyAI's with a mission of one verb (to go to, pick up or open
            an object, or to put one next to another), or MiniGrid's that only goal and lava end, without a view
            through walls.
        seed: Seed of the level.

    Raises:
        ValueError: Its mission or objects are not supported.
    """
    source = env.unwrapped
    if not isinstance(source, MiniGridEnv):
        raise ValueError(f"{source}: not a minigrid environment")
    mission, marks, strict = _mission(source)
    if source.see_through_walls:
        raise ValueError(f"{type(source).__name__}: its agent sees through walls")
    width, height = source.width, source.height
    cells, inside = np.full((2, 1, height, width), EMPTY, np.uint16)
    inside[:] = 0
    for y, x in np.ndindex(height, width):
        if (thing := source.grid.get(x, y)) is not None:
            cells[0, y, x], inside[0, y, x] = _cell(thing, marks)
    carried = _cell(source.carrying, marks) if source.carrying else (0, 0)
    return Levels(
        cells=cells,
        inside=inside,
        agent=np.array([[*source.agent_pos, source.agent_dir]], np.int32),
        carried=np.array([carried], np.uint16),
        mission=mission[None],
        strict=np.array([strict]),
        steps=np.array([source.step_count], np.int32),
        max_steps=np.array([source.max_steps], np.int32),
        seed=np.array([seed], np.int64),
    )


def bank(env_id: str, seeds: np.ndarray | range, **arguments: Any) -> Levels:
    """Return the initial levels of a registered gymnasium environment, one per seed.

    Args:
        env_id: For example "BabyAI-GoToLocal-v0".
        seeds: Seeds of its resets.
        arguments: Arguments of the environment.

    Raises:
        ValueError: See :func:`from_env`.
    """
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    initial = []
    for seed in seeds:
        begin(env, int(seed))
        initial.append(from_env(env, int(seed)))
    env.close()
    return Levels.join(initial)


def begin(env: gymnasium.Env, seed: int | None) -> dict:
    """Begin an episode and return the observation, without BabyAI's printed messages about rejected levels."""
    with contextlib.redirect_stdout(io.StringIO()):
        return env.reset(seed=seed)[0]


def _mission(env: MiniGridEnv) -> tuple[np.ndarray, dict[int, int], bool]:
    """Return the mission's code, the marks of its objects by their ids, and whether the rules are strict."""
    if isinstance(env, SkillsEnv):
        return env.mission_code, {}, env.strict
    instruction = getattr(env, "instrs", None)
    if instruction is None:
        if type(env).step is not MiniGridEnv.step:
            raise ValueError(
                f"{type(env).__name__}: it has its own rules for the end of an episode"
            )
        return np.array((GTG, GREEN, GOAL, 0), np.uint8), {}, False
    if getattr(instruction, "strict", False) or verifier.use_done_actions:
        raise ValueError(f"{env.mission!r}: BabyAI's strict verifier and its done actions")
    if env.carrying is not None and env.step_count == 0:
        raise ValueError(
            f"{env.mission!r}: an object in the hand, which BabyAI's first observation does not show"
        )
    if isinstance(instruction, verifier.PutNextInstr):
        moved, fixed = instruction.desc_move, instruction.desc_fixed
        marks = {id(thing): FIXED for thing in fixed.obj_set}
        marks |= {id(thing): TARGET for thing in moved.obj_set}
        return put_code(_numbers(moved), _numbers(fixed)), marks, False
    name = type(instruction).__name__
    if name not in _VERBS:
        raise ValueError(f"{env.mission!r}: only missions with one verb")
    code = (_VERBS[name], *_numbers(instruction.desc))
    return (
        np.array(code, np.uint8),
        {id(thing): TARGET for thing in instruction.desc.obj_set},
        False,
    )


def _numbers(described: verifier.ObjDesc) -> tuple[int, int, int]:
    """Return colour, type and place of an object of a mission."""
    return (
        COLOURS.index(described.color) if described.color else ANY_COLOUR,
        minigrid.core.constants.OBJECT_TO_IDX[described.type] if described.type else ANY_TYPE,
        PLACES.index(described.loc or ""),
    )


def _cell(thing: WorldObj, marks: dict[int, int]) -> tuple[int, int]:
    """Return the codes of an object and its content."""
    inside = 0
    if thing.contains is not None:
        inside, deeper = _cell(thing.contains, marks)
        if deeper:
            raise ValueError("a box in a box that holds something")
    return cell(*thing.encode(), getattr(thing, "marks", 0) | marks.get(id(thing), 0)), inside
