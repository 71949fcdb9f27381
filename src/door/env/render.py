"""Videos of a policy. Rendering runs in a child process, so that a broken OpenGL cannot affect a training run.

MuJoCo renders without a screen through EGL (a GPU, or Mesa's software renderer; Debian: libegl1 and libgl1-mesa-dri) or
OSMesa (Debian: libosmesa6). Both are tried; if MUJOCO_GL is set, only that.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from door.env.tasks import get_task
from door.env.worlds import DECISION, Settings, World

SIZE = (480, 360)  # pixels
GIF_SIZE = (280, 210)  # pixels; drawn larger and scaled down, which smooths edges
BACKENDS = ("egl", "osmesa")
PACKAGES = "Debian: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6"
_TIMEOUT = 300.0  # s; software rendering takes 20 ms a frame for three episodes


@dataclasses.dataclass(frozen=True)
class Video:
    """A video's path, or None and the reason why there is no video."""

    path: Path | None
    reason: str


def record_video(
    policy: Callable[[np.ndarray], np.ndarray],
    path: Path | str,
    task: str,
    robot: str = "floatinghook",
    *,
    seeds: Any,
    episodes: int = 3,
    start: str = "near",
) -> Video:
    """Write an H.264 video (mp4) of a policy, one episode in every one of the first test worlds.

    An episode is cut 0.6 s after the door is open.

    Args:
        policy: obs [episodes, obs_size] -> action [episodes, action_size].
        path: File to write.
        task: Name of the task.
        robot: Name of the robot.
        seeds: The run's seeds.
        episodes: Number of worlds.
        start: ``near`` or ``original``.

    Returns:
        The video; ``path`` is None, with a reason, if the machine cannot render.
    """
    scene = film(policy, task, robot, seeds=seeds, episodes=episodes, start=start)
    return draw(scene, Path(path))


def film(
    policy: Callable[[np.ndarray], np.ndarray],
    task: str,
    robot: str,
    *,
    seeds: Any,
    episodes: int,
    start: str,
) -> dict[str, Any]:
    """Simulate the episodes; return a scene: joint positions, worlds and settings."""
    from door.env.door_env import HORIZON, DoorVecEnv

    env = DoorVecEnv(
        task, robot, episodes, seeds=seeds, threads=1, start=start, stagger=False, held_out=True
    )
    frames: list[list[list[float]]] = [[] for _ in range(episodes)]
    rest = np.full(episodes, 8)  # decisions to show after success
    obs = env.observation
    for _ in range(HORIZON - 1):
        obs, _, _, info = env.step(policy(obs))
        qpos = env.qpos
        rest -= info["success"]
        for index in np.flatnonzero(rest > 0).tolist():
            frames[index].append(qpos[index].tolist())
    env.close()
    worlds = [{**dataclasses.asdict(world), "task": world.task.name} for world in env.worlds]
    settings = dataclasses.asdict(dataclasses.replace(env.settings, visual=True))
    return {"robot": robot, "settings": settings, "worlds": worlds, "frames": frames}


def draw(scene: dict[str, Any], path: Path) -> Video:
    """Render a scene in a child process with the first backend that works, as .mp4 or as a small .gif."""
    wanted = os.environ.get("MUJOCO_GL", "")
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "scene.json"
        source.write_text(json.dumps(scene))
        for backend in (wanted,) if wanted else BACKENDS:
            part = path.with_name(f".{path.name}.part{path.suffix}")
            reason = _run_child(backend, source, part)
            if not reason:
                os.replace(part, path)
                return Video(path, "")
            part.unlink(missing_ok=True)
            reasons.append(f"{backend}: {reason}")
    return Video(None, f"no video: {'; '.join(reasons)} ({PACKAGES})")


def _run_child(backend: str, source: Path, target: Path) -> str:
    """Return "" if the child rendered the video, else the reason in one line."""
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "MUJOCO_GL": backend,
        "PYOPENGL_PLATFORM": backend,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-m", "door.env.render", str(source), str(target)]
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    if child.returncode == 0 and target.is_file():
        return ""
    lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {child.returncode}"


def world_of(fields: dict[str, Any]) -> World:
    """Return the world of a scene's dictionary."""
    fields = {**fields, "task": get_task(fields["task"])}
    return World(**{key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()})


class Painter:
    """Renderer of one world; needs a working OpenGL (see ``BACKENDS``).

    Args:
        world: The world.
        robot: Name of the robot.
        settings: Physics settings; ``visual`` is set.
        size: Width and height, pixels.
        shadows: Width of the shadow map, texels; 0: as in videos.

    Attributes:
        joints: Number of joint positions, nq.
    """

    def __init__(
        self,
        world: World,
        robot: str,
        settings: Settings,
        size: tuple[int, int] = SIZE,
        shadows: int = 0,
    ) -> None:
        import mujoco

        from door.env.mujoco_models import build_model

        self._model = build_model(world, robot, dataclasses.replace(settings, visual=True))
        if shadows:
            self._model.vis.quality.shadowsize = shadows
        self._data = mujoco.MjData(self._model)
        self.joints = self._model.nq
        self._renderer = mujoco.Renderer(self._model, height=size[1], width=size[0])

    def draw(self, qpos: np.ndarray, camera: str = "side") -> np.ndarray:
        """Return the image [height, width, 3] uint8 at joint positions qpos; "front" shows the whole door."""
        import mujoco

        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, camera=camera)
        return self._renderer.render()

    def close(self) -> None:
        """Release the OpenGL context."""
        self._renderer.close()


def write_video(source: Path, target: Path) -> None:
    """Render a scene file as an mp4 or a gif; runs in the child process."""
    scene = json.loads(source.read_bytes())
    if target.suffix == ".gif":
        from runcatalog.plots import gif

        gif.write(target, images(scene), round(1000 * DECISION), GIF_SIZE)
        return
    import imageio.v2 as imageio

    options = ["-crf", "27", "-preset", "slow", "-movflags", "+faststart"]
    with imageio.get_writer(
        target, format="FFMPEG", fps=1 / DECISION, codec="libx264", macro_block_size=8,
        quality=None, output_params=options,
    ) as writer:  # fmt: skip
        for image in images(scene):
            writer.append_data(image)


def images(scene: dict[str, Any]) -> Iterator[np.ndarray]:
    """Yield the images [height, width, 3] uint8 of a scene, episode after episode."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in scene["settings"].items()}
    for world, frames in zip(scene["worlds"], scene["frames"], strict=True):
        painter = Painter(world_of(world), scene["robot"], Settings(**fields))
        for qpos in frames:
            yield painter.draw(np.array(qpos))
        painter.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Render a scene file as an mp4 or a gif.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    write_video(arguments.source, arguments.target)
