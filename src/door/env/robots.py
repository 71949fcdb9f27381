"""The robots: a hook and a two-finger gripper, both floating on three slides and three hinges.

The source's robots are meshes on the same six joints (x, y, z slides, then z, y, x hinges) without
gravity. Its motors had gear 2 and next to no damping; here the motors are stronger and damped, so
that the tool moves at up to about 0.8 m/s and a collision cannot drive it deep into a contact (see
``worlds.Settings``).
"""

from dataclasses import dataclass

import mujoco

TOOL_BIT = 1  # contype of the robot's geoms
DOOR_BIT = 2  # contype of walls, door panel and handle; bolt and strike use 4

SLIDE_FORCE = 25.0  # N at full command
SLIDE_DAMPING = 32.0  # N s/m: terminal speed 0.78 m/s
TURN_TORQUE = 6.0  # Nm at full command: 24 N at the hook's tip (source: 2)
TURN_DAMPING = 3.0  # Nm s/rad: terminal speed 2 rad/s
FINGER_FORCE = 20.0  # N at full command
FINGER_DAMPING = 60.0  # N s/m: terminal speed 0.33 m/s
FINGER_ARMATURE = 0.3  # kg; large compared with the damping of one step, which keeps contacts stiff
ROLL_RANGE = (0.0, 3.13)  # rad, as in the source

_DAMPINGS = (
    ("slide_x", SLIDE_DAMPING),
    ("slide_y", SLIDE_DAMPING),
    ("slide_z", SLIDE_DAMPING),
    ("turn_z", TURN_DAMPING),
    ("turn_y", TURN_DAMPING),
    ("turn_x", TURN_DAMPING),
    ("finger_a", FINGER_DAMPING),
    ("finger_b", FINGER_DAMPING),
)
_TURN_RANGE = (-1.57, 1.57)  # rad, as in the source
_REACH = 0.65  # m; wide enough for all doors, too narrow to get around the wall


@dataclass(frozen=True)
class Robot:
    """Properties of a robot.

    Attributes:
        name: Name on the command line.
        dof: Number of observed and driven joints.
        cost_actions: Number of leading actions with a control cost (source: a gripper's last two have none).
        length: Distance from the base to the tip, in m.
    """

    name: str
    dof: int
    cost_actions: int
    length: float


ROBOTS: dict[str, Robot] = {
    robot.name: robot
    for robot in (
        Robot("floatinghook", dof=6, cost_actions=6, length=0.25),
        Robot("floatinggripper", dof=7, cost_actions=5, length=0.26),
    )
}


def get_robot(name: str) -> Robot:
    """Return the robot of a name; raise ValueError with all names for an unknown one."""
    try:
        return ROBOTS[name]
    except KeyError:
        raise ValueError(f"unknown robot {name!r}: choose from {', '.join(ROBOTS)}") from None


def add_robot(
    spec: mujoco.MjSpec,
    robot: Robot,
    base: tuple[float, float, float],
    retreat: float,
) -> None:
    """Add the robot's bodies, motors and the site ``finger`` to a spec.

    Args:
        spec: Changed in place.
        robot: The robot.
        base: Position of the base with all joints at zero, in m; the tool points to -x.
        retreat: Range of the base toward the door along x, in m.
    """
    body = spec.worldbody.add_body(name="robot", pos=base)
    slide, hinge = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    ranges = ((-retreat, _REACH), (-_REACH, _REACH), (-_REACH, _REACH))
    for axis, name, limits in zip(((1, 0, 0), (0, 1, 0), (0, 0, 1)), "xyz", ranges, strict=True):
        joint = body.add_joint(name=f"slide_{name}", type=slide, axis=axis, range=limits)
        _add_motor(spec, joint.name, SLIDE_FORCE)
    turns = (_TURN_RANGE, _TURN_RANGE, ROLL_RANGE)
    for axis, name, limits in zip(((0, 0, 1), (0, 1, 0), (1, 0, 0)), "zyx", turns, strict=True):
        joint = body.add_joint(
            name=f"turn_{name}", type=hinge, axis=axis, range=limits, armature=0.02
        )
        _add_motor(spec, joint.name, TURN_TORQUE)
    if robot.name == "floatinghook":
        _add_hook(body, robot.length)
    else:
        _add_gripper(spec, body)


