"""Procedural doors: draws a world at random and builds its MuJoCo model.

Ranges are those of the source (DoorGym's world generator) wherever they have a meaning without its
meshes; each field of ``World`` names its own. A latched door is held by a bolt on a slide joint,
which a joint equality withdraws when the handle is turned either way; the bolt stands behind a
strike that is fixed to the frame.

Frame: x points from the door to the robot, z up, the closed door lies in the plane x = 0.
"""

import math
from dataclasses import dataclass

import mujoco
import numpy as np

from door import looks
from door.robots import DOOR_BIT, TOOL_BIT, Robot, add_robot
from door.tasks import Task

WIDTH = 1.0  # m, fixed in the source
KNOB_HEIGHT = 1.0  # m, fixed in the source
DENSITY = 300.0  # kg/m^3 (source: mass = h w t 300)
HANDLE_MASS = 1.0  # kg (source)
DECISION = 0.08  # s: four env steps of 0.02 s (source: frame_skip 20, step_skip 4)
SKIN = 0.001  # m: each geom's margin; contact forces begin 2 mm before the surfaces meet
BOLT_RELEASE = (
    0.006  # m: withdrawn this far, no more than the bolt's rounded end is behind the strike
)

_BOLT_BIT = 4
_BOLT_RADIUS = 0.006  # m
_BOLT_REACH = (
    0.012  # m: how far the bolt's tip stands behind the strike's edge when the handle is at rest
)
_CLEARANCE = 0.001  # m between bolt and strike
# Bolt travel = a phi^2 - b phi^4: even, so that either way of turning opens; 6 mm at 0.25 rad, 12
# mm at 0.37, flat at 1.3.
_TRAVEL_2 = 0.0965
_TRAVEL_4 = _TRAVEL_2 / (2 * 1.3**2)
_WALL_THICKNESS = 0.1  # m
_WALL_WIDTH = 3.0  # m on either side of the door


@dataclass(frozen=True)
class World:
    """One door, drawn by ``sample_world``; ranges in brackets are the source's, uniform.

    Attributes:
        task: What kind of door.
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
        grip: Radius of the part that is held, m.
        standoff: Distance of the handle's axis from the door's face, m.
        look: Seed of colours and lights; has no part in the physics.
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
    """How a model is built and simulated.

    Attributes:
        timestep: Physics step, s; divides DECISION.
        contact_time: Time constant of contacts (solref), s; at least twice the timestep.
        base: Position of the robot's base with all joints at zero, m.
        retreat: How far the base can move toward the door, m.
        visual: Adds lights, colours and parts that are only seen. They change nothing in the
            physics.
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

# reach, grip and standoff take the place of the source's meshes: (low, high) in m for each family.
_SHAPES = {
    "pull": ((0.09, 0.15), (0.008, 0.011), (0.055, 0.065)),
    "lever": ((0.11, 0.14), (0.008, 0.011), (0.055, 0.065)),
    "round": ((0.032, 0.040), (0.015, 0.018), (0.055, 0.065)),
}


def sample_world(task: Task, rng: np.random.Generator) -> World:
    """Draws one world.

    The source places the knob anew in each episode, on two slide joints; here the whole door is
    shifted by the same amounts, once per world, so that the handle keeps its distance from the
    hinge.

    Args:
        task: What kind of door.
        rng: Source of randomness; exactly 16 numbers and one integer are drawn, whatever the task.
    """
    u = rng.random(16).tolist()
    look = int(rng.integers(2**31))

    def between(index: int, low: float, high: float) -> float:
        return low + u[index] * (high - low)

    if task.family == "pull":
        low, high = (-0.05, 0.15) if task.side > 0 else (-0.15, 0.05)
        shift = (between(0, low, high), between(1, -0.15, 0.15))
    else:
        shift = (between(0, -0.15, 0.15), 0.0)
    reach, grip, standoff = _SHAPES[task.family]
    return World(
        task=task,
        height=between(2, 2.0, 2.5),
        thickness=between(3, 0.020, 0.030),
        door_damping=between(4, 1.0, 2.0),
        door_stiffness=between(5, 0.10, 0.20),
        handle_damping=between(6, 1.0, 2.0),
        handle_stiffness=between(7, 1.0, 1.5),
        handle_limit=math.radians(between(8, 75.0, 80.0)),
        friction=(between(9, 0.5, 1.0), between(10, 0.001, 0.005), between(11, 0.001, 0.005)),
        robot_damping=between(12, 0.9, 1.1),
        shift=shift,
        reach=between(13, *reach),
        grip=between(14, *grip),
        standoff=between(15, *standoff),
        look=look,
    )


