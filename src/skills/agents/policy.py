"""Agents behind one interface: a network, or a mixture of several (`skills.agents.mixture`)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from skills.agents import kernels
from skills.agents.film_layers import Array, FilmTables, MissionIndex
from skills.agents.network import Network, Sequences
from skills.levels.engine import Step


class Agent(ABC):
    """An agent that acts in N environments at once.

        memory = agent.start(N)
        while ...:
            memory[begins] = 0  # rows in which an episode, or another task, begins
            actions, memory = agent.act(step, memory, uniform)
            step = engine.step(actions)

    Args:
        stage: Stage of its last training.
        run_id: Id of the run that trained it, or "".
        width: Size of the memory per environment.
    """

    def __init__(self, stage: str, run_id: str, width: int) -> None:
        self.stage, self.run_id, self.width = stage, run_id, width

    def start(self, count: int) -> Array:
        """Return the empty memory of `count` environments, float32 [N, width]."""
        return np.zeros((count, self.width), np.float32)

    @abstractmethod
    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """Return logits of the actions and the value, float32 [N, ACTIONS + 1], and the next memory; new arrays.

        Args:
            step: Observations: `image`, `direction` and `mission` of N environments.
            memory: float32 [N, width], not changed.
        """

    def act(
        self, step: Step, memory: Array, uniform: np.random.Generator | None = None
    ) -> tuple[NDArray[np.int64], Array]:
        """Return actions, int64 [N], and the next memory.

        Args:
            step, memory: See :meth:`policy`.
            uniform: Draws the actions; None: the most probable ones.
        """
        outputs, memory = self.policy(step, memory)
        return sample_actions(outputs, uniform), memory


def sample_actions(outputs: Array, uniform: np.random.Generator | None) -> NDArray[np.int64]:
    """Return actions, int64 [N], drawn from logits and value [N, ACTIONS + 1]; None: the most probable ones."""
    count = len(outputs)
    draws = np.zeros(count) if uniform is None else uniform.random(count)
    actions, log_probs = np.zeros(count, np.int64), np.zeros(count, np.float32)
    kernels.sample_actions(outputs, draws, uniform is None, actions, log_probs)
    return actions


class NetworkAgent(Agent):
    """An agent of one network. Its weights must not change afterwards, since FiLM tables are cached.

    Args:
        network: The network with its weights.
        stage, run_id: See `Agent`.
    """

    def __init__(self, network: Network, stage: str = "", run_id: str = "") -> None:
        super().__init__(stage, run_id, network.shape.kept)
        self.network = network
        self._missions = MissionIndex()
        self._film: FilmTables | None = None

    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """See `Agent`; of a gate: logits of the experts to choose from."""
        count = len(memory)
        rows = self._missions.rows(step.mission)[None]
        if self._film is None or len(self._missions.codes) > len(self._film.codes):
            self._film = self.network.film_tables(self._missions)
        image = step.image.reshape(1, count, -1)
        begins, columns = np.zeros((1, count), bool), np.arange(count)
        inputs = Sequences(image, step.direction[None], rows, begins, memory, columns)
        outputs = self.network.forward(inputs, self._film)[0].copy()
        return outputs, self.network.memory_after.copy()

    def copy(self) -> NetworkAgent:
        """Return an agent with the same weights and its own buffers, for another thread."""
        return NetworkAgent(Network(self.network.shape, self.network.flat), self.stage, self.run_id)
