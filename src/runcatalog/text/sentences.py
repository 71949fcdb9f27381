"""Results of runs as sentences in Markdown, computed from their records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runcatalog.model import statistics, values
from runcatalog.model.run_record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    RunRecord,
    checked_objective,
)
from runcatalog.record.lifecycle.signals import NEVER_STARTED
from runcatalog.record.output import outcome as result_text
from runcatalog.text import markdown

_AT = re.compile(r"(?P<what>.+?) at (?P<axis>[a-z][a-z _]*?) (?P<step>\d+)(?:: (?P<more>.*))?")


def sentence(record: RunRecord) -> str:
    """Return the result cell of a single run, as Markdown."""
    parts = [state(record)]
    if variant := variant_text(record):
        parts.append(variant)
    if record.parents:
        known = ", ".join(markdown.escape(parent[:8]) for parent in record.parents)
        parts.append(f"from {known}")
    if record.reported_by:
        parts.append(f"imported: {markdown.escape(record.reported_by)}")
    return "; ".join(part for part in parts if part)


def mark(record: RunRecord) -> str:
    """Return why a run does not count, as Markdown; "" for a run that does."""
    parts = []
    if record.superseded_by:
        parts.append(f"superseded by {record.superseded_by[:8]}: {_why(record.superseded_why)}")
    if record.retracted:
        parts.append(f"retracted: {_why(record.retracted)}")
    return "; ".join(parts)


def _why(text: str) -> str:
    return markdown.escape(text, markdown.MAX_RESULT) or "no reason given"


def state(record: RunRecord) -> str:
    """Return the result of a finished run, or how far another came and why it ended."""
    if record.status == FINISHED:
        return outcome(record)
    if record.status == RUNNING:
        return f"running{_so_far(record)}"
    if record.status == FAILED:
        return failure(record)
    return killed(record)


def outcome(record: RunRecord) -> str:
    """Return the result of a finished run, with its interval."""
    result = record.result or {}
    if summary := markdown.escape(result.get("summary") or "", markdown.MAX_RESULT):
        return summary
    objective = record.objective
    if objective is None:
        return "finished, with no result"
    shown = objective_text(objective, objective["value"])
    if _is_rate(objective) and objective["value"] > 1:
        shown += " (above 100 %: counted wrongly in the source)"
    return f"{shown}{after(objective)}{own_interval(objective)}{also([objective])}"


def objective_text(objective: dict[str, Any], value: float) -> str:
    """Return "93 % opening rate" or "episode return 7696"."""
    return result_text.objective_text(objective, value, markdown.escape)


def value_text(objective: dict[str, Any], value: float) -> str:
    """Return a value without its name: "93 %" or "7696"."""
    return result_text.rate_text(value) if _is_rate(objective) else markdown.number(value)


def after(objective: dict[str, Any]) -> str:
    """Return " after 360 updates"; "" if the objective has no step."""
    return result_text.after(objective, markdown.escape)


def own_interval(objective: dict[str, Any]) -> str:
    """Return the Wilson interval " [86, 97]" of a counted rate."""
    return interval([objective])


def interval(objectives: Sequence[dict[str, Any]]) -> str:
    """Return the interval of :func:`runcatalog.model.statistics.bounds` as " [86, 97]"; "" without one."""
    bounds = statistics.bounds(objectives)
    return result_text.interval_text(objectives[0], *bounds) if bounds else ""


def also(objectives: Sequence[dict[str, Any]]) -> str:
    """Return "; 99 % remembering [98, 100]" for every further number (`also`) that all objectives have."""
    numbers = [further(objective) for objective in objectives]
    parts = []
    for name, first in numbers[0].items():
        entries = [each[name] for each in numbers if name in each]
        if len(entries) == len(numbers):
            mean = statistics.mean([entry["value"] for entry in entries])
            parts.append(f"; {objective_text(first, mean)}{interval(entries)}")
    return "".join(parts)


def further(objective: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the further numbers (`also`) of an objective by name; one alone may be written without a list."""
    entries = objective.get("also")
    checked = (
        checked_objective(entry, objective.get("outcomes", {}))
        for entry in (entries if isinstance(entries, list) else [entries])
    )
    return {number["name"]: number for number in checked if number}


def failure(record: RunRecord) -> str:
    """Return "failed at update 1: gradient explosion (log_std is not finite)"."""
    reason = record.reason or "no reason recorded"
    if reason.startswith(NEVER_STARTED):
        return markdown.escape(reason, markdown.MAX_RESULT)
    match = _AT.fullmatch(" ".join(reason.split()))
    if match is None:
        return f"failed{_reached(record)}: {markdown.escape(reason, markdown.MAX_RESULT)}"
    more = f" ({markdown.escape(match['more'], markdown.MAX_RESULT)})" if match["more"] else ""
    what = markdown.escape(match["what"], markdown.MAX_RESULT)
    return f"failed at {match['axis']} {match['step']}: {what}{more}"


def failure_kind(record: RunRecord) -> str:
    """Return the failure without the numbers of this run, to count failures by kind."""
    if record.status == KILLED:
        return "lost" if record.reason.startswith("lost") else f"killed ({killer(record)})"
    match = _AT.fullmatch(" ".join(record.reason.split()))
    if match is not None:
        return markdown.escape(match["what"])
    return markdown.escape(record.reason.partition("\n")[0] or "no reason recorded")


def failure_place(record: RunRecord) -> str:
    """Return " at update 12" if the reason names the update; else ""."""
    match = _AT.fullmatch(" ".join(record.reason.split()))
    return f" at {match['axis']} {match['step']}" if match else ""


def killed(record: RunRecord) -> str:
    """Return "killed after step 40: SIGTERM", or "lost: …"."""
    if record.reason.startswith("lost"):
        return markdown.escape(record.reason, markdown.MAX_RESULT) + _so_far(record)
    return f"killed{_reached(record)}: {killer(record)}"


def killer(record: RunRecord) -> str:
    """Return the cause of a run's kill."""
    return markdown.escape(record.reason or "unknown cause", markdown.MAX_RESULT)


def point_text(point: dict[str, Any], names: Sequence[str], *, named: bool = False) -> str:
    """Return "5e-3", or "lr=5e-3, clip=0.3" for more than one flag."""
    if len(names) == 1 and not named:
        return markdown.flag_value(point[names[0]])
    return ", ".join(f"{markdown.escape(n)}={markdown.flag_value(point[n])}" for n in names)


def variant_text(record: RunRecord) -> str:
    """Return the options in the result's `variant`, for example the reward."""
    variant = (record.result or {}).get("variant")
    if not isinstance(variant, dict):
        return ""
    parts = [
        f"{markdown.words(name)} {markdown.flag_value(values.parse_flag(value))}"
        for name, value in sorted(variant.items())
        if value not in (None, "")
    ]
    return ", ".join(parts)


def last_step(record: RunRecord) -> int | None:
    """Return the last step of any metric; None without metrics."""
    return max((metric.steps[-1] for metric in record.metrics.values()), default=None)


def _reached(record: RunRecord) -> str:
    step = last_step(record)
    return f" after step {step}" if step is not None else ""


def _so_far(record: RunRecord) -> str:
    step = last_step(record)
    return f", step {step} so far" if step is not None else ""


def _is_rate(objective: dict[str, Any]) -> bool:
    return objective.get("kind") == "rate"