def build_model(world: World, robot: Robot, settings: Settings) -> mujoco.MjModel:
    """Compiles a world with a robot in it.

    Models of one task, robot and ``settings.visual`` have equal sizes. The robot's joints come
    first in qpos, then the hinge and, for a latched door, handle and bolt. Sensors: ``finger`` (3),
    ``knob`` (3), ``touch`` (contacts of robot and handle: found, distance), ``deepest`` (all
    contacts: found, distance).
    """
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    option = spec.option
    option.timestep = settings.timestep
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.gravity = (
        0,
        0,
        0,
    )  # the source lets floating robots float; hinge axes are vertical or balanced
    option.iterations = 20
    option.ls_iterations = 10
    spec.default.geom.solref = (settings.contact_time, 1)
    spec.default.geom.margin = SKIN
    spec.default.geom.solimp[:3] = (0.95, 0.99, 0.001)
    spec.default.joint.solref_limit = (settings.contact_time, 1)
    # The robot goes first, so that its joints are the first in qpos.
    if settings.visual:
        looks.add_materials(spec, world)
    material = "tool" if settings.visual else ""
    add_robot(spec, robot, settings.base, settings.retreat, world.robot_damping, material)
    hinge_y = world.shift[0] + world.task.side * WIDTH * (1 - world.task.handle_offset)
    _add_walls(spec, world, hinge_y)
    door = _add_door(spec, world, hinge_y)
    _add_handle(spec, door, world)
    if world.task.latched:
        _add_latch(spec, door, world, hinge_y, settings)
    _add_sensors(spec)
    if settings.visual:
        looks.add_scenery(spec, door, world, hinge_y)
    return spec.compile()


def _solid(settings_bit: int = DOOR_BIT) -> dict:
    return {"contype": settings_bit, "conaffinity": TOOL_BIT, "condim": 3}


def _add_walls(spec: mujoco.MjSpec, world: World, hinge_y: float) -> None:
    """Walls left and right of the door and above it; wide enough that no robot can walk round."""
    box = mujoco.mjtGeom.mjGEOM_BOX
    free_y = hinge_y - world.task.side * WIDTH
    left, right = min(hinge_y, free_y) - 0.005, max(hinge_y, free_y) + 0.005
    half = (_WALL_THICKNESS / 2, _WALL_WIDTH / 2, 1.5)
    body = spec.worldbody
    body.add_geom(
        name="wall_left", type=box, pos=(0, left - _WALL_WIDTH / 2, 1.5), size=half, **_solid()
    )
    body.add_geom(
        name="wall_right", type=box, pos=(0, right + _WALL_WIDTH / 2, 1.5), size=half, **_solid()
    )
    top = world.height + world.shift[1] + 0.005
    body.add_geom(
        name="wall_top",
        type=box,
        pos=(0, (left + right) / 2, (top + 3.0) / 2),
        size=(_WALL_THICKNESS / 2, (right - left) / 2, (3.0 - top) / 2),
        **_solid(),
    )


def _add_door(spec: mujoco.MjSpec, world: World, hinge_y: float) -> mujoco.MjsBody:
    """The panel on its hinge; the body's origin is on the hinge axis at the knob's height."""
    task = world.task
    door = spec.worldbody.add_body(name="door", pos=(0, hinge_y, KNOB_HEIGHT + world.shift[1]))
    limits = (0.0, 1.57) if task.opening_sign > 0 else (-1.57, 0.0)
    joint = door.add_joint(
        name="hinge",
        type=mujoco.mjtJoint.mjJNT_HINGE,
        axis=(0, 0, 1),
        range=limits,
        armature=1e-4,
    )
    joint.damping[0] = world.door_damping
    joint.stiffness[0] = world.door_stiffness
    door.add_geom(
        name="panel",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=(0, -task.side * WIDTH / 2, world.height / 2 - KNOB_HEIGHT),
        size=(world.thickness / 2, WIDTH / 2, world.height / 2),
        density=DENSITY,
        **_solid(),
    )
    return door


