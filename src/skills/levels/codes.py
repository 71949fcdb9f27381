"""Cells, actions and missions as numbers. Indices of types, colours and actions are minigrid's own.

A cell is one uint16: type in bits 0-3, colour in bits 4-6, state of a door in bits 7-8, and four marks:
TARGET for the target of the mission, TOOL for the key of a lock on the path to it, FIXED for the object that the target
is to be put next to. An object keeps its marks when it is carried. CLEAR marks an empty cell: the mission fails when an
object is laid down there; only levels of sub-tasks have it.

A mission is four uint8: verb, colour, type, place. Place is BabyAI's location word, relative to the agent's start;
missions of this project's levels have none. The verb PUT, BabyAI's "put A next to B", has two objects: colour, type and
place of B are in the upper four bits, which are 0 in all other missions.
"""

from __future__ import annotations

import re

import numpy as np

# Types of objects (minigrid.core.constants.OBJECT_TO_IDX); 0 is a cell out of sight.
EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(1, 10)
OPEN, CLOSED, LOCKED = range(3)  # states of a door
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)  # actions
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
GREEN, GREY = 1, 5
ACTIONS, VIEW = 7, 7

COLOUR_SHIFT, STATE_SHIFT = 4, 7
TYPE_MASK, THREE_BITS, TWO_BITS = 15, 7, 3
TARGET, TOOL, FIXED, CLEAR = 1 << 9, 1 << 10, 1 << 11, 1 << 12
BORDER = WALL | GREY << COLOUR_SHIFT  # a wall, and all cells outside of the grid

VERBS = ("gtg", "gto", "pkp", "tgl", "nlm")
GTG, GTO, PKP, TGL, NLM = range(5)
PUT = len(VERBS)  # of BabyAI alone
SECOND_SHIFT, FIRST_MASK = 4, 15  # of the second object in a mission's numbers
ANY_COLOUR, ANY_TYPE = 6, 0
PLACES = ("", "left", "right", "front", "behind")
# Number of values of the parts
MISSION_SIZES = (len(VERBS), len(COLOURS) + 1, LAVA + 1, len(PLACES))

_TYPES = {ANY_TYPE: "object", DOOR: "door", KEY: "key", BALL: "ball", BOX: "box"}
_WORDS = {GTO: "go to", PKP: "pick up", TGL: "open"}
_GOAL = "go to the green goal square"
_WHERE = ("", " on your left", " on your right", " in front of you", " behind you")
# Colour, type, place
_OBJECT = r"(?:the|a) (?:({}) )?({})({})".format(
    "|".join(COLOURS), "|".join(_TYPES.values()), "|".join(_WHERE)
)
_SENTENCE = re.compile(f"(go to|pick up|open) {_OBJECT}")
_PUT = re.compile(f"put {_OBJECT} next to {_OBJECT}")
_COMPOSITE = re.compile(
    rf"open the (?P<colour>{'|'.join(COLOURS)}) door and go to the green goal square"
)


def cell(kind: int, colour: int = 0, state: int = 0, marks: int = 0) -> int:
    """Return the number of a cell."""
    return kind | colour << COLOUR_SHIFT | state << STATE_SHIFT | marks


def mission_text(mission: np.ndarray) -> str:
    """Return a mission, uint8 [4], in words.

    Raises:
        ValueError: The numbers are not a mission.
    """
    verb, colour = map(int, mission[:2])
    if verb == GTG:
        return _GOAL
    if verb == NLM and colour < len(COLOURS):
        return f"open the {COLOURS[colour]} door and {_GOAL}"
    if verb == PUT:
        first, second = mission[1:] & FIRST_MASK, mission[1:] >> SECOND_SHIFT
        return f"put {_object_text(first)} next to {_object_text(second)}"
    if verb not in _WORDS:
        raise ValueError(f"no mission: {mission!r}")
    return f"{_WORDS[verb]} {_object_text(mission[1:])}"


def _object_text(numbers: np.ndarray) -> str:
    """Return the object of colour, type and place, uint8 [3], in words."""
    colour, kind, place = map(int, numbers)
    if kind not in _TYPES or colour > ANY_COLOUR or place >= len(PLACES):
        raise ValueError(f"no object of a mission: {numbers!r}")
    name = _TYPES[kind] if colour == ANY_COLOUR else f"{COLOURS[colour]} {_TYPES[kind]}"
    return f"the {name}{_WHERE[place]}"


def mission_code(text: str) -> np.ndarray:
    """Return the mission of a sentence, uint8 [4]; also of BabyAI's with one verb, and of MiniGrid's goal.

    Raises:
        ValueError: The sentence is not such a mission.
    """
    if text in (_GOAL, "get to the green goal square"):
        return np.array((GTG, GREEN, GOAL, 0), np.uint8)
    if match := _COMPOSITE.fullmatch(text):
        return np.array((NLM, COLOURS.index(match["colour"]), GOAL, 0), np.uint8)
    if match := _PUT.fullmatch(text):
        return put_code(_object_numbers(*match.groups()[:3]), _object_numbers(*match.groups()[3:]))
    if not (match := _SENTENCE.fullmatch(text)):
        raise ValueError(f"no mission: {text!r}")
    verb = next(code for code, words in _WORDS.items() if words == match[1])
    return np.array((verb, *_object_numbers(*match.groups()[1:])), np.uint8)


def put_code(target: tuple[int, int, int], fixed: tuple[int, int, int]) -> np.ndarray:
    """Return the mission to put one object next to another, uint8 [4]; both by colour, type and place."""
    pairs = zip(target, fixed, strict=True)
    return np.array((PUT, *(first | second << SECOND_SHIFT for first, second in pairs)), np.uint8)


def _object_numbers(colour: str | None, kind: str, where: str) -> tuple[int, int, int]:
    """Return colour, type and place of an object in words."""
    number = next(code for code, name in _TYPES.items() if name == kind)
    return COLOURS.index(colour) if colour else ANY_COLOUR, number, _WHERE.index(where)
