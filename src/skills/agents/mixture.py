"""A mixture of experts (Jacobs et al. 1991): the gate's weighted mean of the experts' action probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from skills.agents import mixture_kernels
from skills.agents.film_layers import Array
from skills.agents.policy import Agent, NetworkAgent
from skills.levels.codes import ACTIONS, VERBS
from skills.levels.engine import Step


class Mixture(Agent):
    """A gate and K frozen experts: pi(a | s) = sum over k of g_k(s) pi_k(a | s).

    The memories of all experts advance in every step, whatever the gate's weights.

    Args:
        gate: Agent whose choices are the experts.
        experts: Experts by name.
        stage, run_id: See `Agent`.

    Attributes:
        weights: The gate's weights g_k in the last step, float32 [N, K].
    """

    def __init__(
        self,
        gate: NetworkAgent,
        experts: Mapping[str, NetworkAgent],
        stage: str = "",
        run_id: str = "",
    ) -> None:
        widths = [gate.width, *(expert.width for expert in experts.values())]
        super().__init__(stage, run_id, sum(widths))
        self.gate, self.experts = gate, dict(experts)
        self._memory_ends = np.cumsum(widths)[:-1]
        self.weights = np.zeros((0, len(experts)), np.float32)

    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """See `Agent`; the logits are log-probabilities."""
        gate_memory, *memories = np.split(memory, self._memory_ends, axis=1)
        outputs, gate_memory = self.gate.policy(step, gate_memory)
        probabilities, memories = expert_policies(list(self.experts.values()), step, memories)
        mixed = self.mix(step, outputs, probabilities)
        return mixed, np.concatenate([gate_memory, *memories], axis=1)

    def mix(self, step: Step, outputs: Array, probabilities: Array) -> Array:
        """Return log-probabilities of the actions and the value, float32 [N, ACTIONS + 1].

        Args:
            step: Observations.
            outputs: The gate's logits and value, float32 [N, K + 1].
            probabilities: The experts' action probabilities, float32 [N, K, ACTIONS].
        """
        self.weights = np.empty(probabilities.shape[:2], np.float32)
        mixed = np.empty((len(outputs), ACTIONS + 1), np.float32)
        mixture_kernels.mix_policies(outputs, probabilities, self.weights, mixed)
        return mixed


class Switch(Mixture):
    """The same experts behind a fixed gate: the expert named like the mission's verb acts."""

    def mix(self, step: Step, outputs: Array, probabilities: Array) -> Array:
        """See `Mixture`."""
        names = list(self.experts)
        chosen = np.array([names.index(VERBS[verb]) for verb in step.mission[:, 0]])
        outputs = np.where(np.arange(len(names) + 1) == chosen[:, None], 0, -1e4)
        return super().mix(step, outputs.astype(np.float32), probabilities)


def expert_policies(
    experts: Sequence[NetworkAgent], step: Step, memories: Sequence[Array]
) -> tuple[Array, list[Array]]:
    """Return the experts' action probabilities, float32 [N, K, ACTIONS], and their next memories."""
    probabilities = np.empty((len(step.image), len(experts), ACTIONS), np.float32)
    after = []
    for k, (expert, memory) in enumerate(zip(experts, memories, strict=True)):
        outputs, memory = expert.policy(step, memory)
        mixture_kernels.softmax(outputs, probabilities[:, k])
        after.append(memory)
    return probabilities, after


def entropy(weights: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the entropy [nats] of probabilities [..., K], [...]."""
    return -(weights * np.log(np.maximum(weights, mixture_kernels.LEAST))).sum(-1)
