"""Scalars that Guild and a script itself left in a run's directory as TensorBoard events.

Guild captures `key: value` lines of the output into `.guild/`; a script may write event files of its own anywhere in
its directory. Names are Guild's: `loss`, and `logs/train#loss` for a file in a folder.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from runcatalog.model.errors import CatalogError

Point = tuple[int, float]
_LARGEST = 1 << 29  # bytes of event files that are read of a run
_MOST = 200  # metrics of a run
_FLOATS = (1, 2)  # types of a tensor that hold floating-point numbers


def event_files(directory: Path) -> list[Path]:
    """Return the event files in a run's directory, sorted; links and other hidden folders are not followed."""
    found = []
    for folder, folders, names in os.walk(directory):
        top = Path(folder) == directory
        hidden = [
            name for name in folders if name.startswith(".") and not (top and name == ".guild")
        ]
        for name in hidden:
            folders.remove(name)
        if top and ".guild" in folders and not _has_events(directory / ".guild"):
            folders.remove(".guild")
        elif Path(folder) == directory / ".guild":
            folders.clear()
        found += [Path(folder, name) for name in names if ".tfevents." in name]
    return sorted(path for path in found if not path.is_symlink())


def stamp(files: Sequence[Path], directory: Path) -> str:
    """Return what changes when one of the files in a run's directory changes; "" of none."""
    parts = []
    for path in files:
        stat = path.stat()
        parts.append(f"{path.relative_to(directory)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else ""


def points(directory: Path, files: Sequence[Path]) -> dict[str, list[Point]]:
    """Return the points of each scalar, by step; of one step the last value counts, as in `guild compare`.

    A scalar that was never told a step has its values numbered from 0.

    Raises:
        CatalogError: The files are too large.
    """
    if sum(path.stat().st_size for path in files) > _LARGEST:
        raise CatalogError(f"its event files are larger than {_LARGEST >> 20} MB: not read")
    told: dict[str, list[Point]] = {}
    for path in files:
        folder = path.parent.relative_to(directory).as_posix()
        prefix = "" if folder in (".", ".guild") else f"{folder}#"
        for name, step, value in _events(path):
            told.setdefault(prefix + name, []).append((step, value))
    found = {}
    for name in sorted(told)[:_MOST]:
        values = told[name]
        if len(values) > 1 and all(step == 0 for step, _ in values):
            found[name] = [(number, value) for number, (_, value) in enumerate(values)]
        else:
            found[name] = sorted(dict(values).items())
    return found


def find(name: str, scalars: Sequence[str]) -> str | None:
    """Return the scalar that a name means, in any folder if it names none; None if there is no such scalar."""
    if name in scalars:
        return name
    return next((each for each in sorted(scalars) if each.endswith(f"#{name}")), None)


def _has_events(folder: Path) -> bool:
    return any(".tfevents." in entry.name for entry in os.scandir(folder))


def _events(path: Path) -> Iterator[tuple[str, int, float]]:
    """(name, step, value) of each scalar in an event file; a file that was cut short is read as far as it goes."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for raw in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(raw)
        if not 0 <= event.step < 1 << 62:
            continue
        for each in event.summary.value:
            if (value := _value(each)) is not None:
                yield each.tag, event.step, value


def _value(scalar: object) -> float | None:
    """The number of a summary; None for an image, a text or another thing."""
    kind = scalar.WhichOneof("value")  # type: ignore[attr-defined]
    if kind == "simple_value":
        import numpy as np

        # The shortest number that is this one in 32 bits: 0.93, not 0.9300000071525574.
        return float(str(np.float32(scalar.simple_value)))  # type: ignore[attr-defined]
    if kind != "tensor" or scalar.tensor.dtype not in _FLOATS:  # type: ignore[attr-defined]
        return None
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(scalar.tensor)  # type: ignore[attr-defined]
    return float(array.item()) if array.size == 1 else None


def chosen(values: Sequence[Point], which: str) -> tuple[int, float]:
    """Return (step, value) of the first, last, smallest or largest value."""
    finite = [each for each in values if not math.isnan(each[1])] or list(values)
    if which == "min":
        return min(finite, key=lambda each: each[1])
    if which == "max":
        return max(finite, key=lambda each: each[1])
    return values[0] if which == "first" else values[-1]
