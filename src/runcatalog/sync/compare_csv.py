"""Import of `guild compare --csv` exports: the trials of a batch as records.

An operation's `compare:` attribute identifies flags, metrics and the unit of the steps, and the column `result`
(`record.output.outcome`) contains the outcome of a run of this project. Exports of other projects have neither:
there, flags are recognised by position and labels, and the objective is guessed by name.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from runcatalog.analysis import groups
from runcatalog.guild.runs import is_automatic
from runcatalog.guild.scalars import find
from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.guild_columns import ATTRIBUTE, FLAG, SCALAR, Column
from runcatalog.model.project import Objective
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord, is_maximized
from runcatalog.record.output import outcome

_FACTS = ("run", "operation", "started", "time", "status", "label", "sourcecode")
_RESULT, _HOST = "result", "host"  # attributes with the outcome and the machine
_MAX_STEP = 1 << 63  # limit of integers in a database
_REQUIRED = ("run", "operation", "status")
_NOT_STARTED = ("pending", "staged")
_STATUSES = ("completed", "error", "terminated", "running", *_NOT_STARTED, "")
# Patterns of an objective's name, most likely first, for exports that do not declare one.
_MOST = 2  # a column of rates with a larger value is in per cent; rates above 1 occur where a source counted wrongly
_RATE = "(?<!learning)(?<!learning.)rate"
_OBJECTIVES = ("objective", "episode_?rewards?$", "episode_?return", "return", "reward", _RATE)
_RATES = ("opening_?rate", "success_?rate", _RATE)


@dataclass(frozen=True)
class Options:
    """How to read a file.

    Attributes:
        study: The trials' study.
        objective: Column with the objective; "" for the declared one, without which it is guessed.
        goal: "max" or "min"; "" for that of the declared objective, without one "min" for a loss or an error.
        batch: Id of the batch; "" to derive one.
        reported_by: Source of the file; "" for its name.
        columns: Columns declared for `guild compare`, by operation.
        flags: Names of flags, by operation.
        objectives: Declared objective, by operation.
        machines: Name of the machine, by host.
    """

    study: str
    objective: str = ""
    goal: str = ""
    batch: str = ""
    reported_by: str = ""
    columns: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Layout:
    """Meaning of the columns of a file.

    Attributes:
        flags: Names of flags, by header.
        metrics: Names of metrics, by header.
        step: Header of the column with the step; "" without one.
        axis: Unit of the steps, for example "update".
        objective: Header of the objective; "" without metrics.
        goal: "max" or "min".
        result: Header of the outcome line; "" without one.
        host: Header of the host's name; "" without one.
        percentages: Headers of metrics with a value above 2, which are per cent if they are rates.
    """

    flags: dict[str, str]
    metrics: dict[str, str]
    step: str
    axis: str
    objective: str = ""
    goal: str = "max"
    result: str = ""
    host: str = ""
    percentages: frozenset[str] = frozenset()


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read the columns and rows of a file.

    Raises:
        CatalogError: The file is not an export of `guild compare --csv`.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            rows = list(reader)
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CatalogError(f"{path}: not a CSV file ({error})") from None
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise CatalogError(
            f"{path}: no column {missing[0]!r}; an export of `guild compare --csv` is expected"
        )
    if len(set(columns)) != len(columns):
        raise CatalogError(f"{path}: two columns have the same name")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise CatalogError(f"{path}:{number}: {len(columns)} cells are expected")
        for name, kind, is_valid in (
            ("run", "an id", bool(re.fullmatch("[0-9a-f]{8,32}", row["run"]))),
            ("status", "a status", row["status"] in _STATUSES),
        ):
            if not is_valid:
                raise CatalogError(
                    f"{path}:{number}: {name} {row[name][:40]!r} is not {kind} of Guild, which exports "
                    f"a flag or scalar named {name!r} in place of its own; import the runs' directories instead"
                )
    return columns, rows


def records(path: Path, options: Options) -> list[RunRecord]:
    """Return the batches and their trials, a batch per operation in the file.

    Raises:
        CatalogError: The file is invalid, or lacks the requested column.
    """
    columns, rows = read(path)
    rows = [row for row in rows if row["status"] not in _NOT_STARTED]
    layout = _layout(path, columns, rows, options)
    by_operation: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_operation.setdefault(row["operation"], []).append(row)
    if options.batch and len(by_operation) > 1:
        raise CatalogError(
            f"{path}: --batch names a single batch, the file has {len(by_operation)}"
        )
    source = options.reported_by or f"guild compare, {path.name}"
    records_ = []
    for operation, rows_of_operation in sorted(by_operation.items()):
        # The first trial gives the id, so that a later export with more trials is the same batch.
        first = min(rows_of_operation, key=lambda row: (row.get("started") or "~", row["run"]))
        derived_id = hashlib.sha256(f"{operation} {first['run']}".encode()).hexdigest()[:32]
        batch = options.batch or derived_id
        own = _with_objective(path, layout, operation, rows_of_operation, options)
        trials = [_trial(row, batch, source, own, options) for row in rows_of_operation]
        records_ += [_batch(batch, operation, source, trials, options), *trials]
    return records_


def _batch(
    batch: str, operation: str, source: str, trials: list[RunRecord], options: Options
) -> RunRecord:
    starts = [t.started for t in trials if t.started is not None]
    ends = [t.started + int(1000 * (t.wall_seconds or 0)) for t in trials if t.started is not None]
    labels = {trial.label for trial in trials}
    return RunRecord(
        run=batch,
        operation=operation,
        study=options.study,
        status=FINISHED,
        label=labels.pop() if len(labels) == 1 else "",
        result={"batch": True, "method": "grid" if _is_grid(trials) else "imported"},
        reported_by=source,
        machine=trials[0].machine,
        started=min(starts, default=None),
        wall_seconds=(max(ends) - min(starts)) / 1000 if starts else None,
    )


def _is_grid(trials: Sequence[RunRecord]) -> bool:
    """Return whether the trials form a grid: few values per flag, most combinations present.

    The file does not contain the search method. An interrupted grid has at least half of the combinations, a
    random or Gaussian-process search over two or more flags almost none.
    """
    flags = groups.varying(trials)
    points = {tuple(values.flag_text(t.flags.get(n)) for n in flags) for t in trials}
    spread = [len({values.flag_text(t.flags.get(n)) for t in trials}) for n in flags]
    return math.prod(spread) <= 2 * len(points)


def _trial(
    row: dict[str, str], batch: str, source: str, layout: _Layout, options: Options
) -> RunRecord:
    step = _number(row.get(layout.step))
    at = int(step) if step is not None and abs(step) < _MAX_STEP else None
    outcome_line = row.get(layout.result, "")
    status, reason = _status_and_reason(row["status"], at, outcome_line)
    result = outcome.parse(outcome_line) if status == FINISHED and not options.objective else None
    value = _number(row.get(layout.objective))
    if result is None and value is not None:
        name = layout.metrics[layout.objective]
        objective = {"name": name, "value": value, "kind": "mean", "goal": layout.goal}
        if at is not None:
            objective |= {"at": at, "axis": layout.axis}
        if rate := _rate(row, layout):
            objective["also"] = [rate]
        result = {"objective": objective}
    flags = {
        name: values.parse_flag(row[header]) for header, name in layout.flags.items() if row[header]
    }
    seed = flags.get("seed")
    known = {*flags, *options.flags.get(row["operation"], ())}
    host = row.get(layout.host, "")
    record = RunRecord(
        run=row["run"],
        batch=batch,
        operation=row["operation"],
        study=options.study,
        status=status,
        reason=reason,
        label=_label(row, known) if layout.result else "",
        result=result,
        reported_by=source,
        seed=seed if isinstance(seed, int) and not isinstance(seed, bool) else None,
        flags=flags,
        machine=options.machines.get(host, host),
        started=_time(row.get("started")),
        wall_seconds=_seconds(row.get("time")),
    )
    numbers = {name: _number(row[header]) for header, name in layout.metrics.items()}
    return record.with_points({n: [(at or 0, v)] for n, v in numbers.items() if v is not None})


def _label(row: dict[str, str], flags: set[str]) -> str:
    label = row.get("label") or ""
    return "" if is_automatic(label, flags) else label


def _layout(
    path: Path, headers: list[str], rows: list[dict[str, str]], options: Options
) -> _Layout:
    operations = {row["operation"] for row in rows}
    declared = {c.header: c for name in operations for c in options.columns.get(name, ())}
    known_flags = {flag for name in operations for flag in options.flags.get(name, ())}
    column_of = {header: declared[header] for header in headers if header in declared}
    if column_of:
        # A column from --cols is a flag if the operation has a flag of that name.
        flags = {h: c.name for h, c in column_of.items() if c.kind == FLAG}
        undeclared = [h for h in headers if h not in column_of and h not in _FACTS]
        flags |= {header: header for header in undeclared if header in known_flags}
        # Statistics such as the mean are separate metrics, named by their header.
        metrics = {
            header: c.name if c.statistic == "last" else header
            for header, c in column_of.items()
            if c.kind == SCALAR and not c.is_step
        }
        metrics |= {
            header: header
            for header in undeclared
            if header not in known_flags and header != "step"
        }
    else:
        guessed, numeric = _guess_flags_and_metrics(headers, rows)
        flags, metrics = {h: h for h in guessed}, {h: h for h in numeric}
    attribute_headers = {c.name: h for h, c in column_of.items() if c.kind == ATTRIBUTE}
    step = next((h for h, c in column_of.items() if c.is_step), "step" if "step" in headers else "")
    scalars = {h for h, c in column_of.items() if c.kind == SCALAR}
    if not column_of and "step" in headers:
        scalars = set(metrics)
    metrics = {h: n for h, n in metrics.items() if _is_numeric(path, h, rows, h in scalars)}
    percentages = {h for h in metrics if any((_number(row[h]) or 0) > _MOST for row in rows)}
    return _Layout(
        flags,
        metrics,
        step,
        step.removesuffix("s") or "step",
        result=attribute_headers.get(_RESULT, ""),
        host=attribute_headers.get(_HOST, ""),
        percentages=frozenset(percentages),
    )


def _with_objective(
    path: Path, layout: _Layout, operation: str, rows: list[dict[str, str]], options: Options
) -> _Layout:
    """Return the layout with the objective of an operation's rows."""
    found, goal = _declared_objective(operation, layout.metrics, options)
    objective = _objective(path, list(layout.metrics), rows, options.objective or found)
    if objective != found:
        goal = "max" if is_maximized(layout.metrics.get(objective, ""), None) else "min"
    goal = options.goal or goal
    return replace(layout, objective=objective, goal=goal)


