"""Experts of behaviour cloning, loaded from the checkpoints of `bc:experts` or `pg:train algo=rloo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cartpole.policy_gradient.networks import Params
from runcatalog import record
from runcatalog.record.config import find_folder
from runcatalog.record.journal.files import read_json

ALGORITHM = "rloo"  # the source's experts are RLOO policies
# Prefixes of the policy's tensors, in order of preference: the policy that `bc:experts` selected by validation, or
# the final policy of `pg:train`.
_PREFIXES = ("expert", "policy")


@dataclass(frozen=True)
class Experts:
    """Trained policies.

    Attributes:
        policies: Stacked parameters [K, …].
        parents: Ids of the runs that trained them.
    """

    policies: Params
    parents: tuple[str, ...]

    def __len__(self) -> int:
        return len(next(iter(self.policies.values())))


def load(where: str) -> Experts:
    """Load experts.

    Args:
        where: Runs, by directory or id, or checkpoints, separated by commas.

    Raises:
        UserError: A checkpoint is missing or damaged, contains no policy for CartPole, was trained with another
            algorithm than RLOO, or has other widths than the first.
    """
    paths = [Path(part.strip()) for part in where.split(",") if part.strip()]
    if not paths:
        raise record.UserError("--experts: no run is given; give a run of bc:experts or pg:train")
    stacks: list[Params] = []
    parents: list[str] = []
    for path in paths:
        policies, run_id = _load_one(path)
        stacks.append(policies)
        parents.append(run_id)
        first, widths = _widths(stacks[0]), _widths(policies)
        if first != widths:
            raise record.UserError(f"--experts: {path} has layers {widths}, {paths[0]} has {first}")
    joined = {name: np.concatenate([stack[name] for stack in stacks]) for name in stacks[0]}
    return Experts(joined, tuple(dict.fromkeys(filter(None, parents))))


def _load_one(path: Path) -> tuple[Params, str]:
    try:
        checkpoint = record.load_checkpoint(find_folder(str(path)) or path)
    except record.UserError as error:
        raise record.UserError(
            f"--experts: {error}; `guild run bc:experts -y` makes some"
        ) from None
    _check_algorithm(checkpoint.path, path)
    for prefix in _PREFIXES:
        params = {
            name.removeprefix(f"{prefix}."): value.numpy()
            for name, value in checkpoint.tensors.items()
            if name.startswith(f"{prefix}.")
        }
        if params:
            break
    weights = params.get("w0")
    if weights is None or weights.ndim not in (2, 3):
        raise record.UserError(f"--experts: {path} contains no policy for CartPole")
    if weights.ndim == 2:
        params = {name: value[None] for name, value in params.items()}
    return params, checkpoint.run_id


def _check_algorithm(checkpoint: Path, path: Path) -> None:
    """Check the algorithm of the run directory that contains a checkpoint, if there is one."""
    for parent in checkpoint.resolve().parents:
        static = read_json(parent / "journal" / "run.json")
        if static is None:
            continue
        algorithm = static.get("flags", {}).get("algo", ALGORITHM)
        if algorithm != ALGORITHM:
            raise record.UserError(
                f"--experts: {path} was trained with algo={algorithm}; an expert has "
                f"algo={ALGORITHM} (name a run: expert=RUN)"
            )
        return


def _widths(params: Params) -> list[tuple[int, ...]]:
    return [value.shape[1:] for name, value in params.items() if name.startswith("w")]
