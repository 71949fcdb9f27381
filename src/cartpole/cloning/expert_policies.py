"""Experts of behaviour cloning: policies of `pg:train algo=rloo` or of `bc:experts`, from their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Params
from runcatalog import record
from runcatalog.record.config import find_folder
from runcatalog.record.journal import read_json

# What an expert has to have learned with: the cloned policy is to be the source's, an RLOO policy.
ALGORITHM = "rloo"
# Names of the checkpoint's tensors, the first that is there: the policy that `bc:experts` chose on its
# validation starts, or the last policy of `pg:train`.
_NETWORKS = ("expert", "policy")


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
    """Loads experts.

    Args:
        where: Runs, by directory or id, or checkpoints, separated by commas.

    Raises:
        UserError: One is missing or damaged, is no policy for CartPole, was learned with another algorithm
            than RLOO, or differs from the others in its widths.
    """
    paths = [Path(part.strip()) for part in where.split(",") if part.strip()]
    if not paths:
        raise record.UserError("--experts: none is named; give a run of bc:experts or pg:train")
    networks_found: list[Params] = []
    parents: list[str] = []
    for path in paths:
        policies, run_id = _load_one(path)
        networks_found.append(policies)
        parents.append(run_id)
        first, here = (_widths(each) for each in (networks_found[0], policies))
        if first != here:
            raise record.UserError(f"--experts: {path} has layers {here}, {paths[0]} has {first}")
    together = {
        name: np.concatenate([each[name] for each in networks_found]) for name in networks_found[0]
    }
    return Experts(together, tuple(dict.fromkeys(filter(None, parents))))


def greedy(policies: Params, observations: np.ndarray) -> np.ndarray:
    """The action with the larger logit, bool [R, N], for observations float32 [R, N, 4]."""
    logits = networks.forward(policies, observations)
    return logits[..., 1] > logits[..., 0]


def _load_one(path: Path) -> tuple[Params, str]:
    try:
        checkpoint = record.load_checkpoint(find_folder(str(path)) or path)
    except record.UserError as error:
        raise record.UserError(
            f"--experts: {error}; `guild run bc:experts -y` makes some"
        ) from None
    _check_algorithm(checkpoint.path, path)
    for network in _NETWORKS:
        params = {
            name.removeprefix(f"{network}."): value.numpy()
            for name, value in checkpoint.tensors.items()
            if name.startswith(f"{network}.")
        }
        if params:
            break
    weights = params.get("w0")
    if weights is None or weights.ndim not in (2, 3):
        raise record.UserError(f"--experts: {path} holds no policy for CartPole")
    if weights.ndim == 2:
        params = {name: value[None] for name, value in params.items()}
    return params, checkpoint.run_id


def _check_algorithm(checkpoint: Path, path: Path) -> None:
    """Looks into the journal of the run that a checkpoint lies in, if it still does."""
    for parent in checkpoint.resolve().parents:
        static = read_json(parent / "journal" / "run.json")
        if static is None:
            continue
        algorithm = static.get("flags", {}).get("algo", ALGORITHM)
        if algorithm != ALGORITHM:
            raise record.UserError(
                f"--experts: {path} was learned with algo={algorithm}; an expert has "
                f"algo={ALGORITHM} (name a run: expert=RUN)"
            )
        return


def _widths(params: Params) -> list[tuple[int, ...]]:
    return [value.shape[1:] for name, value in params.items() if name.startswith("w")]
