"""Draw the pictures of 16 random worlds and of the robots in docs/door.md.

    python tools/door_pictures.py [--to docs/images]

Needs off-screen OpenGL: on Debian or Ubuntu libegl1 libgl1-mesa-dri, or libosmesa6.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from door.env.render import Painter, film, world_of
from door.env.robots import ROBOTS, get_robot
from door.env.scripted import ScriptedGripper, ScriptedHook
from door.env.tasks import TASKS
from door.env.worlds import Settings, sample_world
from runcatalog.record import Seeds

ROOT = Path(__file__).parents[1]
SEEDS = 1, 9  # of the worlds; of the robots, with a light door
TILE = (200, 280)  # pixels of a world
ROBOT = (336, 252)  # pixels of a robot's picture
CROP = (0.22, 0.16, 0.82, 0.76)  # shown part of the camera image: left, top, right, bottom
SMOOTH = 2  # anti-aliasing: images are drawn larger by this factor and scaled down
SHADOWS = 4096  # texels, for a whole wall
DECISIONS = (12, 70, -6)  # of the robots' episode: approaching, handle turned, door open
TASK = "lever"


def worlds() -> Image.Image:
    """Return 4 x 4 worlds; tasks and robots alternate, start positions are random."""
    sheet = Image.new("RGB", (4 * TILE[0], 4 * TILE[1]))
    names = (list(TASKS) * 2)[:16]
    for index, name in enumerate(names):
        rng = Seeds(SEEDS[0]).generator("picture", index)
        world = sample_world(TASKS[name], rng)
        robot = list(ROBOTS)[index % 2]
        size = (SMOOTH * TILE[0], SMOOTH * TILE[1])
        painter = Painter(world, robot, Settings(), size, SHADOWS)
        qpos = np.zeros(painter.joints)
        qpos[:5], qpos[5] = rng.uniform(-0.3, 0.3, 5), rng.uniform(0, 3.13)
        if get_robot(robot).dof > 6:
            qpos[6:8] = 0.02
        image = Image.fromarray(painter.draw(qpos, "front")).resize(TILE, Image.Resampling.LANCZOS)
        painter.close()
        sheet.paste(_named(image, name), (index % 4 * TILE[0], index // 4 * TILE[1]))
    return sheet


def robots() -> Image.Image:
    """Return one row per robot: its scripted controller opens a lever door."""
    sheet = Image.new("RGB", (len(DECISIONS) * ROBOT[0], len(ROBOTS) * ROBOT[1]))
    scripted = {"floatinghook": ScriptedHook, "floatinggripper": ScriptedGripper}
    for row, robot in enumerate(ROBOTS):
        policy = scripted[robot](TASK)
        scene = film(policy, TASK, robot, seeds=Seeds(SEEDS[1]), episodes=1, start="near")
        world, frames = world_of(scene["worlds"][0]), scene["frames"][0]
        size = tuple(round(SMOOTH * pixels / (CROP[2] - CROP[0])) for pixels in ROBOT)
        painter = Painter(world, robot, Settings(), size)
        for column, decision in enumerate(DECISIONS):
            image = Image.fromarray(painter.draw(np.array(frames[decision])))
            box = tuple(share * size[axis % 2] for axis, share in enumerate(CROP))
            image = image.resize(ROBOT, Image.Resampling.LANCZOS, box)
            named = _named(image, robot) if column == 0 else image
            sheet.paste(named, (column * ROBOT[0], row * ROBOT[1]))
        painter.close()
    return sheet


def _named(image: Image.Image, name: str) -> Image.Image:
    """Return the image with a name in its lower left corner."""
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    left, bottom = 8, image.height - 8
    box = draw.textbbox((left, bottom), name, font, "ls")
    draw.rectangle((box[0] - 4, box[1] - 3, box[2] + 4, box[3] + 3), "#ffffff")
    draw.text((left, bottom), name, "#1f2328", font, "ls")
    return image


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "docs/images", metavar="FOLDER")
    folder = parser.parse_args().to
    for name, image in (("worlds", worlds()), ("robots", robots())):
        path = folder / f"{name}.jpg"
        image.save(path, quality=86, optimize=True)
        print(f"{path}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
