"""The section "Reproduced": runs that `catalog rerun` has repeated, beside their records."""

from __future__ import annotations

from collections.abc import Iterable

from runcatalog.analysis import groups
from runcatalog.model import statistics, values
from runcatalog.model.run_record import RunRecord
from runcatalog.text import markdown

_HEAD = ("run", "operation", "recorded", "repeated", "bits", "CPU of the record", "CPU now", "day")
_PROSE = (
    "`catalog rerun RUN` repeats a run at its commit with every flag of its record. Bits are equal where the digests "
    "of the final weights and of all metrics are equal, which is promised for one kind of CPU and the same packages; "
    "brackets are the 95 % interval of the recorded value, where successes were counted."
)


def section(records: Iterable[RunRecord]) -> str:
    """Return the section: a row for each repetition; "" without any."""
    repeated = [r for r in sorted(records, key=groups.order) if r.reproduced]
    if not repeated:
        return ""
    equal = sum(bool(r.reproduced[-1].get("bits")) for r in repeated)
    lines = [
        "## Reproduced",
        "",
        f"{_PROSE} {len(repeated)} runs were repeated, {equal} with equal bits.",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{'---|' * len(_HEAD)}",
    ]
    for record in repeated:
        for entry in record.reproduced:
            cells = (
                record.id8,
                record.operation,
                _recorded(record),
                _number(entry.get("value")),
                "equal" if entry.get("bits") else "different",
                record.host_cpu or "–",
                str(entry.get("cpu") or "–"),
                str(entry.get("when") or "–"),
            )
            lines.append(f"| {' | '.join(markdown.escape(cell, 300) for cell in cells)} |")
    return "\n".join(lines)


def _recorded(record: RunRecord) -> str:
    objective = record.objective
    if objective is None:
        return "–"
    text = markdown.number(objective["value"])
    interval = statistics.bounds([objective])
    if interval is None:
        return text
    return f"{text} [{markdown.number(interval[0])}, {markdown.number(interval[1])}]"


def _number(value: object) -> str:
    try:
        return markdown.number(values.number(value))
    except ValueError:
        return "–"
