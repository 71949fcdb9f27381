"""A run's outcome in one line, for Guild's attribute `result` and the column `.result` of `guild compare`.

`opening_rate 97 % of 100 after 90 updates; task_id 0; reward shaped` for a finished run, the reason for
others. :func:`parse` is the inverse of :func:`summary_line`, so that exports of `guild compare` can be imported.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runcatalog import numbers
from runcatalog.record.evaluation import LevelOutcomes, independent_games, outcomes_of
from runcatalog.record.untrusted import guild_attribute

_OBJECTIVE = re.compile(
    r"(?P<name>\S.*?) (?P<value>[-+.\w]+)(?P<rate> %)?(?: of (?P<count>\d+))?"
    r"(?: after (?P<at>\d+) (?P<axis>\S.*?))?(?P<less>, less is better)?"
)


NARROW = 0.02  # width of a rate's interval below which whole per cent would not show it
KILLED = "killed: "  # prefix of the reason of a run that a signal ended


def summary_line(
    result: Mapping[str, Any] | None, reason: str = "", *, killed: bool = False
) -> str:
    """Return a run's outcome; "" without an objective or reason.

    Args:
        result: The script's result; None if the run did not finish.
        reason: Why the run did not finish.
        killed: Whether a signal ended it, rather than an error.
    """
    if result is None:
        return (KILLED if killed else "") + " ".join(reason.split())
    objective = result.get("objective") or {}
    value = _value(objective)
    if not objective.get("name") or value is None:
        return ""
    rate = objective.get("kind") == "rate" and math.isfinite(value)
    amount = f"{100 * value:.12g} %" if rate else repr(value)
    parts = [f"{objective['name']} {amount}"]
    if isinstance(objective.get("count"), int):
        parts.append(f"of {objective['count']}")
    if isinstance(objective.get("at"), int):
        axis = objective.get("axis") or "step"
        parts.append(f"after {objective['at']} {axis}{'' if objective['at'] == 1 else 's'}")
    sentence = " ".join(parts) + (", less is better" if objective.get("goal") == "min" else "")
    variant = result.get("variant")
    attributes = {"task_id": result.get("task_id")} | (variant if isinstance(variant, dict) else {})
    attribute_parts = [
        f"{name} {_attribute_text(v)}"
        for name, v in sorted(attributes.items())
        if v not in (None, "")
    ]
    return "; ".join([sentence, *attribute_parts])


def sentence(result: Mapping[str, Any] | None) -> str:
    """Return the result of a finished run as one run's row in the catalog has it: "97 % opening rate [91, 99]".

    Args:
        result: The script's result.
    """
    result = result or {}
    if summary := " ".join(str(result.get("summary") or "").split()):
        return summary
    objective = result.get("objective") or {}
    value = _value(objective)
    if not objective.get("name") or value is None:
        return "finished, with no result"
    outcomes = outcomes_of(result)
    text = (
        f"{objective_text(objective, value)}{after(objective)}{_own_interval(objective, outcomes)}"
    )
    others: Any = objective.get("also")
    for other in others if isinstance(others, list) else [others]:
        # The result is written already: a number that is none is left out, as in the catalog's row.
        with contextlib.suppress(TypeError, KeyError, ValueError, OverflowError):
            text += (
                f"; {objective_text(other, float(other['value']))}{_own_interval(other, outcomes)}"
            )
    return text


def _value(objective: Mapping[str, Any]) -> float | None:
    """Return the objective's value, which is a text in result.json if it is not finite; None without one."""
    value: Any = objective.get("value")
    is_number = isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    return float(value) if is_number else None


def _as_it_is(text: str, limit: int) -> str:
    return text


def objective_text(
    objective: Mapping[str, Any], value: float, escape: Callable[[str, int], str] = _as_it_is
) -> str:
    """Return "93 % opening rate" or "episode return 7696".

    Args:
        objective: Gives the name and the kind.
        value: The value.
        escape: Escapes a text and cuts it to a length.
    """
    name = escape(str(objective["name"]).replace("_", " ").strip(), 60)
    if objective.get("kind") == "rate":
        return f"{rate_text(value)} {name}"
    return f"{name} {numbers.number(value)}"


