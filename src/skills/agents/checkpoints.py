"""Checkpoints of agents: weights by name, and the description from which `load` rebuilds the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runcatalog import record
from skills.agents.mixture import Mixture
from skills.agents.network import Network, Shape, named_views, weight_count
from skills.agents.policy import Agent, NetworkAgent
from skills.levels.stages import STAGES, stages_by_verb

GATE = "gate"  # name of the gate's weights in the checkpoint of a mixture


def load(path: str | Path) -> Agent:
    """Return the agent of a run or checkpoint.

    Raises:
        UserError: There is no agent of this study.
    """
    checkpoint = record.load_checkpoint(path)
    try:
        state, tensors = checkpoint.state, checkpoint.tensors
        if "experts" not in state:
            network = _network(state["shape"], tensors)
            return NetworkAgent(network, state["stage"], checkpoint.run_id)
        gate = NetworkAgent(_network(state["shape"], part_tensors(tensors, GATE)))
        experts = {
            name: NetworkAgent(_network(saved["shape"], part_tensors(tensors, name)), saved["stage"], saved["run_id"])
            for name, saved in state["experts"].items()
        }  # fmt: skip
        return Mixture(gate, experts, state["stage"], checkpoint.run_id)
    except (KeyError, TypeError, ValueError) as error:
        raise record.UserError(f"{path}: no agent of this study ({error})") from None


def _network(sizes: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    shape = Shape(**sizes)
    weights = np.zeros(weight_count(shape), np.float32)
    copy_weights(weights, shape, tensors)
    return Network(shape, weights)


def load_specialists(folders: Mapping[str, Path]) -> dict[str, NetworkAgent]:
    """Return the agents of single verbs, by verb.

    Raises:
        UserError: An agent was trained on another verb, or is not a single network.
    """
    agents = {}
    for verb, folder in folders.items():
        agent = load(folder)
        verbs = stages_by_verb(agent.stage) if agent.stage in STAGES else {}
        if not isinstance(agent, NetworkAgent) or verb not in verbs:
            raise record.UserError(
                f"--{verb}: the agent of {agent.stage}, no specialist for {verb}"
            )
        agents[verb] = agent
    return agents


def copy_weights(weights: np.ndarray, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a checkpoint's weights into a vector.

    Raises:
        ValueError: The network of the checkpoint has another shape.
    """
    views = named_views(weights, shape)
    if {name: view.shape for name, view in views.items()} != {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }:
        raise ValueError("its layers differ from this network's")
    for name, view in views.items():
        view[:] = tensors[name].numpy()


def description(shape: Shape, stage: str) -> dict[str, Any]:
    """Return what :func:`load` needs in addition to the weights."""
    return {"shape": dict(vars(shape)), "stage": stage}


def expert_descriptions(experts: Mapping[str, NetworkAgent]) -> dict[str, Any]:
    """Return the same for the experts of a mixture, by name."""
    return {
        name: description(expert.network.shape, expert.stage) | {"run_id": expert.run_id}
        for name, expert in experts.items()
    }


def named_tensors(network: Network, part: str = "") -> dict[str, torch.Tensor]:
    """Return a network's weights by name; names begin with `part` if it is a part of an agent."""
    prefix = f"{part}/" if part else ""
    return {prefix + name: torch.from_numpy(view) for name, view in network.weights.items()}


def part_tensors(tensors: Mapping[str, torch.Tensor], part: str) -> dict[str, torch.Tensor]:
    """Return the weights of one part of an agent."""
    prefix = f"{part}/"
    return {
        name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }
