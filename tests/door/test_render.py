"""Videos: drawn where the machine can, a clear reason where it cannot."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from door.env.render import draw, film, record_video, world_of
from door.env.tasks import TASKS
from door.env.worlds import sample_world
from runcatalog.record import Seeds


def idle(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 6))


def test_a_world_is_serialised_without_loss():
    world = sample_world(TASKS["lever_left"], np.random.default_rng(0))
    fields = {**dataclasses.asdict(world), "task": world.task.name}
    assert world_of(json.loads(json.dumps(fields))) == world


def test_without_a_working_renderer_the_video_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MUJOCO_GL", "no-such-backend")
    video = record_video(idle, tmp_path / "door.mp4", "pull", seeds=Seeds(0), episodes=1)
    assert video.path is None
    assert video.reason.startswith("no video: no-such-backend: ")
    assert "libegl1" in video.reason
    assert "\n" not in video.reason
    assert list(tmp_path.iterdir()) == []


def test_a_video_is_short_and_plays_everywhere(tmp_path: Path):
    scene = film(idle, "lever", "floatinghook", seeds=Seeds(0), episodes=2, start="near")
    assert [len(frames) for frames in scene["frames"]] == [127, 127]
    scene["frames"] = [frames[:3] for frames in scene["frames"]]
    video = draw(scene, tmp_path / "door.mp4")
    if video.path is None:
        assert "libosmesa6" in video.reason
        pytest.skip(video.reason)
    assert [path.name for path in tmp_path.iterdir()] == ["door.mp4"]
    import imageio.v2 as imageio

    with imageio.get_reader(video.path) as reader:
        facts = reader.get_meta_data()
        images = [np.asarray(image, float) for image in reader]
    assert facts["codec"] == "h264"
    assert facts["fps"] == 12.5
    assert len(images) == 6
    assert images[0].std() > 15  # not a blank picture
    assert np.abs(images[0] - images[3]).mean() > 2  # another world
    assert video.path.stat().st_size < 1_000_000
