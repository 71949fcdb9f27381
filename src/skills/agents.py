"""Trained agents: their checkpoints, and the episodes by which all agents are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import record
from skills.network import Network, Shape, count, split
from skills.playing import IN_ENGINE, Played, play
from skills.state import Levels

VALIDATION, TEST = range(1 << 20, (1 << 20) + 100_000), range(1_000)
"""Seeds of the levels that are looked at while training, and of those that are reported. Training has others, from
`playing.FIRST_TRAINING_SEED` on."""


class Agent(NamedTuple):
    """An agent as its run left it.

    Attributes:
        network: With its weights.
        stage: That it was trained on last, or an environment of BabyAI.
        run_id: Of the run.
    """

    network: Network
    stage: str
    run_id: str


def load(path: str | Path) -> Agent:
    """Returns the agent of a run or a checkpoint.

    Raises:
        UserError: There is none.
    """
    checkpoint = record.load_checkpoint(path)
    try:
        shape = Shape(**checkpoint.state["shape"])
        weights = np.zeros(count(shape), np.float32)
        put(weights, shape, checkpoint.tensors)
        return Agent(Network(shape, weights), checkpoint.state["stage"], checkpoint.run_id)
    except (KeyError, TypeError, ValueError) as error:
        raise record.UserError(f"{path}: no agent of this study ({error})") from None


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
    network: Network,
    levels: str | Levels,
    seeds: range,
    uniform: np.random.Generator,
    make: Callable[..., Any] = IN_ENGINE,
) -> dict[str, Played]:
    """Episodes of the given seeds: actions drawn from the policy, and the likeliest ones; see `playing.play`."""
    return {
        "sampled": play(network, levels, seeds, uniform, make),
        "greedy": play(network, levels, seeds, None, make),
    }


def about(shape: Shape, stage: str) -> dict[str, Any]:
    """What a checkpoint has to tell beside its weights, for :func:`load`."""
    return {"shape": dict(vars(shape)), "stage": stage}
