"""Checkpoints: written under a temporary name, synced, renamed; loaded without unpickling code.

Where torch is not installed, weights are numpy arrays and the state is JSON.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runcatalog.record.digest import file_digest
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import read_json, sync_directory, write_json
from runcatalog.record.journal.metrics import changes_since, checked_step

if TYPE_CHECKING:
    import torch

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "checkpoint.json"
PLAIN_STATE = "state.json"  # instead of STATE where torch is not installed
_ARRAY = "__ndarray__"
_PLAIN = (str, bytes, bool, int, float, complex)  # not their subclasses, which are pickled by name
_UNUSABLE = ".unusable"  # after the name of a checkpoint that a resumed run could not load
# Errors of torch for files of another format, and of unpacking unexpected content.
_DAMAGES = (RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError)


class Checkpoint(NamedTuple):
    """A checkpoint in memory.

    Attributes:
        step: Step at which it was saved.
        tensors: Weights by name, on the CPU; numpy arrays where torch is not installed.
        state: Everything else: optimizer, random number generators, environments.
        path: Its folder.
        run_id: Id of the run that wrote it; "" if unknown.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    path: Path
    run_id: str


class TorchMissing(UserError):
    """A checkpoint is whole, but only torch can load it."""


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    keep: int | None = None,
    run_id: str = "",
    metrics: Mapping[str, Any] | None = None,
    commit: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Path:
    """Save a checkpoint atomically.

    Args:
        folder: The run's ``checkpoints`` folder.
        step: Step; a checkpoint of the same step is replaced.
        tensors: Weights by name (torch tensors or numpy arrays).
        state: Tensors, numpy arrays, numbers, strings and nested dicts, lists and tuples of them.
        keep: Number of newest checkpoints to keep; None keeps all.
        run_id: Id of the run.
        metrics: State of the run's metrics file, which :func:`refuse_damaged_metrics` compares at a resume.
        commit: Called to enter a context in which the complete checkpoint gets its name and old ones are deleted.

    Returns:
        The checkpoint's folder, ``<step:08d>``.

    Raises:
        TypeError: The state contains a type that ``weights_only=True`` cannot load.
        ValueError: The step is not a whole number from 0 on.
    """
    step = checked_step(step)
    path = folder / f"{step:08d}"
    temporary = folder / f".writing-{path.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        names = (
            _write(temporary, tensors, state)
            if _has_torch()
            else _write_plain(temporary, tensors, state)
        )
        files = {name: file_digest(temporary / name) for name in names}
        for name in files:
            _sync_file(temporary / name)
        manifest = {"step": step, "created": int(time.time() * 1000), "files": files}
        manifest |= {"run": run_id} | ({"metrics": dict(metrics)} if metrics else {})
        write_json(temporary / MANIFEST, manifest)
        with commit():
            # Also a name of this step, so that readers find one of the two at any time.
            replaced = folder / f"0{path.name}"
            if path.exists():
                shutil.rmtree(replaced, ignore_errors=True)
                os.rename(path, replaced)
            os.rename(temporary, path)
            sync_directory(folder)
            shutil.rmtree(folder / f"{path.name}{_UNUSABLE}", ignore_errors=True)
            if replaced.exists():
                os.rename(replaced, temporary)
                shutil.rmtree(temporary, ignore_errors=True)
            if keep is not None:
                for old in checkpoints_in(folder)[max(keep, 1) :]:
                    if old != path:
                        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path


