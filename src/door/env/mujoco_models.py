"""The MuJoCo model of a world.

A latched door is locked by a bolt on a slide joint, which a joint equality withdraws when the handle is turned either
way; the bolt is behind a strike that is fixed to the frame. Only these pairs of geoms can collide: the robot with
walls, door and handle, and the bolt with the strike.
All shapes are capsules and boxes, whose contacts have closed forms.
"""

import mujoco

from door.env import looks
from door.env.robots import DOOR_BIT, TOOL_BIT, add_robot, damp_robot, get_robot
from door.env.worlds import DENSITY, HANDLE_MASS, KNOB_HEIGHT, WIDTH, Settings, World

SKIN = 0.0025  # m: margin of all geoms; contact forces start 5 mm before the surfaces meet
# m: withdrawn this far, only the bolt's rounded end is behind the strike.
BOLT_RELEASE = 0.006

_BOLT_BIT = 4
_BOLT_RADIUS = 0.006  # m
_BOLT_REACH = 0.010  # m from the strike's edge to the bolt's tip when the handle is at rest
_GAP = 0.005  # m between door and frame
_CLEARANCE = 0.003  # m between bolt and strike
# m: margin of bolt and strike, together less than the clearance; a door thrown shut on its bolt moves 3.3 mm a step
_BOLT_SKIN = 0.0014
_STRIKE = (0.01, 0.02, 0.025)  # half sizes, m
# Bolt travel = a phi^2 - b phi^4: even, so that either way of turning opens; 6 mm at 0.25 rad, 12
# mm at 0.37, flat at 1.3.
_TRAVEL_2 = 0.0965
_TRAVEL_4 = _TRAVEL_2 / (2 * 1.3**2)
_WALL_THICKNESS = 0.1  # m
_WALL_WIDTH = 3.0  # m on either side of the door; no robot can reach around it
_WALL_HEIGHT = 3.0  # m
_CAPSULE, _BOX = mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX
_SOLID = {"contype": DOOR_BIT, "conaffinity": TOOL_BIT, "condim": 3}


def build_model(world: World, robot: str, settings: Settings) -> mujoco.MjModel:
    """Compile the model of one world with a robot; see ``DoorSpec``."""
    spec = DoorSpec(world, robot, settings)
    return spec.compile(world)