def _add_handle(spec: mujoco.MjSpec, door: mujoco.MjsBody, world: World) -> None:
    """The handle and the site ``knob`` at the point where it is held."""
    task = world.task
    y = -task.side * WIDTH * (1 - task.handle_offset)
    handle = door.add_body(name="handle", pos=(world.thickness / 2, y, 0))
    if task.latched:
        joint = handle.add_joint(
            name="handle",
            type=mujoco.mjtJoint.mjJNT_HINGE,
            axis=(1, 0, 0),
            range=(-world.handle_limit, world.handle_limit),
            armature=1e-4,
        )
        joint.damping[0] = world.handle_damping
        joint.stiffness[0] = world.handle_stiffness
    x, reach, grip = world.standoff, world.reach, world.grip
    inward = task.side  # levers point to the hinge
    if task.family == "pull":
        parts = [
            ((x, 0, -reach), (x, 0, reach), grip, 0.6),
            ((0, 0, -reach), (x, 0, -reach), grip, 0.2),
            ((0, 0, reach), (x, 0, reach), grip, 0.2),
        ]
        knob = (x, 0, 0)
    elif task.family == "lever":
        parts = [
            ((0, 0, 0), (x, 0, 0), grip + 0.002, 0.5),
            ((x, 0, 0), (x, inward * reach, 0), grip, 0.5),
        ]
        knob = (x, inward * reach * 0.7, 0)
    else:  # an oval knob: a short thick bar across a spindle
        parts = [
            ((0, 0, 0), (x, 0, 0), 0.011, 0.4),
            ((x, -reach, 0), (x, reach, 0), grip, 0.6),
        ]
        knob = (x, 0, 0)
    for index, (start, end, radius, share) in enumerate(parts):
        handle.add_geom(
            name=f"handle_{index}",
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=(*start, *end),
            size=(radius, 0, 0),
            mass=HANDLE_MASS * share,
            friction=world.friction,
            priority=1,
            **_solid(),
        )
    handle.add_site(name="knob", pos=knob, size=(0.004, 0.004, 0.004))


def _add_latch(
    spec: mujoco.MjSpec, door: mujoco.MjsBody, world: World, hinge_y: float, settings: Settings
) -> None:
    """Bolt, strike and the equality that ties the bolt to the handle."""
    task = world.task
    capsule, box = mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX
    outward = -task.side  # from the hinge to the free edge
    edge = outward * WIDTH
    bolt = door.add_body(name="bolt", pos=(0, edge, 0))
    joint = bolt.add_joint(
        name="bolt",
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=(0, -outward, 0),
        armature=0.02,
    )
    joint.damping[0] = 1.0
    tip = outward * (0.005 + _BOLT_REACH - _BOLT_RADIUS)
    rest = {"contype": _BOLT_BIT, "conaffinity": _BOLT_BIT, "condim": 1, "margin": 0.0}
    bolt.add_geom(
        name="bolt",
        type=capsule,
        fromto=(0, -outward * 0.05, 0, 0, tip, 0),
        size=(_BOLT_RADIUS, 0, 0),
        mass=0.05,
        **rest,
    )
    # The strike stands in the way of the opening door, its edge 5 mm from the door's.
    side = 1 if task.opening_sign * task.side > 0 else -1  # +x for a pull door, -x for a push door
    half = (0.01, 0.02, 0.025)
    spec.worldbody.add_geom(
        name="strike",
        type=box,
        pos=(
            side * (_BOLT_RADIUS + _CLEARANCE + half[0]),
            hinge_y + edge + outward * (0.005 + half[1]),
            KNOB_HEIGHT + world.shift[1],
        ),
        size=half,
        **rest,
    )
    equality = spec.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
        name1="bolt",
        name2="handle",
        solref=(settings.contact_time, 1),
    )
    equality.data[:5] = (0, 0, _TRAVEL_2, 0, -_TRAVEL_4)


def _add_sensors(spec: mujoco.MjSpec) -> None:
    site, body = mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_BODY
    position = mujoco.mjtSensor.mjSENS_FRAMEPOS
    spec.add_sensor(name="finger", type=position, objtype=site, objname="finger")
    spec.add_sensor(name="knob", type=position, objtype=site, objname="knob")
    contact = mujoco.mjtSensor.mjSENS_CONTACT
    found_and_distance, smallest_distance, one = 1 | 8, 1, 1
    spec.add_sensor(
        name="touch",
        type=contact,
        objtype=mujoco.mjtObj.mjOBJ_XBODY,  # the subtree, so that fingers count
        objname="robot",
        reftype=body,
        refname="handle",
        intprm=(found_and_distance, smallest_distance, one),
    )
    spec.add_sensor(
        name="deepest", type=contact, intprm=(found_and_distance, smallest_distance, one)
    )


class WorldModels:
    """The compiled models of n worlds of one task and robot, ``list`` being what ``mujoco.rollout``
    takes.

    Args:
        task: Task of all worlds.
        robot: Robot of all worlds.
        settings: Settings of all models.
        count: Number of worlds n.
    """

    def __init__(self, task: Task, robot: Robot, settings: Settings, count: int) -> None:
        self._robot, self._settings = robot, settings
        first = build_model(sample_world(task, np.random.default_rng(0)), robot, settings)
        self.list: list[mujoco.MjModel] = [first] * count

    def __len__(self) -> int:
        return len(self.list)

    def __getitem__(self, index: int) -> mujoco.MjModel:
        return self.list[index]

    def build(self, worlds: list[World]) -> None:
        """Replaces all models by those of ``worlds``."""
        self.list = [build_model(world, self._robot, self._settings) for world in worlds]
