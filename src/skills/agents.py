"""Trained agents: their checkpoints, and the episodes by which all agents are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runcatalog import record
from skills.acting import Agent, NetworkAgent
from skills.levels import STAGES, levels_of
from skills.mixing import Mixture
from skills.network import Network, Shape, count, split
from skills.playing import IN_ENGINE, Played, Watch, play
from skills.state import Levels

VALIDATION, TEST = range(1 << 20, (1 << 20) + 100_000), range(1_000)
"""Seeds of the levels that are looked at while training, and of those that are reported. Training has others, from
`playing.FIRST_TRAINING_SEED` on."""

GATE = "gate"  # the part of a mixture that is no expert


def load(path: str | Path) -> Agent:
    """Returns the agent of a run or a checkpoint; what it can do is told in `skills.acting`.

    Raises:
        UserError: There is none.
    """
    checkpoint = record.load_checkpoint(path)
    try:
        state, tensors = checkpoint.state, checkpoint.tensors
        if "experts" not in state:
            network = _network(state["shape"], tensors)
            return NetworkAgent(network, state["stage"], checkpoint.run_id)
        gate = NetworkAgent(_network(state["shape"], within(tensors, GATE)))
        experts = {
            name: NetworkAgent(_network(each["shape"], within(tensors, name)), each["stage"], each["run_id"])
            for name, each in state["experts"].items()
        }  # fmt: skip
        return Mixture(gate, experts, state["stage"], checkpoint.run_id)
    except (KeyError, TypeError, ValueError) as error:
        raise record.UserError(f"{path}: no agent of this study ({error})") from None


def _network(sizes: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    shape = Shape(**sizes)
    weights = np.zeros(count(shape), np.float32)
    put(weights, shape, tensors)
    return Network(shape, weights)


def specialists(folders: Mapping[str, Path]) -> dict[str, NetworkAgent]:
    """Returns the agents of single verbs, by verb.

    Raises:
        UserError: One was trained on another verb, or is no single network.
    """
    found = {}
    for verb, folder in folders.items():
        agent = load(folder)
        known = levels_of(agent.stage) if agent.stage in STAGES else {}
        if not isinstance(agent, NetworkAgent) or verb not in known:
            raise record.UserError(
                f"--{verb}: the agent of {agent.stage}, no specialist for {verb}"
            )
        found[verb] = agent
    return found


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
    agent: Agent,
    levels: str | Levels,
    seeds: range,
    uniform: np.random.Generator,
    make: Callable[..., Any] = IN_ENGINE,
    watch: Watch | None = None,
) -> dict[str, Played]:
    """Episodes of the given seeds: actions drawn from the policy, which `watch` sees, and the likeliest ones.

    See `playing.play`.
    """
    return {
        "sampled": play(agent, levels, seeds, uniform, make, watch),
        "greedy": play(agent, levels, seeds, None, make),
    }


def about(shape: Shape, stage: str) -> dict[str, Any]:
    """What a checkpoint has to tell beside its weights, for :func:`load`."""
    return {"shape": dict(vars(shape)), "stage": stage}


def about_experts(experts: Mapping[str, NetworkAgent]) -> dict[str, Any]:
    """What that of a mixture has to tell besides, by name of the expert."""
    return {
        name: about(each.network.shape, each.stage) | {"run_id": each.run_id}
        for name, each in experts.items()
    }


def tensors_of(network: Network, before: str = "") -> dict[str, torch.Tensor]:
    """A network's weights by name, as a checkpoint has them; `before`: the name of a part of an agent."""
    start = f"{before}/" if before else ""
    return {start + name: torch.from_numpy(view) for name, view in network.weights.items()}


def within(tensors: Mapping[str, torch.Tensor], part: str) -> dict[str, torch.Tensor]:
    """The weights of a part of an agent."""
    start = f"{part}/"
    return {name[len(start) :]: each for name, each in tensors.items() if name.startswith(start)}
