"""A mixture of experts (Jacobs et al. 1991): a gate weighs what frozen agents would do, and learns by PPO.

An action's probability is the mean of the experts' probabilities, weighted by the gate's, which sees what they see.
All experts' memories go on in every step, whoever is listened to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skills import blends, gates
from skills.acting import Agent, NetworkAgent
from skills.codes import ACTIONS, VERBS
from skills.engine import Step
from skills.learning import Learner, Worker
from skills.network import Array
from skills.playing import Player


class Mixture(Agent):
    """A gate and its experts.

    Args:
        gate: Its network chooses among the experts.
        experts: By name.
        stage, run_id: See `Agent`.

    Attributes:
        weights: What the gate gave each expert in the last step, float32 [N, K].
    """

    def __init__(
        self,
        gate: NetworkAgent,
        experts: Mapping[str, NetworkAgent],
        stage: str = "",
        run_id: str = "",
    ) -> None:
        widths = [gate.width, *(each.width for each in experts.values())]
        super().__init__(stage, run_id, sum(widths))
        self.gate, self.experts = gate, dict(experts)
        self._cuts = np.cumsum(widths)[:-1]
        self.weights = np.zeros((0, len(experts)), np.float32)

    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """See `Agent`."""
        own, *others = np.split(memory, self._cuts, axis=1)
        outputs, own = self.gate.policy(step, own)
        opinions, others = ask(list(self.experts.values()), step, others)
        return self.weigh(step, outputs, opinions), np.concatenate([own, *others], axis=1)

    def weigh(self, step: Step, outputs: Array, opinions: Array) -> Array:
        """Log-probabilities of actions and the value, float32 [N, ACTIONS + 1]; see `blends.blend`."""
        self.weights = np.empty(opinions.shape[:2], np.float32)
        blended = np.empty((len(outputs), ACTIONS + 1), np.float32)
        blends.blend(outputs, opinions, self.weights, blended)
        return blended


class Switch(Mixture):
    """The same experts without a gate that learned: the one that is named like the mission's verb acts."""

    def weigh(self, step: Step, outputs: Array, opinions: Array) -> Array:
        """See `Mixture`."""
        names = list(self.experts)
        chosen = np.array([names.index(VERBS[verb]) for verb in step.mission[:, 0]])
        outputs = np.where(np.arange(len(names) + 1) == chosen[:, None], 0, -1e4)
        return super().weigh(step, outputs.astype(np.float32), opinions)


def ask(
    experts: Sequence[NetworkAgent], step: Step, memories: Sequence[Array]
) -> tuple[Array, list[Array]]:
    """Returns the experts' probabilities of actions, float32 [N, K, ACTIONS], and their memories after."""
    opinions = np.empty((len(step.image), len(experts), ACTIONS), np.float32)
    after = []
    for k, (expert, memory) in enumerate(zip(experts, memories, strict=True)):
        outputs, memory = expert.policy(step, memory)
        blends.softmax(outputs, opinions[:, k])
        after.append(memory)
    return opinions, after


class Mixed(Player):
    """Environments in which a mixture acts; `network` is its gate.

    Args:
        player: Arguments of `Player`.
        experts: They act.

    Attributes:
        opinions: The experts' probabilities of actions, float32 [T, N, K, ACTIONS].
        weights: What the gate gave each expert, float32 [T, N, K].
    """

    def __init__(self, *player: Any, experts: Sequence[NetworkAgent]) -> None:
        super().__init__(*player)
        self.experts = experts
        steps, count = self.actions.shape
        self.opinions = np.zeros((steps, count, len(experts), ACTIONS), np.float32)
        self.weights = np.zeros((steps, count, len(experts)), np.float32)
        self._others = [each.start(count) for each in experts]
        self._blended = np.zeros((count, ACTIONS + 1), np.float32)

    def _decide(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        for memory in self._others:
            gates.keep(memory, self.begins[t])
        self.opinions[t], self._others = ask(self.experts, self.steps.at(t), self._others)
        blends.blend(outputs, self.opinions[t], self.weights[t], self._blended)
        super()._decide(t, self._blended, draws)

    def state(self) -> dict[str, Any]:
        """See `Player`."""
        return super().state() | {"others": self._others}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Player`."""
        super().restore(state)
        self._others = [np.ascontiguousarray(each) for each in state["others"]]


class GateWorker(Worker):
    """A share of the environments of a mixture."""

    player: Mixed

    def policy(self, outputs: Any, which: Any, log_probs: Any, entropies: Any) -> None:
        """See `blends.policy`."""
        player = self.player
        blends.policy(outputs, player.opinions, player.actions, which, log_probs, entropies)

    def policy_backward(self, outputs: Any, which: Any, entropies: Any, *told: Any) -> None:
        """See `blends.policy_backward`."""
        blends.policy_backward(outputs, self.player.opinions, self.player.actions, which, *told)


class GateLearner(Learner):
    """A gate that learns.

    Args:
        experts: By name; they stay as they are.
        more: Arguments of `Learner`; the shape chooses among the experts.
    """

    def __init__(self, experts: Mapping[str, NetworkAgent], **more: Any) -> None:
        self.experts = dict(experts)
        super().__init__(frozen="nothing", **more)

    def worker(self, index: int, seeds: NDArray[np.int64]) -> Worker:
        """See `Learner`."""
        own = [each.copy() for each in self.experts.values()]
        about = (self.levels, len(seeds), self.rollout, self.network(), seeds)
        player = Mixed(*about, experts=own)
        return GateWorker(player, self.network(), np.zeros_like(self.weights.numpy()))

    @property
    def agent(self) -> Mixture:
        """See `Learner`."""
        return Mixture(NetworkAgent(self.network()), self.experts)

    def episodes(self) -> dict[str, float]:
        """See `Learner`; with the gate's mean entropy [nats]."""
        weights = np.concatenate([each.player.weights.ravel() for each in self.workers])
        weights = weights.reshape(-1, len(self.experts)).astype(np.float64)
        return super().episodes() | {"gate_entropy": float(entropy(weights).mean())}


def entropy(weights: NDArray[np.floating]) -> NDArray[np.floating]:
    """Of probabilities [..., K], in nats, [...]."""
    return -(weights * np.log(np.maximum(weights, blends.LEAST))).sum(-1)
