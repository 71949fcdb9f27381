"""The engine beside minigrid: the same levels, the same actions, every array compared with what minigrid gives."""

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
          "BabyAI-UnlockLocal-v0", "BabyAI-KeyInBox-v0", "BabyAI-UnlockPickup-v0")  # fmt: skip
MINIGRID = ("MiniGrid-DoorKey-8x8-v0", "MiniGrid-LavaCrossingS9N2-v0")
LOOKED_FOR = (
    "picked up", "dropped", "unlocked", "opened", "closed", "walked through a door", "box opened", "blocked",
    "tried a lock in vain", "carried a box", "success", "failure", "truncated",
)  # fmt: skip


class Beside:
    """Environments of the engine, each with one of minigrid's.

    Args:
        name: A stage, or an id of gymnasium's registry.
        count: Environments.
        rng: Of seeds and actions.

    Attributes:
        transitions: Compared so far.
        mismatches: Of them, those in which anything differs.
        fields: In how many each array differs, by its name.
        events: How often each of `LOOKED_FOR` occurred, seen by minigrid's objects.
    """

    def __init__(self, name: str, count: int, rng: np.random.Generator) -> None:
        self.transitions, self.mismatches = 0, 0
        self.fields: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self._rng, self._own = rng, name in STAGES
        wanted = env_id(name) if self._own else name
        made = [gymnasium.make(wanted, disable_env_checker=True) for _ in range(count)]
        self._envs = [each.unwrapped for each in made]
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
        """Acts in all environments, `steps` times."""
        for _ in range(steps):
            actions = self._actions()
            step = self._last = self._engine.step(actions)
            told = [self._step(i, int(action)) for i, action in enumerate(actions)]
            ended = [i for i, (_, *end) in enumerate(told) if end[1] or end[2]]
            seen = [each for each, *_ in told]
            if self._own:
                for i in ended:
                    last = step.last_image[i], step.last_direction[i]
                    self._note("last_image", not _same(seen[i], *last))
                    seen[i] = self._reset(i)
            self._compare(seen, [tuple(end) for _, *end in told])
            if ended and not self._own:
                self._load(ended)
            for i in ended:
                self._plans[i] = self._plan(i)

    def _compare(self, seen: list[dict], ends: list[tuple]) -> None:
        """Compares the engine's last step with observations and ends."""
        step, wrong = self._last, np.zeros(len(seen), bool)
        reward, terminated, truncated = (np.array(each) for each in zip(*ends, strict=True))
        wanted = {
            "image": np.stack([each["image"] for each in seen]),
            "direction": np.array([each["direction"] for each in seen]),
            "mission": np.stack([_told(each["mission"]) for each in seen]),
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        for name in FIELDS:
            differs = (getattr(step, name) != wanted[name]).reshape(len(seen), -1).any(axis=1)
            self._note(name, int(differs.sum()))
            wrong |= differs
        self.transitions += len(seen)
        self.mismatches += int(wrong.sum())

    def _note(self, name: str, count: int | bool) -> None:
        if count:
            self.fields[name] += int(count)

    def _reset(self, i: int, seed: int | None = None) -> dict:
        return begin(self._envs[i], seed)

    def _levels(self, which: list[int] | range) -> Levels:
        return Levels.join([from_env(self._envs[i]) for i in which])

    def _load(self, which: list[int]) -> None:
        """Begins environments that are not this project's, and puts the engine there."""
        for i in which:
            self._reset(i)
        chosen = np.zeros(len(self._envs), bool)
        chosen[which] = True
        self._last = self._engine.load(self._levels(which), chosen)

    def _plan(self, i: int) -> list[int]:
        """In half of the episodes, some first actions of a shortest solution, so that doors are unlocked too."""
        if not self._own or self._rng.random() < 0.5:
            return []
        found = solutions(from_env(self._envs[i]))[0]
        return [] if found is None else found[: self._rng.integers(len(found) + 1)].tolist()[::-1]

    def _actions(self) -> np.ndarray:
        """Random actions that like to touch what is in front."""
        rng, count = self._rng, len(self._envs)
        front, hand = self._last.image[:, 3, 5], self._last.image[:, 3, 6, 0]
        drawn = rng.choice(
            [LEFT, RIGHT, FORWARD, FORWARD, FORWARD, PICKUP, DROP, TOGGLE, DONE], count
        )
        touch, luck = rng.random((2, count))
        thing = np.isin(front[:, 0], (KEY, BALL, BOX))
        drawn = np.where(thing & (touch < 0.3), np.where(luck < 0.7, PICKUP, TOGGLE), drawn)
        door = front[:, 0] == DOOR
        through = np.where((front[:, 2] == OPEN) & (luck < 0.8), FORWARD, TOGGLE)
        drawn = np.where(door & (touch < 0.7), through, drawn)
        drawn = np.where((hand >= KEY) & (touch > 0.9), DROP, drawn)
        return np.array(
            [p.pop() if p else a for p, a in zip(self._plans, drawn.tolist(), strict=True)]
        )

    def _step(self, i: int, action: int) -> tuple[dict, float, bool, bool]:
        """minigrid's step, and what happened in it."""
        env = self._envs[i]
        hand, at = env.carrying, tuple(env.agent_pos)
        faced = env.grid.get(*env.front_pos)
        before = None if faced is None else faced.encode()
        seen, reward, terminated, truncated, _ = env.step(action)
        for name in _events(env, action, faced, before, hand, at):
            self.events[name] += 1
        self.events["success" if reward > 0 else "failure"] += terminated
        self.events["truncated"] += truncated
        return seen, float(reward), terminated, truncated


def _told(words: str) -> np.ndarray:
    """The code of a mission in words; those of `MINIGRID` all mean the goal square."""
    try:
        return mission_code(words)
    except ValueError:
        return np.array((GTG, GREEN, GOAL, 0), np.uint8)


def _same(seen: dict, image: np.ndarray, direction: int) -> bool:
    return bool((seen["image"] == image).all()) and seen["direction"] == direction


def _events(env, action, faced, before, hand, at) -> Iterator[str]:  # type: ignore[no-untyped-def]
    """What an action did, by minigrid's objects."""
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


def together(parts: list[Beside]) -> tuple[int, int, Counter[str], Counter[str]]:
    """Transitions, mismatches, fields that differ and events of several comparisons."""
    fields, events = Counter[str](), Counter[str]()
    for each in parts:
        fields.update(each.fields)
        events.update(each.events)
    return sum(p.transitions for p in parts), sum(p.mismatches for p in parts), fields, events
