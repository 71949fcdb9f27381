"""Index of all runs: facts, flags and results by column, and the metrics' last and best values."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from runcatalog.analysis import groups
from runcatalog.model import marks, values
from runcatalog.model.project import Operation, Project, with_added_flags
from runcatalog.model.run_record import NOT_OF_SETTING, RunRecord
from runcatalog.numbers import is_number
from runcatalog.pages.tables import batch_summary
from runcatalog.site import columns
from runcatalog.text import terminal

_TEXTS = (
    *("operation", "label", "study", "status", "reason", "machine", "gpu", "host_cpu"),
    *("reported_by", "retracted", "superseded_by", "superseded_why", "split", "commit", "dirty"),
    "batch",
)
_NUMBERS = ("seed", "started", "wall_seconds", "env_steps")
_OBJECTIVE_TEXTS = ("name", "kind", "goal", "axis")
_OBJECTIVE_NUMBERS = ("value", "count", "at")


def index(
    project: Project, records: Sequence[RunRecord], local: Collection[str] = ()
) -> dict[str, Any]:
    """Return what the site knows of every run without its curves.

    Args:
        project: The project.
        records: All records, in the order of the rows.
        local: Ids of the runs that have no up-to-date committed record.
    """
    trials: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.batch:
            trials.setdefault(record.batch, []).append(record)
    objectives = [record.objective or {} for record in records]
    compared = with_added_flags(records, project.operations())
    return {
        "runs": [record.run for record in records],
        "local": [row for row, record in enumerate(records) if record.run in local],
        "texts": {
            name: columns.texts(getattr(record, name) or None for record in records)
            for name in _TEXTS
        },
        "numbers": {
            name: columns.numbers(_fact(record, name) for record in records) for name in _NUMBERS
        },
        "result": columns.texts(_result(record, trials) for record in records),
        "objective": {
            **{n: columns.texts(_text(o, n) for o in objectives) for n in _OBJECTIVE_TEXTS},
            **{n: columns.numbers(_number(o, n) for o in objectives) for n in _OBJECTIVE_NUMBERS},
            "low": columns.numbers(o.get("interval", (None,))[0] for o in objectives),
            "high": columns.numbers(o.get("interval", (None,))[-1] for o in objectives),
            "outcomes": columns.texts(outcomes_text(o) for o in objectives),
        },
        "batches": [row for row, r in enumerate(records) if (r.result or {}).get("batch")],
        "flags": _flags(compared),
        "parents": columns.texts(
            " ".join(parent[:8] for parent in record.parents) or None for record in records
        ),
        **_settings(compared),
        "not_of_setting": sorted(NOT_OF_SETTING),
        "metrics": sorted({name for record in records for name in record.metrics}),
        "operations": _operations(project, records),
        "studies": project.ordered_studies(record.study for record in records),
    }


def metrics(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return last and best value of every metric, each with the rows of the runs that have it."""
    rows: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        for name in record.metrics:
            rows.setdefault(name, []).append(row)
    return {
        name: {
            "rows": columns.sparse(having),
            "last": [columns.number(records[row].metrics[name].last) for row in having],
            "best": [columns.number(records[row].metrics[name].best) for row in having],
        }
        for name, having in sorted(rows.items())
    }


def _result(record: RunRecord, trials: dict[str, list[RunRecord]]) -> str:
    """Return the result of a run or batch as a sentence; marked trials count only in a batch that is marked itself."""
    counted = marks.counted(trials.get(record.run, []), record)
    return terminal.plain(batch_summary.summary(record, counted))


def _fact(record: RunRecord, name: str) -> float | None:
    """Return a number of a record; None for a start that no calendar has, such as one in nanoseconds."""
    value: float | None = getattr(record, name)
    return None if name == "started" and not terminal.when(record.started) else value


def _flags(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the flags as texts, as MLflow stores them: the site parses them as `values.parse_flag` does.

    Runs are compared by them, so they have the declared values of flags that a script did not have yet.
    """
    names = sorted({name for record in records for name in record.comparable_flags})
    return {
        name: columns.texts(
            values.flag_text(flags[name]) if name in (flags := record.comparable_flags) else None
            for record in records
        )
        for name in names
    }


def _settings(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the settings of runs as on the pages, a number for each row, and the rows that repeat one another.

    Superseded and retracted runs are not in a setting with those that count.
    """
    known = {record.run: record for record in records}
    rows = {record.run: row for row, record in enumerate(records)}
    counting = {record.run for record in marks.current(records)}
    parts: dict[tuple[str, bool], list[RunRecord]] = {}
    for record in records:
        parts.setdefault((record.operation, record.run in counting), []).append(record)
    numbers = [0] * len(records)
    alike: dict[tuple[int, str], list[int]] = {}
    settings = (setting for part in parts.values() for setting in groups.by_setting(part, known))
    for number, setting in enumerate(settings):
        for run, key in groups.repetitions(setting, known).items():
            numbers[rows[run]] = number
            alike.setdefault((number, key), []).append(rows[run])
    return {
        "settings": columns.packed(numbers),
        "repetitions": [same for same in alike.values() if len(same) > 1],
    }


def _operations(project: Project, records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return what is declared of the operations: study, description, defaults, units, what the source reported."""
    declared, reported = project.operations(), project.reported()
    pending = project.pending(declared)
    metrics: dict[str, set[str]] = {}
    for record in records:
        metrics.setdefault(record.operation, set()).update(record.metrics)
    return {
        name: {
            "study": operation.study,
            "description": operation.description,
            "flags": _defaults(operation),
            "reported": reported[name].text if name in reported else "",
            "source": reported[name].source if name in reported else "",
            "same_setting": reported[name].same_setting if name in reported else "",
            "units": {
                metric: unit
                for metric in sorted(metrics.get(name, ()))
                if (unit := operation.unit(metric))
            },
            "never": name not in metrics,
            "why": pending.get(name, ""),
        }
        for name, operation in sorted(declared.items())
    }


def _defaults(operation: Operation) -> dict[str, str]:
    """Return an operation's own defaults; a flag with a list starts a batch and has none."""
    return {
        name: values.flag_text(values.parse_flag(value))
        for name, value in operation.flags.items()
        if not isinstance(value, list)
    }


def _text(objective: dict[str, Any], name: str) -> str | None:
    value = objective.get(name)
    return value if isinstance(value, str) else None


def outcomes_text(objective: dict[str, Any]) -> str | None:
    """Return digest of the levels, number of levels, games of each, and the bits in base64; None without outcomes."""
    outcomes = objective.get("outcomes", {}).get(objective.get("name"))
    if outcomes is None:
        return None
    bits = base64.b64encode(outcomes.bits).decode()
    return " ".join(map(str, (outcomes.levels, *outcomes.shape, bits)))


def _number(objective: dict[str, Any], name: str) -> float | None:
    value = objective.get(name)
    return value if is_number(value) else None
