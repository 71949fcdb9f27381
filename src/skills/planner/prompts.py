"""What a planner is told, in words, and how its answer is read."""

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
    """What is known when a planner is asked.

    Attributes:
        episode: Its seed.
        call: How often the planner was asked before in this episode.
        step, limit: Of the episode.
        mission: The whole task, in words.
        carried: What the agent has in hand: kind and colour.
        things: That were seen.
        before: Sub-tasks so far, each with what became of it.
        options: The closed list.
        level: All that there is, of one environment; for planners that need not look.
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
    """Returns the prompt, as chat interfaces take it."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": describe(situation)},
    ]


def describe(situation: Situation) -> str:
    """Returns the situation in words."""
    carried = named(*situation.carried) if situation.carried else "nothing"
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
        *(f"- {each}" for each in situation.options),
    ]
    return "\n".join(lines)


def named(kind: int, colour: int) -> str:
    """Returns a thing's name, as "red key"."""
    return f"{COLOURS[colour]} {NAMES[kind]}"


def _line(thing: Thing) -> str:
    state = f", {STATES[thing.state]}" if thing.kind == DOOR else ""
    way = "no free way known" if thing.distance < 0 else f"{thing.distance} steps away"
    return f"{named(thing.kind, thing.colour)}{state}, {way}"


def correction(problem: str) -> str:
    """Returns what a planner is told after an invalid answer."""
    return (
        f'{problem} Answer with {{"subtask": "..."}} and one of the listed sub-tasks, nothing else.'
    )


def schema(options: list[str]) -> dict[str, Any]:
    """Returns the JSON schema of a valid answer."""
    return {
        "type": "object",
        "properties": {"subtask": {"type": "string", "enum": options}},
        "required": ["subtask"],
        "additionalProperties": False,
    }


def answer(subtask: str) -> str:
    """Returns a valid answer."""
    return json.dumps({"subtask": subtask})


def read(reply: str, options: list[str]) -> tuple[str, str]:
    """Returns the sub-task that an answer names, or "" and what is wrong with it."""
    text = re.sub(r"(?s)^.*</think>", "", reply).strip()
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", text)
    try:
        found = json.loads(text)
    except ValueError:
        return "", "That is no JSON."
    named = found.get("subtask") if isinstance(found, dict) else None
    if not isinstance(named, str):
        return "", 'That is JSON without a text named "subtask".'
    return (named, "") if named in options else ("", f"{json.dumps(named)} is not in the list.")
