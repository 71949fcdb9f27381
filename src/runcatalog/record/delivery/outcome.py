"""A run's outcome in one line, kept as Guild's attribute `result`: `guild compare` shows it as column `.result`.

`opening_rate 97 % of 100 after 90 updates; task_id 0; reward shaped` for a run that finished, the reason for one that
did not. :func:`parsed` reads back what :func:`line` wrote, so that an export of `guild compare` holds the outcome.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runcatalog.record.delivery.untrusted import guild_attribute

_OBJECTIVE = re.compile(
    r"(?P<name>\S.*?) (?P<value>[-+.\w]+)(?P<rate> %)?(?: of (?P<count>\d+))?"
    r"(?: after (?P<at>\d+) (?P<axis>\S.*?))?(?P<less>, less is better)?"
)


KILLED = "killed: "  # before the reason of a run that a signal ended


def line(result: Mapping[str, Any] | None, reason: str = "", *, killed: bool = False) -> str:
    """Returns a run's outcome; "" if there is nothing to tell.

    Args:
        result: What the script returned.
        reason: Why the run did not finish.
        killed: Whether it was killed, and did not fail by itself.
    """
    if result is None:
        return (KILLED if killed else "") + " ".join(reason.split())
    objective = result.get("objective") or {}
    value = objective.get("value")
    if not objective.get("name") or not isinstance(value, int | float):
        return ""
    rate = objective.get("kind") == "rate" and math.isfinite(value)
    shown = f"{100 * value:.12g} %" if rate else repr(float(value))
    parts = [f"{objective['name']} {shown}"]
    if isinstance(objective.get("count"), int):
        parts.append(f"of {objective['count']}")
    if isinstance(objective.get("at"), int):
        axis = objective.get("axis") or "step"
        parts.append(f"after {objective['at']} {axis}{'' if objective['at'] == 1 else 's'}")
    told = " ".join(parts) + (", less is better" if objective.get("goal") == "min" else "")
    more = {"task_id": result.get("task_id"), **(result.get("variant") or {})}
    named = [f"{name} {_one_word(v)}" for name, v in sorted(more.items()) if v not in (None, "")]
    return "; ".join([told, *named])


def parsed(told: str) -> dict[str, Any] | None:
    """Returns the result that a line was made of; None if it tells of none."""
    first, *rest = told.split("; ")
    match = _OBJECTIVE.fullmatch(first)
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    objective: dict[str, Any] = {
        "name": match["name"],
        "value": value / 100 if match["rate"] else value,
        "kind": "rate" if match["rate"] else "mean",
        "goal": "min" if match["less"] else "max",
    }
    if match["count"]:
        objective["count"] = int(match["count"])
    if match["at"]:
        at = int(match["at"])
        axis = match["axis"] if at == 1 else match["axis"].removesuffix("s")
        objective |= {"at": at, "axis": axis}
    result: dict[str, Any] = {"objective": objective}
    variant = dict(part.split(" ", 1) for part in rest if " " in part)
    if "task_id" in variant:
        task = variant.pop("task_id")
        result["task_id"] = int(task) if task.isdigit() else task
    return result | ({"variant": variant} if variant else {})


def tell_guild(directory: Path, told: str) -> None:
    """Keeps a line as the attribute `result` of Guild's run in a directory; "" takes it away.

    Without Guild there is nobody to tell, and a disk that takes no line costs no run.
    """
    attributes = directory / ".guild" / "attrs"
    with contextlib.suppress(OSError):
        if not told:
            (attributes / "result").unlink(missing_ok=True)
        elif attributes.is_dir():
            shown = json.dumps(told[:500], ensure_ascii=False)  # JSON is YAML, which Guild reads
            (attributes / "result").write_text(f"{shown}\n", encoding="utf-8")


def hide_label(directory: Path, hide: Callable[[str], str]) -> None:
    """Takes secrets out of the label that Guild wrote, which is published as it stands there.

    Args:
        directory: The run's directory.
        hide: Takes secrets out of a text.
    """
    path = directory / ".guild" / "attrs" / "label"
    label = guild_attribute(directory, "label")
    if label is not None and (clean := hide(str(label))) != str(label):
        with contextlib.suppress(OSError):
            path.write_text(f"{json.dumps(clean, ensure_ascii=False)}\n", encoding="utf-8")


def _one_word(value: object) -> str:
    return " ".join(str(value).split()).replace(";", ",")