def _guess_flags_and_metrics(
    columns: list[str], rows: list[dict[str, str]]
) -> tuple[list[str], list[str]]:
    """Return (flags, metrics) of a file without declared columns.

    Guild writes flags, then "step", then scalars. Without a step, labels (`lr=0.1 seed=1`) identify the flags.
    """
    candidates = [name for name in columns if name not in _FACTS]
    if "step" in candidates:
        step_index = candidates.index("step")
        return candidates[:step_index], candidates[step_index + 1 :]
    labelled: set[str] = set()
    for row in rows:
        try:
            tokens = shlex.split(row.get("label") or "")
        except ValueError:
            tokens = []
        labelled.update(token.partition("=")[0] for token in tokens if "=" in token)
    flags = [name for name in candidates if name in labelled]
    return flags, [name for name in candidates if name not in labelled]


def _is_numeric(path: Path, header: str, rows: list[dict[str, str]], is_scalar: bool) -> bool:
    """Return whether a column has numbers alone.

    Raises:
        CatalogError: It has both numbers and texts, although it is a scalar.
    """
    texts = [row for row in rows if row[header] and _number(row[header]) is None]
    if texts and is_scalar and any(_number(row[header]) is not None for row in rows):
        run, text = texts[0]["run"][:8], texts[0][header][:40]
        raise CatalogError(f"{path}: run {run}: {header} is {text!r}, which is no number")
    return not texts