def damp_robot(spec: mujoco.MjSpec, robot: Robot, factor: float) -> None:
    """Set the dampings of all joints of a robot, times ``factor`` [1] (source: 0.9-1.1)."""
    for name, damping in _DAMPINGS[: 6 if robot.dof == 6 else 8]:
        spec.joint(name).damping[0] = damping * factor


def _add_motor(spec: mujoco.MjSpec, joint: str, gear: float) -> None:
    motor = spec.add_actuator(
        name=joint,
        target=joint,
        trntype=mujoco.mjtTrn.mjTRN_JOINT,
        ctrllimited=True,
        ctrlrange=(-1, 1),
    )
    motor.gear[0] = gear


def _add_hook(body: mujoco.MjsBody, length: float) -> None:
    """A straight shaft, its tip at a right angle: up at roll 0, down at roll pi."""
    rest = {"contype": TOOL_BIT, "conaffinity": DOOR_BIT, "condim": 3}
    capsule = mujoco.mjtGeom.mjGEOM_CAPSULE
    body.add_geom(
        name="shaft",
        type=capsule,
        fromto=(0, 0, 0, -length, 0, 0),
        size=(0.01, 0, 0),
        mass=0.5,
        **rest,
    )
    tip = (-length, 0, 0, -length, 0, 0.07)
    body.add_geom(name="tip", type=capsule, fromto=tip, size=(0.009, 0, 0), mass=0.16, **rest)
    body.add_site(name="finger", pos=(-length, 0, 0.03), size=(0.004, 0.004, 0.004))


def _add_gripper(spec: mujoco.MjSpec, body: mujoco.MjsBody) -> None:
    """A palm and two fingers; one motor closes both through a joint equality."""
    rest = {"contype": TOOL_BIT, "conaffinity": DOOR_BIT}
    box = mujoco.mjtGeom.mjGEOM_BOX
    body.add_geom(
        name="shaft",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=(0, 0, 0, -0.14, 0, 0),
        size=(0.012, 0, 0),
        mass=0.4,
        condim=3,
        **rest,
    )
    body.add_geom(
        name="palm",
        type=box,
        pos=(-0.15, 0, 0),
        size=(0.012, 0.055, 0.015),
        mass=0.1,
        condim=3,
        **rest,
    )
    for name, sign in (("finger_a", 1), ("finger_b", -1)):
        finger = body.add_body(name=name, pos=(-0.16, 0.0, 0))
        finger.add_joint(
            name=name,
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(0, sign, 0),
            range=(0.002, 0.045),
            armature=FINGER_ARMATURE,
        )
        finger.add_geom(
            name=name,
            type=box,
            pos=(-0.05, 0.008 * sign, 0),
            size=(0.05, 0.008, 0.012),
            mass=0.05,
            condim=4,
            friction=(1.0, 0.01, 0.001),
            **rest,
        )
        # A lip at the tip, so that a closed gripper also holds a bar that is pulled along the
        # fingers.
        finger.add_geom(
            name=f"{name}_lip",
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=(-0.096, 0.002 * sign, -0.012, -0.096, 0.002 * sign, 0.012),
            size=(0.006, 0, 0),
            mass=0.01,
            condim=3,
            **rest,
        )
    equality = spec.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
        name1="finger_b",
        name2="finger_a",
    )
    equality.data[:5] = (0, 1, 0, 0, 0)
    _add_motor(spec, "finger_a", FINGER_FORCE)
    body.add_site(name="finger", pos=(-0.235, 0, 0), size=(0.004, 0.004, 0.004))
