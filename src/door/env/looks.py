"""Looks of a world: colours, lights, floor, frame. They do not affect the physics.

As in the source, paint, wood, carpet and metal are random, here from the world's ``look`` seed.
"""

import mujoco
import numpy as np

from door.env.worlds import KNOB_HEIGHT, WIDTH, World

_WALLS = ((0.86, 0.84, 0.80), (0.74, 0.80, 0.83), (0.83, 0.77, 0.70), (0.78, 0.82, 0.74))
_DOORS = ((0.55, 0.36, 0.20), (0.42, 0.26, 0.15), (0.93, 0.92, 0.88), (0.25, 0.38, 0.48))
_FLOORS = ((0.45, 0.33, 0.24), (0.40, 0.40, 0.42), (0.36, 0.42, 0.40))
_METALS = ((0.82, 0.68, 0.36), (0.75, 0.76, 0.78), (0.25, 0.25, 0.27))
_DECORATIVE = {"contype": 0, "conaffinity": 0, "mass": 0.0, "group": 1}
_BOX = mujoco.mjtGeom.mjGEOM_BOX


def add_materials(spec: mujoco.MjSpec, look: int) -> None:
    """Add textures and materials; ``add_scenery`` assigns them to the solid geoms by name."""
    rng = np.random.default_rng(look)
    colour = {
        "wall": _WALLS[rng.integers(len(_WALLS))],
        "panel": _DOORS[rng.integers(len(_DOORS))],
        "floor": _FLOORS[rng.integers(len(_FLOORS))],
        "metal": _METALS[rng.integers(len(_METALS))],
    }
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=(0.8, 0.85, 0.9),
        rgb2=(0.5, 0.55, 0.6),
        width=64,
        height=64,
    )
    floor = np.array(colour["floor"])
    spec.add_texture(
        name="tiles",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=floor,
        rgb2=floor * 0.85,
        width=128,
        height=128,
    )
    material = spec.add_material(name="floor", texrepeat=(12, 12))
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"
    trim = np.minimum(1.1 * np.array(colour["wall"]), 1.0)
    for name, rgb, specular, shininess in (
        ("wall", colour["wall"], 0.1, 0.1),
        ("panel", colour["panel"], 0.3, 0.3),
        ("inlay", np.array(colour["panel"]) * 0.88, 0.3, 0.3),
        ("trim", trim, 0.2, 0.2),
        ("metal", colour["metal"], 0.9, 0.8),
        ("tool", (0.95, 0.38, 0.08), 0.6, 0.5),
        ("tip", (0.16, 0.17, 0.2), 0.7, 0.6),
    ):
        glow = 0.35 if name == "tool" else 0.0  # visible although it is thin and doors are brown
        spec.add_material(
            name=name, rgba=(*rgb, 1), specular=specular, shininess=shininess, emission=glow
        )


def add_scenery(spec: mujoco.MjSpec, world: World, hinge_y: float) -> None:
    """Assign materials to the solid geoms; add floor, frame, inlays, lights and the cameras ``side``, ``front``."""
    for geom in spec.geoms:
        geom.material = _material(geom.name)
    side = world.task.side
    bottom = world.shift[1]
    body = spec.worldbody
    body.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        pos=(0, 0, bottom),
        size=(6, 6, 0.1),
        material="floor",
        **_DECORATIVE,
    )
    low, high = sorted((hinge_y, hinge_y - side * WIDTH))
    top = bottom + world.height
    for y, half in ((low - 0.035, 0.03), (high + 0.035, 0.03)):
        body.add_geom(
            type=_BOX,
            pos=(0, y, (top + bottom) / 2),
            size=(0.06, half, world.height / 2),
            material="trim",
            **_DECORATIVE,
        )
    body.add_geom(
        type=_BOX,
        pos=(0, (low + high) / 2, top + 0.035),
        size=(0.06, WIDTH / 2 + 0.065, 0.03),
        material="trim",
        **_DECORATIVE,
    )
    _add_details(spec.body("door"), world)
    _add_lights(spec, world)
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 960
    spec.visual.quality.shadowsize = 1024
    spec.visual.quality.offsamples = 0  # software rendering is 2.6 times as fast without
    spec.visual.headlight.ambient = (0.25, 0.25, 0.25)
    spec.visual.headlight.diffuse = (0.25, 0.25, 0.25)
    target = np.array((0.15, side * 0.05, KNOB_HEIGHT))
    eye = np.array((1.0, -side * 0.8, KNOB_HEIGHT + 0.6))
    body.add_camera(name="side", pos=eye, xyaxes=_look_at(eye, target), fovy=50)
    target = np.array((0.0, hinge_y - side * WIDTH / 2, bottom + world.height / 2))
    eye = target + np.array((2.9, -side * 1.2, 0.5))
    body.add_camera(name="front", pos=eye, xyaxes=_look_at(eye, target), fovy=50)


def _material(name: str) -> str:
    if name.startswith("wall"):
        return "wall"
    if name.startswith("handle") or name in ("bolt", "strike"):
        return "metal"
    if name in ("tip", "finger_a", "finger_b", "finger_a_lip", "finger_b_lip"):
        return "tip"
    return "panel" if name == "panel" else "tool"


def _add_details(door: mujoco.MjsBody, world: World) -> None:
    """Add two inlays on the panel, and a rose behind the handle."""
    side, face = world.task.side, world.thickness / 2
    for z, half in ((-0.55, 0.32), (world.height / 2 + 0.05 - 0.2, world.height / 2 - 0.68)):
        door.add_geom(
            type=_BOX,
            pos=(0, -side * 0.46, z),
            size=(face + 0.002, 0.26, half),
            material="inlay",
            **_DECORATIVE,
        )
    if not world.task.latched:
        return
    y = -side * WIDTH * (1 - world.task.handle_offset)
    door.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        fromto=(face, y, 0, face + 0.006, y, 0),
        size=(0.026, 0, 0),
        material="metal",
        **_DECORATIVE,
    )


def _add_lights(spec: mujoco.MjSpec, world: World) -> None:
    rng = np.random.default_rng(world.look + 1)
    spec.worldbody.add_light(
        pos=(2.0, rng.uniform(-1.5, 1.5), 3.0),
        dir=(-0.55, rng.uniform(-0.3, 0.3), -0.75),
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        diffuse=(0.6, 0.6, 0.57),
        castshadow=True,
    )
    spec.worldbody.add_light(
        pos=(1.5, rng.uniform(-1.5, 1.5), 2.5),
        dir=(-0.5, 0, -0.8),
        diffuse=(0.3, 0.3, 0.34),
        castshadow=False,
    )


def _look_at(eye: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the x and y axes of a camera at ``eye`` that looks at ``target``, z up."""
    back = (eye - target) / np.linalg.norm(eye - target)
    right = np.cross((0, 0, 1), back)
    right /= np.linalg.norm(right)
    return np.concatenate([right, np.cross(back, right)])
