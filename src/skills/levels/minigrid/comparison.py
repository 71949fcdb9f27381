"""Comparison of the engine with minigrid: the same levels and actions, every array compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import gymnasium
import numpy as np

from skills import env_id
from skills.levels.codes import (
    BALL,
    BOX,
    CLOSED,
    DONE,
    DOOR,
    DROP,
    FORWARD,
    GOAL,
    GREEN,
    GTG,
    KEY,
    LEFT,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    mission_code,
)  # fmt: skip
from skills.levels.engine import Engine
from skills.levels.minigrid.babyai import begin, from_env
from skills.levels.solver import solutions
from skills.levels.stages import STAGES
from skills.levels.state import Levels

FIELDS = ("image", "direction", "mission", "reward", "terminated", "truncated")
BABYAI = ("BabyAI-GoToObj-v0", "BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenDoor-v0",
          "BabyAI-UnlockLocal-v0", "BabyAI-KeyInBox-v0", "BabyAI-UnlockPickup-v0", "BabyAI-PutNextLocal-v0",
          "BabyAI-SynthLoc-v0")  # fmt: skip
MINIGRID = ("MiniGrid-DoorKey-8x8-v0", "MiniGrid-LavaCrossingS9N2-v0")
EVENTS = (
    "picked up", "dropped", "unlocked", "opened", "closed", "walked through a door", "box opened", "blocked",
    "tried a lock in vain", "carried a box", "success", "failure", "truncated",
)  # fmt: skip


class Comparison:
    """Environments of the engine, and the same environments of minigrid.

    Args:
        name: A stage, or the id of a registered gymnasium environment.
        count: Number of environments.
        rng: Stream of seeds and actions.

    Attributes:
        transitions: Number of transitions compared so far.
        mismatches: Number of transitions in which any array differs.
        fields: Number of differences by name of the array.
        events: Counts of `EVENTS`, according to minigrid's objects.
    """

    def __init__(self, name: str, count: int, rng: np.random.Generator) -> None:
        self.transitions, self.mismatches = 0, 0
        self.fields: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self._rng, self._own = rng, name in STAGES
        wanted = env_id(name) if self._own else name
        envs = [gymnasium.make(wanted, disable_env_checker=True) for _ in range(count)]
        self._envs = [env.unwrapped for env in envs]
        seeds = rng.integers(2**31, size=count)
        first = [self._reset(i, int(seed)) for i, seed in enumerate(seeds)]
        self._engine = Engine(
            name if self._own else self._levels(range(count)), count, auto_reset=self._own
        )
        self._last = (
            self._engine.reset(seeds)
            if self._own
            else self._engine.load(self._levels(range(count)))
        )
        self._compare(first, [(0.0, False, False)] * count)
        self._plans: list[list[int]] = [self._plan(i) for i in range(count)]

    def play(self, steps: int) -> None:
        """Act `steps` times in all environments."""
        for _ in range(steps):
            actions = self._actions()
            step = self._last = self._engine.step(actions)
            results = [self._step(i, int(action)) for i, action in enumerate(actions)]
            ended = [i for i, (_, *end) in enumerate(results) if end[1] or end[2]]
            observations = [observation for observation, *_ in results]
            if self._own:
                for i in ended:
                    last = step.last_image[i], step.last_direction[i]
                    self._note("last_image", not _same(observations[i], *last))
                    observations[i] = self._reset(i)
            self._compare(observations, [tuple(end) for _, *end in results])
            if ended and not self._own:
                self._load(ended)
            for i in ended:
                self._plans[i] = self._plan(i)

    def _compare(self, observations: list[dict], ends: list[tuple]) -> None:
        """Compare the engine's last step with observations and ends of minigrid."""
        step, wrong = self._last, np.zeros(len(observations), bool)
        reward, terminated, truncated = map(np.array, zip(*ends, strict=True))
        wanted = {
            "image": np.stack([observation["image"] for observation in observations]),
            "direction": np.array([observation["direction"] for observation in observations]),
            "mission": np.stack([_mission(observation["mission"]) for observation in observations]),
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        for name in FIELDS:
            differs = (
                (getattr(step, name) != wanted[name]).reshape(len(observations), -1).any(axis=1)
            )
            self._note(name, int(differs.sum()))
            wrong |= differs
        self.transitions += len(observations)
        self.mismatches += int(wrong.sum())

    def _note(self, name: str, count: int | bool) -> None:
        if count:
            self.fields[name] += int(count)

    def _reset(self, i: int, seed: int | None = None) -> dict:
        return begin(self._envs[i], seed)

    def _levels(self, which: list[int] | range) -> Levels:
        return Levels.join([from_env(self._envs[i]) for i in which])

    def _load(self, which: list[int]) -> None:
        """Reset environments that are not this project's, and load their states into the engine."""
        for i in which:
            self._reset(i)
        chosen = np.zeros(len(self._envs), bool)
        chosen[which] = True
        self._last = self._engine.load(self._levels(which), chosen)

    def _plan(self, i: int) -> list[int]:
        """Return the first actions of a shortest solution in half of the episodes, so that doors are unlocked too."""
        if not self._own or self._rng.random() < 0.5:
            return []
        path = solutions(from_env(self._envs[i]))[0]
        return [] if path is None else path[: self._rng.integers(len(path) + 1)].tolist()[::-1]

    def _actions(self) -> np.ndarray:
        """Return random actions that prefer to interact with the object in front."""
        rng, count = self._rng, len(self._envs)
        front, hand = self._last.image[:, 3, 5], self._last.image[:, 3, 6, 0]
        drawn = rng.choice(
            [LEFT, RIGHT, FORWARD, FORWARD, FORWARD, PICKUP, DROP, TOGGLE, DONE], count
        )
        touch, draw = rng.random((2, count))
        thing = np.isin(front[:, 0], (KEY, BALL, BOX))
        drawn = np.where(thing & (touch < 0.3), np.where(draw < 0.7, PICKUP, TOGGLE), drawn)
        door = front[:, 0] == DOOR
        through = np.where((front[:, 2] == OPEN) & (draw < 0.8), FORWARD, TOGGLE)
        drawn = np.where(door & (touch < 0.7), through, drawn)
        drawn = np.where((hand >= KEY) & (touch > 0.9), DROP, drawn)
        return np.array(
            [p.pop() if p else a for p, a in zip(self._plans, drawn.tolist(), strict=True)]
        )

    def _step(self, i: int, action: int) -> tuple[dict, float, bool, bool]:
        """Make minigrid's step and count its events."""
        env = self._envs[i]
        hand, at = env.carrying, tuple(env.agent_pos)
        faced = env.grid.get(*env.front_pos)
        before = None if faced is None else faced.encode()
        observation, reward, terminated, truncated, _ = env.step(action)
        for name in _events(env, action, faced, before, hand, at):
            self.events[name] += 1
        self.events["success" if reward > 0 else "failure"] += terminated
        self.events["truncated"] += truncated
        return observation, float(reward), terminated, truncated


def _mission(words: str) -> np.ndarray:
    """Return the code of a mission; all missions of `MINIGRID` are to go to the goal square."""
    try:
        return mission_code(words)
    except ValueError:
        return np.array((GTG, GREEN, GOAL, 0), np.uint8)


def _same(observation: dict, image: np.ndarray, direction: int) -> bool:
    return bool((observation["image"] == image).all()) and observation["direction"] == direction


def _events(env, action, faced, before, hand, at) -> Iterator[str]:
    """Yield the events of an action, according to minigrid's objects."""
    if action == PICKUP and hand is None and env.carrying is not None:
        yield "picked up"
    if action == DROP and hand is not None and env.carrying is None:
        yield "dropped"
    if action == FORWARD:
        if tuple(env.agent_pos) == at:
            yield "blocked"
        elif before is not None and before[0] == DOOR:
            yield "walked through a door"
    if hand is not None and hand.type == "box":
        yield "carried a box"
    if action == TOGGLE and before is not None and before[0] == BOX:
        yield "box opened"
    if action == TOGGLE and before is not None and before[0] == DOOR:
        after = faced.encode()[2]
        if after == before[2]:
            yield "tried a lock in vain"
        elif after == CLOSED:
            yield "closed"
        else:
            yield "opened" if before[2] == CLOSED else "unlocked"


def totals(parts: list[Comparison]) -> tuple[int, int, Counter[str], Counter[str]]:
    """Return transitions, mismatches, differing fields and events, summed over comparisons."""
    fields, events = Counter[str](), Counter[str]()
    for part in parts:
        fields.update(part.fields)
        events.update(part.events)
    return sum(p.transitions for p in parts), sum(p.mismatches for p in parts), fields, events
