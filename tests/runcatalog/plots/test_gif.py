"""Animated GIFs: duration, colours, size, and the same bytes for the same images."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from runcatalog.plots import gif


def moving(count: int) -> list[np.ndarray]:
    """A bright square that crosses a wall of many greys."""
    wall = np.random.default_rng(0).integers(90, 140, (360, 480, 1)).repeat(3, 2).astype(np.uint8)
    images = [wall.copy() for _ in range(count)]
    for index, image in enumerate(images):
        image[100:160, 8 * index : 8 * index + 60] = (240, 100, 20)
    return images


def test_frames_keep_time_and_what_is_small_and_bright_keeps_its_colour(tmp_path: Path):
    path, size = tmp_path / "a.gif", (280, 210)
    gif.write(path, iter(moving(30)), 80, size)
    with Image.open(path) as image:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
        times = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
        assert image.info["loop"] == 0
    assert sum(times) == 30 * 80
    assert frames[0].size == size
    for index in (0, 29):  # in the middle of the square
        x, y = (8 * index + 30) * size[0] // 480, 130 * size[1] // 360
        np.testing.assert_allclose(frames[index].getpixel((x, y)), (240, 100, 20), atol=12)
    gif.write(tmp_path / "b.gif", moving(30), 80, size)
    assert path.read_bytes() == (tmp_path / "b.gif").read_bytes()


def test_frames_keep_their_size_and_one_is_enough(tmp_path: Path):
    gif.write(tmp_path / "a.gif", moving(1), 160)
    with Image.open(tmp_path / "a.gif") as image:
        assert (image.size, getattr(image, "n_frames", 1)) == ((480, 360), 1)