def _declared_objective(
    operation: str, metrics: Mapping[str, str], options: Options
) -> tuple[str, str]:
    """Return (header, goal) of the objective that an operation declares; ("", "") without one."""
    objective = options.objectives.get(operation)
    scalar = find(objective.scalar, list(metrics.values())) if objective else None
    header = next((h for h, name in metrics.items() if name == scalar), "")
    return (header, objective.goal) if objective and header else ("", "")


def _objective(path: Path, metrics: list[str], rows: list[dict[str, str]], requested: str) -> str:
    non_empty = [name for name in metrics if any(row[name] for row in rows)]
    if requested:
        if requested not in metrics:
            known = ", ".join(metrics[:8]) or "none"
            raise CatalogError(f"{path}: no metric {requested!r}; metrics: {known}")
        return requested
    for pattern in _OBJECTIVES:
        for name in non_empty:
            if re.search(pattern, name, re.IGNORECASE):
                return name
    return non_empty[0] if non_empty else ""


def _rate(row: dict[str, str], layout: _Layout) -> dict[str, Any] | None:
    """Return a rate other than the objective, in [0, 1]."""
    for pattern in _RATES:
        for header, name in layout.metrics.items():
            value = _number(row[header])
            if header != layout.objective and value is not None:
                if not re.search(pattern, name, re.IGNORECASE):
                    continue
                fraction = value / 100 if header in layout.percentages else value
                return {"name": name, "value": fraction, "kind": "rate"}
    return None


def _status_and_reason(status: str, step: int | None, outcome_line: str) -> tuple[str, str]:
    if status == "completed":
        return FINISHED, ""
    if status == "terminated" or outcome_line.startswith(outcome.KILLED):
        return KILLED, outcome_line.removeprefix(outcome.KILLED) or "terminated"
    if status == "running":
        return KILLED, "lost: it was running when it was exported"
    position = "before the first step" if step is None else f"at step {step}"
    return FAILED, outcome_line or f"{status or 'error'} {position}"


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _time(text: str | None) -> int | None:
    """Return milliseconds since the epoch; Guild writes local time without a time zone."""
    try:
        moment = datetime.strptime(text or "", "%Y-%m-%d %H:%M:%S")
        return int(moment.timestamp() * 1000)  # in this machine's time zone, or $TZ
    except (ValueError, OverflowError, OSError):
        return None


def _seconds(text: str | None) -> float | None:
    match = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text or "")
    if match is None:
        return None
    return 3600.0 * int(match[1] or 0) + 60.0 * int(match[2]) + int(match[3])
