"""Trained agents: their checkpoints, and the episodes by which all agents are judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import record
from skills.acting import Agent, NetworkAgent
from skills.network import Network, Shape, count, split
from skills.playing import Played, play
from skills.state import Levels

VALIDATION, TEST = range(1 << 20, (1 << 20) + 100_000), range(1_000)
"""Seeds of the levels that are looked at while training, and of those that are reported. Training has others, from
`playing.FIRST_TRAINING_SEED` on."""


def load(path: str | Path) -> Agent:
    """Returns the agent of a run or a checkpoint; what it can do is told in `skills.acting`.

    Raises:
        UserError: There is none.
    """
    checkpoint = record.load_checkpoint(path)
    try:
        network = _network(checkpoint.state["shape"], checkpoint.tensors)
        return NetworkAgent(network, checkpoint.state["stage"], checkpoint.run_id)
    except (KeyError, TypeError, ValueError) as error:
        raise record.UserError(f"{path}: no agent of this study ({error})") from None


def _network(sizes: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    shape = Shape(**sizes)
    weights = np.zeros(count(shape), np.float32)
    put(weights, shape, tensors)
    return Network(shape, weights)


def put(weights: np.ndarray, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a checkpoint's weights into a vector.

    Raises:
        ValueError: They are those of a network of another shape.
    """
    views = split(weights, shape)
    if {name: view.shape for name, view in views.items()} != {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }:
        raise ValueError("it has other layers than this network")
    for name, view in views.items():
        view[:] = tensors[name].numpy()


def both(
    agent: Agent, levels: str | Levels, seeds: range, uniform: np.random.Generator
) -> dict[str, Played]:
    """Episodes of the given seeds: actions drawn from the policy, and the likeliest ones."""
    return {
        "sampled": play(agent, levels, seeds, uniform),
        "greedy": play(agent, levels, seeds, None),
    }


def about(shape: Shape, stage: str) -> dict[str, Any]:
    """What a checkpoint has to tell beside its weights, for :func:`load`."""
    return {"shape": dict(vars(shape)), "stage": stage}
