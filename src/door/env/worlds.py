"""Procedural doors: the parameters of a world and how they are drawn.

Ranges are those of the source (DoorGym's world generator) if they have a meaning without its meshes; the fields of
``World`` name them. ``door.env.mujoco_models`` builds the MuJoCo model.

Coordinates: x points from the door to the robot, z up; the closed door is in the plane x = 0.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from door.env.tasks import Task

WIDTH = 1.0  # m, fixed in the source
KNOB_HEIGHT = 1.0  # m, fixed in the source
DENSITY = 300.0  # kg/m^3 (source: mass = h w t 300)
HANDLE_MASS = 1.0  # kg (source)
DECISION = 0.08  # s: four env steps of 0.02 s (source: frame_skip 20, step_skip 4)


@dataclass(frozen=True)
class World:
    """One door, drawn by ``sample_world``; ranges in brackets are the source's, uniform.

    Attributes:
        task: Kind of door.
        height: Door height, m [2.0, 2.5].
        thickness: Door thickness, m [0.020, 0.030].
        door_damping: Nm s/rad [1, 2].
        door_stiffness: Nm/rad [0.10, 0.20].
        handle_damping: Nm s/rad [1, 2].
        handle_stiffness: Nm/rad [1.0, 1.5].
        handle_limit: rad [75, 80 degrees].
        friction: Sliding [0.5, 1.0], torsional and rolling [0.001, 0.005] friction of the handle
            [1].
        robot_damping: Factor on the robot's joint dampings [0.9, 1.1] (source: 0.09-0.11).
        shift: Where the door stands relative to the robot, (y, z), m (source: knob target, see
            ``sample_world``).
        reach: Length of the lever, half-height of the pull bar or half-width of the knob, m.
        grip: Radius of the part to grip, m.
        standoff: Distance of the handle's axis from the door's face, m.
        look: Seed of colours and lights; no effect on the physics.
    """

    task: Task
    height: float
    thickness: float
    door_damping: float
    door_stiffness: float
    handle_damping: float
    handle_stiffness: float
    handle_limit: float
    friction: tuple[float, float, float]
    robot_damping: float
    shift: tuple[float, float]
    reach: float
    grip: float
    standoff: float
    look: int


@dataclass(frozen=True)
class Settings:
    """Settings of model and simulation.

    Attributes:
        timestep: Physics step, s; divides DECISION.
        contact_time: Time constant of contacts (solref), s; at least twice the timestep.
        base: Position of the robot's base with all joints at zero, m.
        retreat: How far the base can move toward the door, m.
        visual: Add lights, colours and decorative parts, which do not affect the physics.
    """

    timestep: float = 0.004
    contact_time: float = 0.008
    base: tuple[float, float, float] = (0.66, 0.0, 1.1)
    retreat: float = 0.65
    visual: bool = False


STARTS: dict[str, tuple[tuple[float, float, float], float]] = {
    # name: base of the robot, retreat. "original" is the source's 1 m; "near" starts about 0.46 m
    # from the handle.
    "near": ((0.66, 0.0, 1.1), 0.65),
    "original": ((1.2, 0.0, 1.2), 1.2),
}

# reach, grip and standoff replace the source's meshes: (low, high) in m, by family.
_SHAPES = {
    "pull": ((0.09, 0.15), (0.008, 0.011), (0.055, 0.065)),
    "lever": ((0.11, 0.14), (0.008, 0.011), (0.055, 0.065)),
    "round": ((0.032, 0.040), (0.015, 0.018), (0.055, 0.065)),
}
_HANDLE = ("handle_damping", "handle_stiffness", "handle_limit")  # of latched doors only
OUTSIDE = 1.5  # width of the widened ranges, relative to the training ranges


def parameters(task: Task) -> tuple[str, ...]:
    """Return the names of the physical parameters that differ between the worlds of a task."""
    shift = ("shift_y",) if task.latched else ("shift_y", "shift_z")
    fixed = ("height", "thickness", "door_damping", "door_stiffness")
    handle = _HANDLE if task.latched else ()
    return (*shift, *fixed, *handle, "friction", "robot_damping", "reach", "grip", "standoff")


def sample_world(task: Task, rng: np.random.Generator, outside: Collection[str] = ()) -> World:
    """Draw one world.

    The source places the knob anew in every episode, on two slide joints; here the whole door is shifted by the same
    amounts, once per world, so that the handle keeps its distance from the hinge.

    Args:
        task: Kind of door.
        rng: Source of randomness; 16 numbers and one integer are drawn for every task.
        outside: Parameters (see ``parameters``) outside their ranges, uniformly in the part that a range 1.5 times as
            wide about the same middle adds; the others do not change. No bound of a size,
            damping, stiffness or friction falls below 0.

    Raises:
        ValueError: A parameter that the task does not have.
    """
    if unknown := set(outside) - set(parameters(task)):
        names = ", ".join(parameters(task))
        raise ValueError(f"no parameter {', '.join(sorted(unknown))} in {task.name}: {names}")
    u = rng.random(16).tolist()
    look = int(rng.integers(2**31))

    def between(index: int, name: str, low: float, high: float) -> float:
        share = _outside_share(u[index]) if name in outside else u[index]
        return low + share * (high - low)

    if task.family == "pull":
        low, high = (-0.05, 0.15) if task.side > 0 else (-0.15, 0.05)
        shift = (between(0, "shift_y", low, high), between(1, "shift_z", -0.15, 0.15))
    else:
        shift = (between(0, "shift_y", -0.15, 0.15), 0.0)
    reach, grip, standoff = _SHAPES[task.family]
    return World(
        task=task,
        height=between(2, "height", 2.0, 2.5),
        thickness=between(3, "thickness", 0.020, 0.030),
        door_damping=between(4, "door_damping", 1.0, 2.0),
        door_stiffness=between(5, "door_stiffness", 0.10, 0.20),
        handle_damping=between(6, "handle_damping", 1.0, 2.0),
        handle_stiffness=between(7, "handle_stiffness", 1.0, 1.5),
        handle_limit=math.radians(between(8, "handle_limit", 75.0, 80.0)),
        friction=(
            between(9, "friction", 0.5, 1.0),
            between(10, "friction", 0.001, 0.005),
            between(11, "friction", 0.001, 0.005),
        ),
        robot_damping=between(12, "robot_damping", 0.9, 1.1),
        shift=shift,
        reach=between(13, "reach", *reach),
        grip=between(14, "grip", *grip),
        standoff=between(15, "standoff", *standoff),
        look=look,
    )


def _outside_share(share: float) -> float:
    """Map a share in [0, 1) to values outside: its lower half below 0, its upper half above 1."""
    added = OUTSIDE - 1  # on both sides together
    return added * (share - 0.5) if share < 0.5 else 1 + added * (1 - share)
