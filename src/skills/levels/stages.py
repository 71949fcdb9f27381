"""The stages: parameters of their level generator, all of them this project's choice.

The source gives the stages' names and training, not their levels (docs/skills.md). The verbs' rules are in
`skills.levels.rules`, the generator in `skills.levels.generate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skills.levels.codes import BALL, BOX, DOOR, GOAL, KEY, VERBS

SIZE = 11  # cells of a side, walls included
MAX_STEPS = SIZE**2  # 121; the reward of success after n steps is 1 - 0.9 n / 121
MAX_ROOMS, MAX_LOCKS = 5, 2  # limits of the arrays in `skills.levels.generate`
MAX_DISTRACTORS = 12

_KINDS = {"key": KEY, "ball": BALL, "box": BOX, "door": DOOR, "goal": GOAL}
_OBJECTS = ("key", "ball", "box")


@dataclass(frozen=True)
class Stage:
    """Parameters of a stage's levels. Pairs are the bounds of a uniform distribution, inclusive.

    Attributes:
        verb: "gtg", "gto", "pkp", "tgl" or "nlm".
        room: Side of the walled square, walls included [cells].
        rooms: Number of rooms; exactly one path of doorways connects any two.
        distractors: Number of keys, balls and boxes that are not in the mission.
        closed: Share of doorways with a closed door.
        opened: Share of doorways with an open door; the others are gaps.
        locks: Number of locked doors between agent and target. Their keys lie on the agent's side.
        apart: Whether the target is neither in the agent's first room nor a door of it.
        targets: Possible types of the target.

    Raises:
        ValueError: A parameter is out of range.
    """

    verb: str
    room: int = SIZE
    rooms: tuple[int, int] = (1, 1)
    distractors: tuple[int, int] = (0, 0)
    closed: float = 0.0
    opened: float = 0.0
    locks: tuple[int, int] = (0, 0)
    apart: bool = False
    targets: tuple[str, ...] = _OBJECTS

    def __post_init__(self) -> None:
        if self.verb not in VERBS or not self.targets or not set(self.targets) <= set(_KINDS):
            raise ValueError(f"{self.verb} {self.targets}: unknown verb or types")
        if self.verb == "nlm" and not self.apart:
            raise ValueError("nlm: its goal is behind a door, so in another room")
        if (self.verb in ("gtg", "nlm")) != (self.targets == ("goal",)):
            raise ValueError(f"{self.verb}: the target is no {' or '.join(self.targets)}")
        limits = {
            "rooms": (1, MAX_ROOMS),
            "distractors": (0, MAX_DISTRACTORS),
            "locks": (0, MAX_LOCKS),
        }
        for name, (low, high) in limits.items():
            smallest, largest = getattr(self, name)
            if not low <= smallest <= largest <= high:
                raise ValueError(f"{name} {smallest} to {largest}: {low} to {high}")
        if not 5 <= self.room <= SIZE or not 0 <= self.closed + self.opened <= 1:
            raise ValueError(f"room {self.room}: 5 to {SIZE}; closed and opened: shares")
        if self.rooms[1] == 1 and (self.apart or self.locks[0] or self.targets == ("door",)):
            raise ValueError("one room has no other room, and no door")
        if self.rooms[1] == 2 and self.apart and self.targets == ("door",):
            raise ValueError("the only door between two rooms belongs to both")


STAGES: dict[str, Stage | tuple[str, ...]] = {
    # Go to the goal.
    "gtg0": Stage("gtg", rooms=(1, 3), distractors=(0, 4), closed=0.4, opened=0.2, targets=("goal",)),
    "gtg1": Stage("gtg", rooms=(3, 4), distractors=(5, 8), closed=0.6, opened=0.1, locks=(0, 1), apart=True,
                  targets=("goal",)),
    # Pick up. Doors and locks come first, in small rooms: after an agent has learned that a wrong pick-up or an opened
    # box ends the episode, it no longer explores keys and doors.
    "pkp0": Stage("pkp", room=7, rooms=(2, 2), distractors=(0, 2), closed=0.6, opened=0.1, locks=(0, 1)),
    "pkp1": Stage("pkp", room=9, rooms=(2, 3), distractors=(2, 4), closed=0.6, opened=0.1, locks=(0, 1)),
    "pkp2": Stage("pkp", rooms=(2, 3), distractors=(4, 7), closed=0.6, opened=0.1, locks=(0, 1)),
    "pkp3": Stage("pkp", rooms=(2, 4), distractors=(5, 8), closed=0.6, opened=0.1, locks=(0, 1), apart=True),
    "pkp4": Stage("pkp", rooms=(3, 4), distractors=(6, 9), closed=0.6, opened=0.1, locks=(0, 1), apart=True),
    # Go to an object.
    "gto0": Stage("gto", rooms=(1, 2), distractors=(2, 5), closed=0.5, opened=0.1),
    "gto1": Stage("gto", rooms=(2, 3), distractors=(4, 7), closed=0.5, opened=0.1, locks=(0, 1)),
    "gto2": Stage("gto", rooms=(3, 4), distractors=(6, 9), closed=0.6, opened=0.1, locks=(0, 1), apart=True),
    # Toggle: open a box or a door. Locks come first for the same reason.
    "tgl0": Stage("tgl", room=8, rooms=(2, 2), distractors=(1, 4), closed=0.5, opened=0.2, locks=(0, 1),
                  targets=("box", "door")),
    "tgl1": Stage("tgl", rooms=(2, 3), distractors=(3, 6), closed=0.5, opened=0.2, locks=(0, 1),
                  targets=("box", "door")),
    "tgl2": Stage("tgl", rooms=(3, 4), distractors=(5, 8), closed=0.6, opened=0.1, locks=(0, 1), apart=True,
                  targets=("box", "door")),
    "tgl3": Stage("tgl", rooms=(3, 4), distractors=(6, 9), closed=0.6, opened=0.1, locks=(0, 1), apart=True,
                  targets=("box", "door")),
    # Several verbs in one mission: fetch the key, open the locked door, go to the goal behind it. In half of the first
    # stage's levels the door is only closed, since random actions reach a goal behind a lock once in 600 episodes. The
    # next stage mixes one and two locks, since an agent of single locks never solves a level with two.
    "nlm0": Stage("nlm", room=7, rooms=(2, 2), distractors=(0, 1), locks=(0, 1), apart=True, targets=("goal",)),
    "nlm1": Stage("nlm", rooms=(3, 4), distractors=(2, 5), closed=0.5, opened=0.2, locks=(1, 2), apart=True,
                  targets=("goal",)),
    "nlm2": Stage("nlm", rooms=(3, 5), distractors=(5, 8), closed=0.6, opened=0.1, locks=(2, 2), apart=True,
                  targets=("goal",)),
    # The C variants fine-tune on the same levels.
    "pkpc1": ("pkp1",), "pkpc2": ("pkp2",), "pkpc3": ("pkp3",), "tglc1": ("tgl1",), "tglc2": ("tgl2",),
    # ALL: four verbs in equal shares.
    "all0": ("gtg0", "gto0", "pkp0", "tgl0"),
    "all1": ("gtg0", "gto0", "pkp1", "tgl0"),
    "all2": ("gtg0", "gto1", "pkp1", "tgl1"),
    "all3": ("gtg1", "gto1", "pkp2", "tgl1"),
    "all4": ("gtg1", "gto1", "pkp3", "tgl2"),
    "all5": ("gtg1", "gto2", "pkp3", "tgl2"),
    "all6": ("gtg1", "gto2", "pkp4", "tgl3"),
}  # fmt: skip
# Chains of stages for consecutive training.
CHAINS = {
    name: tuple(stage for stage in STAGES if stage.rstrip("0123456789") == name)
    for name in ("gtg", "pkp", "pkpc", "gto", "tgl", "tglc", "all", "nlm")
}
LAST = tuple(chain[-1] for chain in CHAINS.values())


def stages_by_verb(stage: str) -> dict[str, str]:
    """Return the single-verb stages from which a stage's levels are drawn, by verb."""
    entry = STAGES[stage]
    if isinstance(entry, Stage):
        return {entry.verb: stage}
    return {verb: part for name in entry for verb, part in stages_by_verb(name).items()}


# Columns of the table of stages for kernels.
COLUMNS = (
    "verb", "room", "rooms", "most_rooms", "distractors", "most_distractors", "closed", "opened",
    "locks", "most_locks", "apart", "kinds", "kind0", "kind1", "kind2", "kind3",
)  # fmt: skip


def stage_table(name: str) -> np.ndarray:
    """Return the stages from which a level of the stage `name` is drawn with equal probability, int64 [k, COLUMNS].

    Raises:
        ValueError: Unknown stage.
    """
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}; there are {', '.join(STAGES)}")
    entry = STAGES[name]
    stages = [entry] if isinstance(entry, Stage) else [STAGES[part] for part in entry]
    return np.array([_numbers(stage) for stage in stages if isinstance(stage, Stage)], np.int64)


def _numbers(stage: Stage) -> list[int]:
    kinds = [_KINDS[target] for target in stage.targets]
    return [
        VERBS.index(stage.verb), stage.room, *stage.rooms, *stage.distractors, round(100 * stage.closed),
        round(100 * stage.opened), *stage.locks, stage.apart, len(kinds), *kinds, *[0] * (4 - len(kinds)),
    ]  # fmt: skip