class DoorSpec:
    """Spec for a task and a robot, compiled for many worlds.

    Its models have equal sizes. The robot's joints come first in qpos, then the hinge and, for a
    latched door, handle and bolt. Sensors: ``finger`` (3), ``knob`` (3), ``touch`` (contacts of
    robot and handle: number, smallest distance in m), ``deepest`` (the same of all contacts).

    Args:
        world: Any world of the task; with ``settings.visual`` the world with the wanted looks.
        robot: Name of the robot.
        settings: Physics settings.
    """

    def __init__(self, world: World, robot: str, settings: Settings) -> None:
        self.task, self.robot, self.settings = world.task, get_robot(robot), settings
        self.spec = mujoco.MjSpec()
        self._set_options()
        if settings.visual:
            looks.add_materials(self.spec, world.look)
        # The robot goes first, so that its joints are the first in qpos.
        add_robot(self.spec, self.robot, settings.base, settings.retreat)
        self._add_walls()
        self._add_door()
        self._add_handle()
        if self.task.latched:
            self._add_latch()
        self._add_sensors()
        if settings.visual:
            self._place(world)
            looks.add_scenery(self.spec, world, self._hinge_y(world))

    def compile(self, world: World) -> mujoco.MjModel:
        """Return the model of a world of the same task; raise ValueError for another task."""
        if world.task != self.task:
            raise ValueError(f"a world of task {world.task.name}, not {self.task.name}")
        self._place(world)
        return self.spec.compile()

    def _set_options(self) -> None:
        spec, time = self.spec, self.settings.contact_time
        spec.compiler.degree = False
        spec.option.timestep = self.settings.timestep
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        spec.option.gravity = (0, 0, 0)  # as in the source for floating robots
        spec.option.iterations = 20
        spec.option.ls_iterations = 10
        # All moving bodies are one island while the tool touches the handle; the search for islands takes 8 % of
        # a step.
        spec.option.disableflags = mujoco.mjtDisableBit.mjDSBL_ISLAND
        spec.default.geom.solref = (time, 1)
        spec.default.geom.solimp[:3] = (0.95, 0.99, 0.001)
        spec.default.geom.margin = SKIN
        spec.default.joint.solref_limit = (time, 1)
        spec.default.equality.solref = (time, 1)

    def _add_walls(self) -> None:
        """Add walls left and right of the door and above it."""
        add = self.spec.worldbody.add_geom
        half = (_WALL_THICKNESS / 2, _WALL_WIDTH / 2, _WALL_HEIGHT / 2)
        self._wall_left = add(name="wall_left", type=_BOX, size=half, **_SOLID)
        self._wall_right = add(name="wall_right", type=_BOX, size=half, **_SOLID)
        self._wall_top = add(name="wall_top", type=_BOX, size=(1, 1, 1), **_SOLID)

    def _add_door(self) -> None:
        """Add the panel on its hinge; the body's origin is on the hinge axis at the knob's height."""
        self._door = self.spec.worldbody.add_body(name="door")
        limits = (0.0, 1.57) if self.task.opening_sign > 0 else (-1.57, 0.0)
        hinge = mujoco.mjtJoint.mjJNT_HINGE
        self._hinge = self._door.add_joint(
            name="hinge", type=hinge, axis=(0, 0, 1), range=limits, armature=1e-4
        )
        self._panel = self._door.add_geom(
            name="panel", type=_BOX, size=(1, 1, 1), density=DENSITY, **_SOLID
        )

    def _add_handle(self) -> None:
        """Add the handle, and the site ``knob`` at its grip point."""
        self._handle = self._door.add_body(name="handle")
        if self.task.latched:
            self._turn = self._handle.add_joint(
                name="handle", type=mujoco.mjtJoint.mjJNT_HINGE, axis=(1, 0, 0), armature=1e-4
            )
        shares = {"pull": (0.6, 0.2, 0.2), "lever": (0.5, 0.5), "round": (0.4, 0.6)}
        self._parts = [
            self._handle.add_geom(
                name=f"handle_{index}",
                type=_CAPSULE,
                mass=HANDLE_MASS * share,
                priority=1,
                **_SOLID,
            )
            for index, share in enumerate(shares[self.task.family])
        ]
        self._knob = self._handle.add_site(name="knob", size=(0.004, 0.004, 0.004))

    def _add_latch(self) -> None:
        """Add bolt, strike and the equality between bolt and handle."""
        outward = -self.task.side  # from the hinge to the free edge
        bolt = self._door.add_body(name="bolt", pos=(0, outward * WIDTH, 0))
        slide = mujoco.mjtJoint.mjJNT_SLIDE
        joint = bolt.add_joint(name="bolt", type=slide, axis=(0, -outward, 0), armature=0.02)
        joint.damping[0] = 1.0
        tip = outward * (_GAP + _BOLT_REACH - _BOLT_RADIUS)
        rest = {"contype": _BOLT_BIT, "conaffinity": _BOLT_BIT, "condim": 1}
        rest["margin"] = _BOLT_SKIN
        bolt.add_geom(
            name="bolt",
            type=_CAPSULE,
            fromto=(0, -outward * 0.05, 0, 0, tip, 0),
            size=(_BOLT_RADIUS, 0, 0),
            mass=0.05,
            **rest,
        )
        self._strike = self.spec.worldbody.add_geom(name="strike", type=_BOX, size=_STRIKE, **rest)
        joints = {"name1": "bolt", "name2": "handle", "objtype": mujoco.mjtObj.mjOBJ_JOINT}
        equality = self.spec.add_equality(type=mujoco.mjtEq.mjEQ_JOINT, **joints)
        equality.data[:5] = (0, 0, _TRAVEL_2, 0, -_TRAVEL_4)

    def _add_sensors(self) -> None:
        add, site = self.spec.add_sensor, mujoco.mjtObj.mjOBJ_SITE
        for name in ("finger", "knob"):
            add(name=name, type=mujoco.mjtSensor.mjSENS_FRAMEPOS, objtype=site, objname=name)
        # Data: number of matching contacts (bit 0) and their smallest distance (bit 3).
        contact = {"type": mujoco.mjtSensor.mjSENS_CONTACT, "intprm": (1 | 8, 1, 1)}
        robot = {"objtype": mujoco.mjtObj.mjOBJ_XBODY, "objname": "robot"}  # with its fingers
        handle = {"reftype": mujoco.mjtObj.mjOBJ_BODY, "refname": "handle"}
        add(name="touch", **contact, **robot, **handle)
        add(name="deepest", **contact)

    def _hinge_y(self, world: World) -> float:
        return world.shift[0] + self.task.side * WIDTH * (1 - self.task.handle_offset)

    def _place(self, world: World) -> None:
        """Set all parameters that differ between worlds."""
        side, hinge_y, knob_z = self.task.side, self._hinge_y(world), KNOB_HEIGHT + world.shift[1]
        damp_robot(self.spec, self.robot, world.robot_damping)
        low, high = sorted((hinge_y, hinge_y - side * WIDTH))
        low, high = low - _GAP, high + _GAP
        self._wall_left.pos = (0, low - _WALL_WIDTH / 2, _WALL_HEIGHT / 2)
        self._wall_right.pos = (0, high + _WALL_WIDTH / 2, _WALL_HEIGHT / 2)
        top = world.height + world.shift[1] + _GAP
        self._wall_top.pos = (0, (low + high) / 2, (top + _WALL_HEIGHT) / 2)
        self._wall_top.size = (_WALL_THICKNESS / 2, (high - low) / 2, (_WALL_HEIGHT - top) / 2)
        self._door.pos = (0, hinge_y, knob_z)
        self._hinge.damping[0] = world.door_damping
        self._hinge.stiffness[0] = world.door_stiffness
        self._panel.pos = (0, -side * WIDTH / 2, world.height / 2 - KNOB_HEIGHT)
        self._panel.size = (world.thickness / 2, WIDTH / 2, world.height / 2)
        self._place_handle(world)
        if self.task.latched:
            self._turn.range = (-world.handle_limit, world.handle_limit)
            self._turn.damping[0] = world.handle_damping
            self._turn.stiffness[0] = world.handle_stiffness
            # Blocks the opening door: in front of it for a pull, behind it for a push.
            x = (_BOLT_RADIUS + _CLEARANCE + _STRIKE[0]) * (-1 if self.task.push else 1)
            edge = hinge_y - side * (WIDTH + _GAP + _STRIKE[1])
            self._strike.pos = (x, edge, knob_z)

    def _place_handle(self, world: World) -> None:
        side = self.task.side
        self._handle.pos = (world.thickness / 2, -side * WIDTH * (1 - self.task.handle_offset), 0)
        x, reach, grip = world.standoff, world.reach, world.grip
        if self.task.family == "pull":  # a bar on two stand-offs
            low, high = (x, 0, -reach), (x, 0, reach)
            parts = [(low, high, grip), ((0, 0, -reach), low, grip), ((0, 0, reach), high, grip)]
            knob = (x, 0.0, 0.0)
        elif self.task.family == "lever":  # the arm points to the hinge
            end = (x, side * reach, 0)
            parts = [((0, 0, 0), (x, 0, 0), grip + 0.002), ((x, 0, 0), end, grip)]
            knob = (x, side * reach * 0.7, 0.0)
        else:  # an oval knob: a short thick bar across its spindle
            parts = [((0, 0, 0), (x, 0, 0), 0.011), ((x, -reach, 0), (x, reach, 0), grip)]
            knob = (x, 0.0, 0.0)
        for geom, (start, end, radius) in zip(self._parts, parts, strict=True):
            geom.fromto = (*start, *end)
            geom.size = (radius, 0, 0)
            geom.friction = world.friction
        self._knob.pos = knob


class WorldModels:
    """Compiled models of n worlds of one task and robot.

    Attributes:
        list: The models, as ``mujoco.rollout`` takes them.
    """

    def __init__(self, worlds: list[World], robot: str, settings: Settings) -> None:
        self._spec = DoorSpec(worlds[0], robot, settings)
        self.list: list[mujoco.MjModel] = []
        self.build(worlds)

    def build(self, worlds: list[World]) -> None:
        """Replace all models by those of ``worlds``."""
        self.list = [self._spec.compile(world) for world in worlds]
