"""What acts: a network, or a mixture of several, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from skills import gates
from skills.engine import Step
from skills.films import Array, Films, Missions
from skills.network import Network, Sequences


class Agent(ABC):
    """Acts in N environments at once.

        memory = agent.start(N)
        while ...:
            memory[begins] = 0  # a row where an episode begins, or another task
            actions, memory = agent.act(step, memory, uniform)
            step = engine.step(actions)

    Args:
        stage: That it was trained on last.
        run_id: Of the run that trained it; empty if there is none.
        width: Of a row of the memory.
    """

    def __init__(self, stage: str, run_id: str, width: int) -> None:
        self.stage, self.run_id, self.width = stage, run_id, width

    def start(self, count: int) -> Array:
        """The empty memory of `count` environments, float32 [N, width]."""
        return np.zeros((count, self.width), np.float32)

    @abstractmethod
    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """Returns logits of the actions and a value, float32 [N, ACTIONS + 1], and the memory after; new arrays.

        Args:
            step: What is seen: `image`, `direction` and `mission` of N environments.
            memory: float32 [N, width]; stays as it is.
        """

    def act(
        self, step: Step, memory: Array, uniform: np.random.Generator | None = None
    ) -> tuple[NDArray[np.int64], Array]:
        """Returns actions, int64 [N], and the memory after.

        Args:
            step, memory: As of :meth:`policy`.
            uniform: Draws the actions; None: the likeliest is taken each time.
        """
        outputs, memory = self.policy(step, memory)
        return choose(outputs, uniform), memory


def choose(outputs: Array, uniform: np.random.Generator | None) -> NDArray[np.int64]:
    """Returns actions, int64 [N], drawn from logits and value, float32 [N, ACTIONS + 1]; None: the likeliest ones."""
    count = len(outputs)
    draws = np.zeros(count) if uniform is None else uniform.random(count)
    actions, log_probs = np.zeros(count, np.int64), np.zeros(count, np.float32)
    gates.choose(outputs, draws, uniform is None, actions, log_probs)
    return actions


class NetworkAgent(Agent):
    """A network that acts by itself. When its weights change, another one has to be made.

    Args:
        network: With its weights.
        stage, run_id: See `Agent`.
    """

    def __init__(self, network: Network, stage: str = "", run_id: str = "") -> None:
        super().__init__(stage, run_id, network.shape.kept)
        self.network = network
        self._missions = Missions()
        self._films: Films | None = None

    def policy(self, step: Step, memory: Array) -> tuple[Array, Array]:
        """See `Agent`; of a gate's network the logits are those of the experts."""
        count = len(memory)
        rows = self._missions.rows(step.mission)[None]
        if self._films is None or len(self._missions.codes) > len(self._films.codes):
            self._films = self.network.films(self._missions)
        image = step.image.reshape(1, count, -1)
        goes_on = np.zeros((1, count), bool)
        everyone = np.arange(count)
        seen = Sequences(image, step.direction[None], rows, goes_on, memory, everyone)
        outputs = self.network.forward(seen, self._films)[0].copy()
        return outputs, self.network.memory_after.copy()

    def copy(self) -> NetworkAgent:
        """Another one with the same weights, for another thread."""
        return NetworkAgent(Network(self.network.shape, self.network.flat), self.stage, self.run_id)
