"""Animated GIFs: the same images give the same bytes on machines that render alike."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

COLOURS = 96  # of the palette; more cost bytes and are not seen in drawn scenes
SAMPLED = 8  # frames that the palette is made from


def write(
    path: Path,
    images: Iterable[np.ndarray],
    milliseconds: int,
    size: tuple[int, int] | None = None,
) -> None:
    """Write images as an animation that repeats.

    All frames share one palette and are not dithered, so that what stays the same between frames costs next to nothing.

    Args:
        path: File to write.
        images: Frames, uint8 [height, width, 3], at least one, all of one size.
        milliseconds: Duration of a frame, a multiple of 10: the format counts in hundredths of a second.
        size: Width and height in pixels that frames are scaled to; None leaves them.

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
