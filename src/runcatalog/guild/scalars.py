"""Scalars in the TensorBoard event files that Guild and a script wrote to a run's directory.

Guild saves `key: value` lines of the output in `.guild/`; a script may write event files anywhere in its
directory. Names are as in Guild: `loss`, and `logs/train#loss` for a file in a folder.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from runcatalog.model.errors import CatalogError

Point = tuple[int, float]
_MAX_BYTES = 1 << 29  # largest total size of a run's event files that are read
_MAX_METRICS = 200  # per run
_FLOATS = (1, 2)  # floating-point types of a tensor


def event_files(directory: Path, since: int = 0) -> list[Path]:
    """Return the event files in a run's directory, sorted; links and other hidden folders are not followed.

    Args:
        directory: The run's directory.
        since: When its last session began [ms since the epoch]; files that were last written before are left out.
    """
    paths = []
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
        paths += [Path(folder, name) for name in names if ".tfevents." in name]
    return sorted(
        path
        for path in paths
        if not path.is_symlink() and path.stat().st_mtime_ns >= 1_000_000 * since
    )


def stamp(files: Sequence[Path], directory: Path) -> str:
    """Return a digest of the files' names, sizes and times; "" without files."""
    parts = []
    for path in files:
        stat = path.stat()
        parts.append(f"{path.relative_to(directory)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else ""


def points(directory: Path, files: Sequence[Path], needed: str = "") -> dict[str, list[Point]]:
    """Return the points by scalar, sorted by step; the last value of a step counts, as in `guild compare`.

    The values of a scalar without steps are numbered from 0. Of very many scalars the first by name are kept.

    Args:
        directory: The run's directory.
        files: Its event files.
        needed: A scalar that is always kept, such as the objective.

    Raises:
        CatalogError: The files are too large.
    """
    if sum(path.stat().st_size for path in files) > _MAX_BYTES:
        raise CatalogError(f"its event files are larger than {_MAX_BYTES >> 20} MB: not read")
    logged: dict[str, list[Point]] = {}
    for path in files:
        folder = path.parent.relative_to(directory).as_posix()
        prefix = "" if folder in (".", ".guild") else f"{folder}#"
        for name, step, value in _events(path):
            logged.setdefault(prefix + name, []).append((step, value))
    by_scalar = {}
    objective = find(needed, list(logged))
    for name in sorted(sorted(logged, key=lambda name: (name != objective, name))[:_MAX_METRICS]):
        values = logged[name]
        if len(values) > 1 and all(step == 0 for step, _ in values):
            by_scalar[name] = [(number, value) for number, (_, value) in enumerate(values)]
        else:
            by_scalar[name] = sorted(dict(values).items())
    return by_scalar


def find(name: str, scalars: Sequence[str]) -> str | None:
    """Return the scalar of a name, which may lack the folder; None if there is no such scalar."""
    if name in scalars:
        return name
    return next((scalar for scalar in sorted(scalars) if scalar.endswith(f"#{name}")), None)


def _has_events(folder: Path) -> bool:
    return any(".tfevents." in entry.name for entry in os.scandir(folder))


def _events(path: Path) -> Iterator[tuple[str, int, float]]:
    """Yield (name, step, value) of the scalars in an event file; a truncated file is read up to its end."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for raw in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(raw)
        if not 0 <= event.step < 1 << 62:
            continue
        for summary in event.summary.value:
            if (value := _value(summary)) is not None:
                yield summary.tag, event.step, value


def _value(scalar: object) -> float | None:
    """Return the number of a summary; None for an image, text or other content."""
    kind = scalar.WhichOneof("value")  # type: ignore[attr-defined]
    if kind == "simple_value":
        import numpy as np

        # The shortest decimal number with this 32-bit value: 0.93, not 0.9300000071525574.
        return float(str(np.float32(scalar.simple_value)))  # type: ignore[attr-defined]
    if kind != "tensor" or scalar.tensor.dtype not in _FLOATS:  # type: ignore[attr-defined]
        return None
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(scalar.tensor)  # type: ignore[attr-defined]
    return float(array.item()) if array.size == 1 else None


def chosen(values: Sequence[Point], which: str) -> tuple[int, float]:
    """Return (step, value) of the first, last, smallest or largest value."""
    numbers = [point for point in values if not math.isnan(point[1])] or list(values)
    if which == "min":
        return min(numbers, key=lambda point: point[1])
    if which == "max":
        return max(numbers, key=lambda point: point[1])
    return values[0] if which == "first" else values[-1]
