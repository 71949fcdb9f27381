"""Snapshots of policies during a run, from which any task can be evaluated afterwards.

A snapshot has about 22 kB per task; a checkpoint, from which training continues, has 48 MB with a hypernetwork.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from runcatalog import record

FOLDER = "policies"


def save(folder: Path, update: int, policies: Sequence[tuple[str, Policy]]) -> Path:
    """Save the policies of an update; a file of the same update is replaced atomically.

    Args:
        folder: The run's directory.
        update: Number of the update, 0 before the first.
        policies: Task and policy per task so far, in the order of learning.

    Returns:
        The file, ``policies/<update>.safetensors``.
    """
    import safetensors.torch

    tensors: dict[str, torch.Tensor] = {}
    about = []
    for index, (task, policy) in enumerate(policies):
        for name, tensor in enumerate(policy.tensors):
            tensors[f"{index}/actor/{name}"] = tensor.contiguous()
        state = policy.normaliser.state()
        about.append({"task": task, "squash": policy.squash, "normaliser": state})
    path = folder / FOLDER / f"{update:06d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    safetensors.torch.save_file(tensors, temporary, metadata={"policies": json.dumps(about)})
    temporary.replace(path)
    return path


def load(path: Path) -> list[tuple[str, Policy]]:
    """Load task and policy per task, in the order of learning.

    Raises:
        record.UserError: The file is damaged or of another kind.
    """
    import safetensors

    try:
        with safetensors.safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["policies"])
            names = sorted(file.keys(), key=lambda name: int(name.rpartition("/")[2]))
            tensors = {name: file.get_tensor(name) for name in names}
        return [_policy(index, description, tensors) for index, description in enumerate(about)]
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise record.UserError(f"{path} is no snapshot of policies: {error}") from None


def _policy(index: int, about: dict, tensors: dict[str, torch.Tensor]) -> tuple[str, Policy]:
    actor = [tensor for name, tensor in tensors.items() if name.startswith(f"{index}/actor/")]
    normaliser = ObservationNormaliser(actor[0].shape[1])
    normaliser.set_state(about["normaliser"])
    return str(about["task"]), Policy(actor, normaliser, squash=bool(about["squash"]))


def paths(folder: Path) -> list[tuple[int, Path]]:
    """Return updates and files of a run's directory, by update."""
    files = (folder / FOLDER).glob("[0-9]*.safetensors")
    return sorted((int(path.stem), path) for path in files)
