"""Animated GIFs with reproducible bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

COLOURS = (
    96  # of the palette; more increase the size and make no visible difference in drawn scenes
)
SAMPLED = 8  # frames from which the palette is computed


def write(
    path: Path,
    images: Iterable[np.ndarray],
    milliseconds: int,
    size: tuple[int, int] | None = None,
) -> None:
    """Write images as an animation that repeats.

    All frames share a palette and are not dithered, so that unchanged parts of a frame need almost no space.

    Args:
        path: File to write.
        images: Frames, uint8 [height, width, 3], at least one, all of the same size.
        milliseconds: Duration of a frame, a multiple of 10, since the format's unit is a hundredth of a second.
        size: Width and height in pixels to which frames are scaled; None to keep their size.

    Raises:
        ImportError: pillow is not installed.
    """
    from PIL import Image

    frames = [Image.fromarray(image) for image in images]
    if size is not None:
        frames = [frame.resize(size, Image.Resampling.LANCZOS) for frame in frames]
    sample = frames[:: max(1, len(frames) // SAMPLED)]
    sheet = Image.fromarray(np.concatenate([np.asarray(frame) for frame in sample]))
    palette = sheet.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(
        path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True
    )
