"""What the levels are: all that is this project's own choice, in one place.

The source names its stages and what they were trained with, but not what they looked like (docs/skills.md).
The verbs' rules are in `skills.levels.rules`, the way from these numbers to a level in `skills.levels.generate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skills.levels.codes import BALL, BOX, DOOR, GOAL, KEY, VERBS

SIZE = 11  # cells of a side, walls included
MAX_STEPS = SIZE**2  # 121; the reward of success after n steps is 1 - 0.9 n / 121
MOST_ROOMS, MOST_LOCKS = 5, 2  # what `skills.levels.generate` has space for
MOST_DISTRACTORS = 12

_KINDS = {"key": KEY, "ball": BALL, "box": BOX, "door": DOOR, "goal": GOAL}
_OBJECTS = ("key", "ball", "box")


@dataclass(frozen=True)
class Stage:
    """How the levels of a stage are drawn. Pairs are the least and the most, drawn uniformly.

    Attributes:
        verb: "gtg", "gto", "pkp", "tgl" or "nlm".
        room: Side of the walled square that is used, walls included [cells].
        rooms: How many rooms inner walls make; any two are joined by one way, a doorway each step.
        distractors: Keys, balls and boxes that the mission does not speak of.
        closed: Share of doorways with a closed door.
        opened: Share of doorways with an open door; the others are gaps.
        locks: Locked doors between agent and target. Their keys lie on the agent's side.
        apart: The target is not in the room in which the agent starts, and is no door of it.
        targets: Types that the target can have.

    Raises:
        ValueError: A number is out of its range.
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
            raise ValueError(f"{self.verb} {self.targets}: no verb, or no types")
        if self.verb == "nlm" and not self.apart:
            raise ValueError("nlm: its goal is behind a door, so in another room")
        if (self.verb in ("gtg", "nlm")) != (self.targets == ("goal",)):
            raise ValueError(f"{self.verb}: the target is no {' or '.join(self.targets)}")
        limits = {
            "rooms": (1, MOST_ROOMS),
            "distractors": (0, MOST_DISTRACTORS),
            "locks": (0, MOST_LOCKS),
        }
        for name, (low, high) in limits.items():
            least, most = getattr(self, name)
            if not low <= least <= most <= high:
                raise ValueError(f"{name} {least} to {most}: {low} to {high}")
        if not 5 <= self.room <= SIZE or not 0 <= self.closed + self.opened <= 1:
            raise ValueError(f"room {self.room}: 5 to {SIZE}; closed and opened: shares")
        if self.rooms[1] == 1 and (self.apart or self.locks[0] or self.targets == ("door",)):
            raise ValueError("one room has no other room, and no door")
        if self.rooms[1] == 2 and self.apart and self.targets == ("door",):
            raise ValueError("of two rooms the only door belongs to both")


STAGES: dict[str, Stage | tuple[str, ...]] = {
    # Go to the goal.
    "gtg0": Stage("gtg", rooms=(1, 3), distractors=(0, 4), closed=0.4, opened=0.2, targets=("goal",)),
    "gtg1": Stage("gtg", rooms=(3, 4), distractors=(5, 8), closed=0.6, opened=0.1, locks=(0, 1), apart=True,
                  targets=("goal",)),
    # Pick up. Doors and locks come first, where it is narrow: once an agent knows that a wrong pick-up or an opened box
    # ends the episode, it no longer tries out either on keys and doors.
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
    # Several verbs in one mission: fetch the key, open the locked door, go to the goal behind it. In half of the
    # first stage the door is only closed: random actions meet the goal behind a locked one once in 600 episodes. Two
    # locks begin beside single ones: an agent that knows the mission's key alone never solves a level that has two.
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
# The chains of stages that are trained one after the other.
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


# A stage as numbers, for the kernels: columns of a table.
COLUMNS = (
    "verb", "room", "rooms", "most_rooms", "distractors", "most_distractors", "closed", "opened",
    "locks", "most_locks", "apart", "kinds", "kind0", "kind1", "kind2", "kind3",
)  # fmt: skip


def stage_table(name: str) -> np.ndarray:
    """Returns the stages among which a level of the stage `name` is drawn, in equal shares, int64 [k, COLUMNS].

    Raises:
        ValueError: There is no such stage.
    """
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}; there are {', '.join(STAGES)}")
    found = STAGES[name]
    stages = [found] if isinstance(found, Stage) else [STAGES[each] for each in found]
    return np.array([_numbers(each) for each in stages if isinstance(each, Stage)], np.int64)


def _numbers(stage: Stage) -> list[int]:
    kinds = [_KINDS[each] for each in stage.targets]
    return [
        VERBS.index(stage.verb), stage.room, *stage.rooms, *stage.distractors, round(100 * stage.closed),
        round(100 * stage.opened), *stage.locks, stage.apart, len(kinds), *kinds, *[0] * (4 - len(kinds)),
    ]  # fmt: skip
