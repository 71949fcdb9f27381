"""Prompts of a planner, and the parsing of its answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from skills.levels.codes import BALL, BOX, CLOSED, COLOURS, DOOR, GOAL, KEY, LOCKED, OPEN
from skills.levels.state import Levels
from skills.planner.scene import Thing

NAMES = {DOOR: "door", KEY: "key", BALL: "ball", BOX: "box", GOAL: "goal square"}
STATES = {OPEN: "open", CLOSED: "closed", LOCKED: "locked"}

SYSTEM = """\
You plan for a robot in a building of a few rooms. It has a task. You name the sub-task that it does next; when that is
done or given up, you are asked again.
- The robot knows only what it has seen so far. "explore" lets it walk on until it sees something new.
- A locked door opens only while the robot carries the key of the door's colour. A closed door needs no key.
- It carries one thing at a time; to pick up another it lays down the first by itself.
- Picking up a key whose colour is that of no locked door ends the task in failure.
- On the green goal square the task is done. The sooner the better.
Answer with JSON alone, {"subtask": "..."}, and in it one of the listed sub-tasks in the very same words."""


@dataclass(frozen=True)
class Situation:
    """Input of a planner at one call.

    Attributes:
        episode: Seed of the episode.
        call: Number of earlier calls in this episode.
        step, limit: Step of the episode, and its step limit.
        mission: The composite task, in words.
        carried: Kind and colour of the carried object.
        things: Observed objects.
        before: Earlier sub-tasks with their outcomes.
        options: The sub-tasks to choose from.
        level: The complete level, for planners that know it.
    """

    episode: int
    call: int
    step: int
    limit: int
    mission: str
    carried: tuple[int, int] | None
    things: list[Thing]
    before: list[tuple[str, str]]
    options: list[str]
    level: Levels


def messages(situation: Situation) -> list[dict[str, str]]:
    """Return the messages of a chat."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": describe(situation)},
    ]


def describe(situation: Situation) -> str:
    """Return the situation in words."""
    carried = object_name(*situation.carried) if situation.carried else "nothing"
    lines = [
        f"Task: {situation.mission}",
        f"Step {situation.step} of {situation.limit}. Carried: {carried}.",
        "Seen:",
        *(f"- {_line(thing)}" for thing in situation.things),
        *(["- nothing"] if not situation.things else []),
        "Before:",
        *(f"- {subtask}: {outcome}" for subtask, outcome in situation.before),
        *(["- nothing"] if not situation.before else []),
        "Sub-tasks:",
        *(f"- {option}" for option in situation.options),
    ]
    return "\n".join(lines)


def object_name(kind: int, colour: int) -> str:
    """Return the name of an object, as "red key"."""
    return f"{COLOURS[colour]} {NAMES[kind]}"


def _line(thing: Thing) -> str:
    state = f", {STATES[thing.state]}" if thing.kind == DOOR else ""
    way = "no free way known" if thing.distance < 0 else f"{thing.distance} steps away"
    return f"{object_name(thing.kind, thing.colour)}{state}, {way}"


def correction(problem: str) -> str:
    """Return the message after an invalid answer."""
    return (
        f'{problem} Answer with {{"subtask": "..."}} and one of the listed sub-tasks, nothing else.'
    )


def schema(options: list[str]) -> dict[str, Any]:
    """Return the JSON schema of a valid answer."""
    return {
        "type": "object",
        "properties": {"subtask": {"type": "string", "enum": options}},
        "required": ["subtask"],
        "additionalProperties": False,
    }


def answer(subtask: str) -> str:
    """Return a valid answer."""
    return json.dumps({"subtask": subtask})


def parse_answer(reply: str, options: list[str]) -> tuple[str, str]:
    """Return the sub-task of an answer and "", or "" and the error."""
    text = re.sub(r"(?s)^.*</think>", "", reply).strip()
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return "", "That is no JSON."
    subtask = content.get("subtask") if isinstance(content, dict) else None
    if not isinstance(subtask, str):
        return "", 'That is JSON without a text named "subtask".'
    return (
        (subtask, "") if subtask in options else ("", f"{json.dumps(subtask)} is not in the list.")
    )
