"""Agents in the engine: rollouts to learn from, and episodes to be judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skills import gates
from skills.acting import Agent
from skills.engine import Engine, Step
from skills.films import Array, Films, Missions
from skills.network import Network, Sequences
from skills.state import Levels

FIRST_TRAINING_SEED = 1 << 32  # levels of lower seeds are kept for evaluation
Watch = Callable[[Step, NDArray[np.bool_]], None]
CHUNK = 256  # episodes that are played beside each other in an evaluation
IN_ENGINE = partial(Engine, auto_reset=False)


class Player:
    """Environments, and the network that plays them; learns nothing.

    Args:
        levels: See `skills.engine.Engine`.
        count: Environments, N.
        steps: Of a rollout, T.
        network: Reads the weights that are to play.
        seeds: Of the first levels, int64 [N].
        make: What plays the levels, with `Engine`'s `reset` and `step`, and its `potentials` if `shaping`.
        shaping: Whether potentials are wanted.

    Attributes:
        steps: What was seen and got, arrays [T + 1, N]. Index t has what was seen before step t, and what step t - 1
            gave.
        begins: Whether an episode begins with what is seen, bool [T + 1, N].
        rows: Of missions, int64 [T + 1, N].
        actions, log_probs: int64 and float32 [T, N].
        values: float32 [T + 1, N]; the last row for what follows.
        final_values: Value of an episode's last view where the time limit alone has ended it, elsewhere 0;
            float32 [T, N].
        first_memory: What was kept before the rollout, float32 [N, kept].
        potentials: How far keys and locks have come, see `skills.shaping`, float32 [T + 1, N]; 0 unless `shaping`.
    """

    def __init__(
        self,
        levels: str | Levels,
        count: int,
        steps: int,
        network: Network,
        seeds: NDArray[np.int64],
        make: Callable[..., Any] = Engine,
        shaping: bool = False,
    ) -> None:
        self.engine, self._shaping = make(levels, count), shaping
        self.network = network
        self._aside = Network(network.shape, network.flat)
        self.missions = Missions()
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
        self._look(steps)

    def rollout(self, uniform: NDArray[np.float64]) -> None:
        """Plays T steps on from where it stands; `uniform`: [T, N] from [0, 1), decides on the actions."""
        for array in (*self.steps[:3], self.begins, self.potentials):
            array[0] = array[-1]
        self.first_memory[:] = self._memory
        self.rows[0] = self.missions.rows(self.steps.mission[0])
        films = self.network.films(self.missions)
        cut: list[tuple[NDArray[Any], ...]] = []
        for t, draws in enumerate(uniform):
            outputs = self.network.forward(self._seen(t), films)[0]
            self.values[t] = outputs[:, -1]
            self._memory = self.network.memory_after
            self._decide(t, outputs, draws)
            after = self.engine.step(self.actions[t], out=self.steps.at(t + 1))
            np.logical_or(after.terminated, after.truncated, out=self.begins[t + 1])
            self._look(t + 1)
            if len(only := np.flatnonzero(after.truncated & ~after.terminated)):
                cut.append((np.full(len(only), t), only, self._memory[only]))
            self.rows[t + 1] = self.missions.rows(after.mission)
            if len(self.missions.codes) > len(films.codes):
                films = self.network.films(self.missions)
        self._memory = self._memory.copy()
        self.values[-1] = self._aside.forward(self._seen(len(uniform)), films)[0, :, -1]
        self._cut_short(cut, films)

    def _decide(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        """Writes the actions of step t and their log-probabilities; `outputs`: of the network, [N, ...]."""
        gates.choose(outputs, draws, False, self.actions[t], self.log_probs[t])

    def _look(self, t: int) -> None:
        if self._shaping:
            self.engine.potentials(self.potentials[t])

    def _seen(self, t: int) -> Sequences:
        now = slice(t, t + 1)
        return Sequences(
            self.images[now],
            self.steps.direction[now],
            self.rows[now],
            self.begins[now],
            self._memory,
            self._all,
        )

    def _cut_short(self, cut: list[tuple[NDArray[Any], ...]], films: Films) -> None:
        """The values of last views of episodes that time has ended."""
        self.final_values[:] = 0
        if not cut:
            return
        t, n, memory = (np.concatenate(parts) for parts in zip(*cut, strict=True))
        seen = Sequences(
            self.steps.last_image[t + 1, n].reshape(1, len(t), -1),
            self.steps.last_direction[t + 1, n][None],
            self.rows[t, n][None],
            np.zeros((1, len(t)), bool),
            memory,
            np.arange(len(t)),
        )
        self.final_values[t, n] = self._aside.forward(seen, films)[0, :, -1]

    def state(self) -> dict[str, Any]:
        """Where it stands, to go on to the bit."""
        return {
            "levels": dict(vars(self.engine.state())),
            "begins": self.begins[-1],
            "memory": self._memory,
            "missions": self.missions.codes,  # in their order gradients are added
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.engine.load(Levels(**state["levels"]), out=self.steps.at(-1))
        self.begins[-1] = state["begins"]
        self._look(-1)
        self.missions = Missions(state["missions"])
        self._memory = np.ascontiguousarray(state["memory"])


@dataclass(frozen=True)
class Played:
    """Episodes in the order of their seeds.

    Attributes:
        success: bool [E].
        reward: float32 [E].
        steps: int64 [E].
        mission: uint8 [E, 4].
    """

    success: NDArray[np.bool_]
    reward: NDArray[np.float32]
    steps: NDArray[np.int64]
    mission: NDArray[np.uint8]

    @property
    def rate(self) -> float:
        """Share of successes."""
        return float(self.success.mean())


def play(
    agent: Agent,
    levels: str | Levels,
    seeds: NDArray[np.int64] | range,
    uniform: np.random.Generator | None,
    make: Callable[..., Any] = IN_ENGINE,
    watch: Watch | None = None,
) -> Played:
    """Plays one episode for each seed.

    Args:
        agent: Plays.
        levels: See `skills.engine.Engine`.
        seeds: Of the levels.
        uniform: Draws the actions; None: the likeliest is taken each time.
        make: What plays the levels, with `Engine`'s `reset` and `step`; `outside.Outside` is minigrid itself.
        watch: Called in each step, once the agent has acted: with what it saw, and which episodes go on.
    """
    seeds = np.asarray(seeds, np.int64)
    parts = [
        _play(agent, make(levels, len(some)), some, uniform, watch)
        for some in np.split(seeds, range(CHUNK, len(seeds), CHUNK))
    ]
    return Played(
        *(
            np.concatenate([getattr(each, name) for each in parts])
            for name in Played.__annotations__
        )
    )


def _play(
    agent: Agent,
    engine: Any,
    seeds: NDArray[np.int64],
    uniform: np.random.Generator | None,
    watch: Watch | None,
) -> Played:
    count = len(seeds)
    now = engine.reset(seeds)
    mission, memory = now.mission.copy(), agent.start(count)
    success, reward, steps = (
        np.zeros(count, bool),
        np.zeros(count, np.float32),
        np.zeros(count, np.int64),
    )
    going = np.ones(count, bool)
    while going.any():
        actions, memory = agent.act(now, memory, uniform)
        if watch is not None:
            watch(now, going)
        now = engine.step(actions)
        steps += going
        ended = going & (now.terminated | now.truncated)
        reward[ended] = now.reward[ended]
        success[ended] = now.reward[ended] > 0
        going &= ~ended
    return Played(success, reward, steps, mission)