def refuse_damaged_metrics(folder: Path, metrics: Path, hint: str) -> None:
    """Check that the points before the newest checkpoint are there; later ones are computed again by a resume.

    Args:
        folder: The run's ``checkpoints`` folder.
        metrics: The run's metrics file.
        hint: How to start a new run.

    Raises:
        UserError: Points before the checkpoint are damaged or missing.
    """
    manifests = ((path, read_json(path / MANIFEST)) for path in checkpoints_in(folder))
    path, manifest = next(((p, m) for p, m in manifests if m is not None), (folder, {}))
    written = manifest.get("metrics")
    if isinstance(written, dict) and (lost := changes_since(metrics, written)):
        raise UserError(
            f"{metrics}: damaged before checkpoint {path.name.lstrip('0') or 0}, from which the run would continue: "
            f"{lost}; restore the file from a copy, or {hint}"
        )


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _write(folder: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """Write weights and state with torch; return the names of the files."""
    import safetensors.torch
    import torch

    weights = {name: _plain_tensor(tensor) for name, tensor in tensors.items()}
    safetensors.torch.save_file(weights, folder / WEIGHTS)
    with (folder / STATE).open("wb") as file:  # torch's own writer hides that a disk is full
        torch.save(_pack(dict(state), "state"), file)
    return WEIGHTS, STATE


def _write_plain(
    folder: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[str, str]:
    """Write weights and state without torch; return the names of the files."""
    import numpy as np
    import safetensors.numpy

    # Not ascontiguousarray, which gives a number one dimension.
    weights = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    safetensors.numpy.save_file(weights, folder / WEIGHTS)
    text = json.dumps(_pack_plain(dict(state), "state"))
    (folder / PLAIN_STATE).write_text(text, encoding="utf-8")
    return WEIGHTS, PLAIN_STATE


def load_checkpoint(path: str | os.PathLike[str], step: int | None = None) -> Checkpoint:
    """Load a checkpoint.

    Args:
        path: A run's directory, its ``checkpoints`` folder, or one checkpoint's folder.
        step: Step to load; by default the newest.

    Raises:
        UserError: There is no such checkpoint, or it is damaged.
    """
    return _load(find_checkpoint(path, step))


def find_checkpoint(path: str | os.PathLike[str], step: int | None = None) -> Path:
    """Return the folder that :func:`load_checkpoint` would load; same arguments and errors."""
    given = Path(path)
    if given.is_file():
        raise UserError(
            f"checkpoint {given}: a file; a folder with {WEIGHTS} is expected (a pickle could run code, "
            "none is loaded)"
        )
    if not given.is_dir():
        raise UserError(f"checkpoint {given}: no such directory")
    if (given / MANIFEST).exists() or (given / WEIGHTS).exists():
        return given
    folder = given / "checkpoints" if (given / "checkpoints").is_dir() else given
    checkpoints = checkpoints_in(folder)
    if step is not None:
        requested = next((path for path in checkpoints if int(path.name) == step), None)
        if requested is None:
            steps = (
                ", ".join(str(int(checkpoint.name)) for checkpoint in reversed(checkpoints))
                or "none"
            )
            raise UserError(f"checkpoint {given}: no step {step} (steps: {steps})")
        return requested
    if not checkpoints:
        raise UserError(f"checkpoint {given}: no checkpoint there: the run has written none")
    return checkpoints[0]


def newest_checkpoint(
    folder: Path, skip: Callable[[Path, UserError], None] = lambda path, error: None
) -> Checkpoint | None:
    """Return the newest checkpoint that can be loaded, or None.

    Args:
        folder: The run's ``checkpoints`` folder.
        skip: Called with each newer one and the reason why it cannot be loaded.
    """
    for path in checkpoints_in(folder):
        try:
            return _load(path)
        except UserError as error:
            skip(path, error)
    return None


def put_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be loaded, so that later ones of lower steps are the newest; return its path."""
    aside = path.with_name(f"{path.name}{_UNUSABLE}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    return aside


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints, newest first."""
    if not folder.is_dir():
        return []
    checkpoints = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    # The longer name is of a checkpoint that was being replaced.
    return sorted(checkpoints, key=lambda path: (int(path.name), -len(path.name)), reverse=True)


def check_files(path: Path) -> None:
    """Raise UserError if a checkpoint's files are not those of its manifest; nothing is loaded."""
    _checked_manifest(path)


def _load(path: Path) -> Checkpoint:
    import safetensors

    step, run_id = _checked_manifest(path)
    try:
        if _has_torch():
            from safetensors.torch import load_file

            tensors: dict[str, Any] = load_file(path / WEIGHTS)
        else:
            from safetensors.numpy import load_file as load_arrays

            tensors = load_arrays(path / WEIGHTS)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"checkpoint {path}: {WEIGHTS} is damaged ({_short(error)})") from None
    name = _state_name(path)
    try:
        state = _read_state(path, name)
    except pickle.UnpicklingError:
        raise UserError(
            f"checkpoint {path}: {STATE} contains more than tensors and plain values (a pickle could run "
            "code): refused"
        ) from None
    except _DAMAGES as error:
        raise UserError(f"checkpoint {path}: {name} is damaged ({_short(error)})") from None
    if not isinstance(state, dict):
        raise UserError(f"checkpoint {path}: {name} is not the state of a run")
    return Checkpoint(step, tensors, state, path, run_id)


def _read_state(path: Path, name: str) -> Any:
    if name == PLAIN_STATE:
        return _unpack_plain(json.loads((path / name).read_text(encoding="utf-8")))
    if not _has_torch():
        raise TorchMissing(f"checkpoint {path}: torch wrote {STATE}; install torch to load it")
    import torch

    return _unpack(torch.load(path / STATE, weights_only=True, map_location="cpu"))


def _state_name(path: Path) -> str:
    return PLAIN_STATE if (path / PLAIN_STATE).is_file() else STATE


def _checked_manifest(path: Path) -> tuple[int, str]:
    """Check both files against the manifest's digests; return (step, run id).

    The folder is untrusted: nothing outside of it is opened.
    """
    manifest = read_json(path / MANIFEST)
    if manifest is None:
        raise UserError(f"checkpoint {path}: {MANIFEST} is missing or damaged")
    files, step, run_id = (manifest.get(name) for name in ("files", "step", "run"))
    if not isinstance(files, dict) or type(step) is not int or not isinstance(run_id or "", str):
        raise UserError(f"checkpoint {path}: {MANIFEST} is not a checkpoint's manifest")
    known = (WEIGHTS, _state_name(path))
    for name in sorted({*known, *files}):
        if name not in known:
            raise UserError(f"checkpoint {path}: {MANIFEST} names {name[:80]!r}: refused")
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            raise UserError(f"checkpoint {path}: {name} leads out of the folder: refused")
        if not file.is_file() or file_digest(file) != files.get(name):
            raise UserError(f"checkpoint {path}: {name} is missing or damaged")
    return step, run_id or ""


def _short(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


def _plain_tensor(tensor: Any) -> torch.Tensor:
    import torch

    # A copy, since safetensors rejects tensors that share memory, such as tied weights.
    return torch.as_tensor(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)


def _pack(value: Any, where: str) -> Any:
    """Convert numpy values to ones that ``weights_only=True`` loads; raise TypeError for other types."""
    import numpy as np
    import torch

    if isinstance(value, np.generic):  # before float, which np.float64 is too
        value = value.item()
    if isinstance(value, torch.Tensor):
        return value.detach()
    if value is None or type(value) in _PLAIN or isinstance(value, torch.dtype):
        return value
    if isinstance(value, np.ndarray):
        try:
            return {_ARRAY: torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))}
        except TypeError:
            raise TypeError(f"{where}: arrays of {value.dtype} cannot be saved") from None
    if isinstance(value, Mapping):
        return {_pack(k, where): _pack(item, f"{where}[{k!r}]") for k, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(f"{where}: a {type(value).__name__} cannot be saved in a checkpoint")


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return value[_ARRAY].numpy()
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_unpack(item) for item in value)
    return value


def _pack_plain(value: Any, where: str) -> Any:
    """Convert a value for JSON, mappings to objects with the type as their only key; inverse of `_unpack_plain`."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        data = base64.b64encode(value.tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, Mapping):
        items = [
            [_pack_plain(k, where), _pack_plain(v, f"{where}[{k!r}]")] for k, v in value.items()
        ]
        return {"items": items}
    if isinstance(value, list | tuple):
        items = [_pack_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    kind = (
        f"arrays of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    )
    raise TypeError(f"{where}: {kind} cannot be saved in a checkpoint")


def _unpack_plain(value: Any) -> Any:
    import numpy as np

    if isinstance(value, list):
        return [_unpack_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "items":
        return {_unpack_plain(k): _unpack_plain(v) for k, v in content}
    if kind == "tuple":
        return tuple(_unpack_plain(item) for item in content)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind != "array":
        raise ValueError(f"an unknown kind of value, {kind[:40]!r}")
    dtype, shape, data = content
    if np.dtype(dtype).kind not in "biufc":
        raise ValueError(f"an array of {dtype!r}")
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