def rate_text(value: float) -> str:
    """Return "93 %"; NaN and infinities unchanged."""
    if not math.isfinite(value):
        return numbers.number(value)
    return f"{numbers.percent(value)} %" if value <= 1 else f"{value * 100:.0f} %"


def after(objective: Mapping[str, Any], escape: Callable[[str, int], str] = _as_it_is) -> str:
    """Return " after 360 updates"; "" if the objective has no step.

    Args:
        objective: The objective.
        escape: See :func:`objective_text`.
    """
    at = objective.get("at")
    if not numbers.is_finite(at):
        return ""
    axis = escape(str(objective.get("axis") or "step").replace("_", " "), 40) or "step"
    return f" after {numbers.count(at, axis)}"


def interval_text(objective: Mapping[str, Any], low: float, high: float) -> str:
    """Return " [86, 97]", in per cent for a rate."""
    if objective.get("kind") == "rate" and math.isfinite(low) and math.isfinite(high):
        if high - low < NARROW:
            return f" [{numbers.share(low)}, {numbers.share(high)}]"
        return f" [{math.floor(100 * low + 0.5)}, {math.floor(100 * high + 0.5)}]"
    return f" [{numbers.number(low)}, {numbers.number(high)}]"


def _own_interval(objective: Mapping[str, Any], outcomes: Mapping[str, LevelOutcomes]) -> str:
    """Return the 95 % interval that the objective states, or that of a counted rate; "" for any other number."""
    stated = objective.get("interval")
    if (
        isinstance(stated, list | tuple)
        and len(stated) == 2
        and all(map(numbers.is_finite, stated))
    ):
        return interval_text(objective, *stated)
    value = float(objective["value"])
    sides = [{**objective, "outcomes": outcomes}]
    games = independent_games(sides) if math.isfinite(value) else 0
    if not games:
        return ""
    return interval_text(objective, *numbers.wilson(min(value * games, games), games))


def parse(line: str) -> dict[str, Any] | None:
    """Return the result that a line describes; None if the line is not such a description."""
    head, *tail = line.split("; ")
    match = _OBJECTIVE.fullmatch(head)
    if match is None:
        return None
    try:
        value = float(match["value"])
        count, at = (match[name] and int(match[name]) for name in ("count", "at"))
    except ValueError:  # int takes at most 4300 digits
        return None
    objective: dict[str, Any] = {
        "name": match["name"],
        "value": value / 100 if match["rate"] else value,
        "kind": "rate" if match["rate"] else "mean",
        "goal": "min" if match["less"] else "max",
    }
    if count is not None:
        objective["count"] = count
    if at is not None:
        axis = match["axis"] if at == 1 else match["axis"].removesuffix("s")
        objective |= {"at": at, "axis": axis}
    result: dict[str, Any] = {"objective": objective}
    variant = dict(part.split(" ", 1) for part in tail if " " in part)
    if "task_id" in variant:
        task = variant.pop("task_id")
        result["task_id"] = int(task) if re.fullmatch("[0-9]{1,18}", task) else task
    return result | ({"variant": variant} if variant else {})


def write_guild_result(directory: Path, line: str) -> None:
    """Write a line to the attribute `result` of Guild's run; "" removes the attribute.

    Does nothing without Guild, and ignores a full disk.
    """
    folder = directory / ".guild" / "attrs"
    with contextlib.suppress(OSError):
        if not line:
            (folder / "result").unlink(missing_ok=True)
        elif folder.is_dir():
            text = json.dumps(line[:500], ensure_ascii=False)  # JSON is YAML, which Guild reads
            (folder / "result").write_text(f"{text}\n", encoding="utf-8", errors="replace")


def hide_label(directory: Path, hide: Callable[[str], str]) -> None:
    """Remove secrets from the label that Guild stored, which is published unchanged.

    Args:
        directory: The run's directory.
        hide: Removes secrets from a text.
    """
    path = directory / ".guild" / "attrs" / "label"
    label = guild_attribute(directory, "label")
    if label is not None and (clean := hide(str(label))) != str(label):
        with contextlib.suppress(OSError):
            path.write_text(f"{json.dumps(clean, ensure_ascii=False)}\n", encoding="utf-8")


def _attribute_text(value: object) -> str:
    return " ".join(str(value).split()).replace(";", ",")
