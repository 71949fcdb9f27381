"""Rollouts: T steps of N environments with the actions of a network, as training needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skills.agents import kernels
from skills.agents.film_layers import Array, FilmTables, MissionIndex
from skills.agents.network import Network, Sequences
from skills.levels.engine import Step
from skills.levels.state import Levels

MOST_MISSIONS = 512  # of an index; their tables are computed anew at every gradient step


class Rollout:
    """Environments and the latest T steps that a network played in them.

    Args:
        engine: N environments with `Engine`'s `reset` and `step`, and its `potentials` if `shaping`.
        network: Plays; its weights are read at every call.
        steps: Length T.
        seeds: Seeds of the first levels, int64 [N].
        shaping: Whether to record potentials (`skills.levels.shaping`).

    Attributes:
        steps: Observations and outcomes, arrays [T + 1, N]: index t holds the observation before step t and the outcome
            of step t - 1.
        begins: Whether the observation is the first of an episode, bool [T + 1, N].
        rows: Row of the mission in `missions`, int64 [T + 1, N].
        actions: Actions a_t, int64 [T, N].
        log_probs: log pi_old(a_t | s_t), float32 [T, N].
        values: V(s_t), float32 [T + 1, N]; the last row is the value after the rollout.
        final_values: Value of the last observation of an episode that only the time limit ended, elsewhere 0;
            float32 [T, N].
        first_memory: Memory h_0 before the first step, float32 [N, kept].
        potentials: Potential of keys and locks, float32 [T + 1, N]; 0 without `shaping`.
    """

    def __init__(
        self,
        engine: Any,
        network: Network,
        steps: int,
        seeds: NDArray[np.int64],
        *,
        shaping: bool,
    ) -> None:
        count = len(seeds)
        self.engine, self.network, self._shaping = engine, network, shaping
        self._value_network = Network(network.shape, network.flat)  # keeps `network`'s memory
        self.missions = MissionIndex()
        self.steps = Step.buffers(steps + 1, count)
        self.images = self.steps.image.reshape(steps + 1, count, -1)
        self.begins = np.zeros((steps + 1, count), bool)
        self.rows = np.zeros((steps + 1, count), np.int64)
        self.actions = np.zeros((steps, count), np.int64)
        self.log_probs, self.final_values = np.zeros((2, steps, count), np.float32)
        self.values = np.zeros((steps + 1, count), np.float32)
        self.first_memory = np.zeros((count, network.shape.kept), np.float32)
        self.potentials = np.zeros((steps + 1, count), np.float32)
        self._memory = self.first_memory.copy()
        self._all = np.arange(count)
        self.engine.reset(seeds, out=self.steps.at(steps))
        self.begins[-1] = True
        self._record_potentials(steps)

    def collect(self, uniform: NDArray[np.float64]) -> None:
        """Play the next T steps.

        Args:
            uniform: Random numbers from [0, 1) that draw the actions, [T, N].
        """
        for array in (*self.steps[:3], self.begins, self.potentials):
            array[0] = array[-1]
        self.first_memory[:] = self._memory
        if len(self.missions.codes) > MOST_MISSIONS:
            self.missions = MissionIndex()
        self.rows[0] = self.missions.rows(self.steps.mission[0])
        film = self.network.film_tables(self.missions)
        timeouts: list[tuple[NDArray[Any], ...]] = []
        for t, draws in enumerate(uniform):
            outputs = self.network.forward(self._observed(t), film)[0]
            self.values[t] = outputs[:, -1]
            self._memory = self.network.memory_after
            self._act(t, outputs, draws)
            after = self.engine.step(self.actions[t], out=self.steps.at(t + 1))
            np.logical_or(after.terminated, after.truncated, out=self.begins[t + 1])
            self._record_potentials(t + 1)
            if len(only := np.flatnonzero(after.truncated & ~after.terminated)):
                timeouts.append((np.full(len(only), t), only, self._memory[only]))
            self.rows[t + 1] = self.missions.rows(after.mission)
            if len(self.missions.codes) > len(film.codes):
                film = self.network.film_tables(self.missions)
        self._memory = self._memory.copy()
        after_last = self._observed(len(uniform))
        self.values[-1] = self._value_network.forward(after_last, film)[0, :, -1]
        self._evaluate_timeouts(timeouts, film)

    def inputs(self, columns: NDArray[np.int64]) -> Sequences:
        """Return the network's inputs over the rollout for some environments, int64 [S]."""
        return Sequences(
            self.images[:-1], self.steps.direction[:-1], self.rows[:-1], self.begins[:-1],
            self.first_memory, columns,
        )  # fmt: skip

    def _act(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        """Write the actions of step t and their log-probabilities from the network's outputs, [N, ...]."""
        kernels.sample_actions(outputs, draws, False, self.actions[t], self.log_probs[t])

    def _record_potentials(self, t: int) -> None:
        if self._shaping:
            self.engine.potentials(self.potentials[t])

    def _observed(self, t: int) -> Sequences:
        now = slice(t, t + 1)
        return Sequences(
            self.images[now], self.steps.direction[now], self.rows[now], self.begins[now],
            self._memory, self._all,
        )  # fmt: skip

    def _evaluate_timeouts(
        self, timeouts: list[tuple[NDArray[Any], ...]], film: FilmTables
    ) -> None:
        """Write `final_values`, from the step, environment and memory of every timeout."""
        self.final_values[:] = 0
        if not timeouts:
            return
        t, n, memory = (np.concatenate(parts) for parts in zip(*timeouts, strict=True))
        last = Sequences(
            self.steps.last_image[t + 1, n].reshape(1, len(t), -1),
            self.steps.last_direction[t + 1, n][None],
            self.rows[t, n][None],
            np.zeros((1, len(t)), bool),
            memory,
            np.arange(len(t)),
        )
        self.final_values[t, n] = self._value_network.forward(last, film)[0, :, -1]

    def state(self) -> dict[str, Any]:
        """Return the checkpoint state, from which `restore` continues bit for bit."""
        return {
            "levels": dict(vars(self.engine.state())),
            "begins": self.begins[-1],
            "memory": self._memory,
            "missions": self.missions.codes,  # gradients are summed in their order
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state()`."""
        self.engine.load(Levels(**state["levels"]), out=self.steps.at(-1))
        self.begins[-1] = state["begins"]
        self._record_potentials(-1)
        self.missions = MissionIndex(state["missions"])
        self._memory = np.ascontiguousarray(state["memory"])
