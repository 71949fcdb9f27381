"""Takes in what `guild compare --csv` wrote: the trials of a batch as imported records.

An operation's `compare:` attribute says which column is a flag, which a metric, and the unit of the steps; the column
`result` (`record.delivery.outcome`) is the whole outcome of a run of this project. An export of another project has
neither: there, position and labels tell flags, and the likeliest metric is the objective.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from runcatalog.analysis import groups
from runcatalog.guild.runs import is_automatic
from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.guild_columns import ATTRIBUTE, FLAG, SCALAR, Column
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.record.delivery import outcome

_FACTS = ("run", "operation", "started", "time", "status", "label", "sourcecode")
_RESULT, _HOST = "result", "host"  # attributes that say the outcome, and the machine
_NEEDED = ("run", "operation", "status")
_NOT_BEGUN = ("pending", "staged")
# What a study most likely optimised, where nothing else is said.
_OBJECTIVES = ("objective", "episode_?rewards?$", "episode_?return", "return", "reward", "rate")
_RATES = ("opening_?rate", "success_?rate", "rate")


@dataclass(frozen=True)
class Options:
    """How to read a file.

    Attributes:
        study: The trials' study.
        objective: Column that was optimised; "" for the likeliest.
        goal: "max" or "min".
        batch: Id of the batch, if it is known.
        reported_by: Where the file is from; "" for its name.
        columns: What operations declare for `guild compare`, by operation.
        flags: Flags that operations have, by operation.
        machines: Name of a machine by its host.
    """

    study: str
    objective: str = ""
    goal: str = "max"
    batch: str = ""
    reported_by: str = ""
    columns: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Layout:
    """What the columns of a file are.

    Attributes:
        flags: Names of flags, by header.
        metrics: Names of metrics, by header.
        step: Header of the column with the step; "" without one.
        axis: Of what the steps are, for example "update".
        objective: Header of what was optimised; "" without metrics.
        result: Header of the outcome in one line; "" without one.
        host: Header of the host's name; "" without one.
    """

    flags: dict[str, str]
    metrics: dict[str, str]
    step: str
    axis: str
    objective: str = ""
    result: str = ""
    host: str = ""


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of a file.

    Raises:
        CatalogError: It is no export of `guild compare --csv`.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            rows = list(reader)
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CatalogError(f"{path}: no CSV ({error})") from None
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise CatalogError(
            f"{path}: no column {missing[0]!r}; an export of `guild compare --csv` is expected"
        )
    if len(set(columns)) != len(columns):
        raise CatalogError(f"{path}: two columns have the same name")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise CatalogError(f"{path}:{number}: {len(columns)} cells are expected")
        if not re.fullmatch("[0-9a-f]{8,32}", row["run"]):
            raise CatalogError(f"{path}:{number}: run {row['run'][:40]!r} is no id of Guild")
    return columns, rows


def records(path: Path, options: Options) -> list[RunRecord]:
    """Return the batch and its trials, one batch per operation in the file.

    Raises:
        CatalogError: The file is wrong, or a column that was asked for is not in it.
    """
    headers, rows = read(path)
    rows = [row for row in rows if row["status"] not in _NOT_BEGUN]
    layout = _layout(path, headers, rows, options)
    by_operation: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_operation.setdefault(row["operation"], []).append(row)
    if options.batch and len(by_operation) > 1:
        raise CatalogError(f"{path}: --batch names one batch, the file has {len(by_operation)}")
    source = options.reported_by or f"guild compare, {path.name}"
    found = []
    for operation, members in sorted(by_operation.items()):
        # Made of the first trial, so that a later export with more of them is the same batch.
        first = min(members, key=lambda row: (row.get("started") or "~", row["run"]))
        made = hashlib.sha256(f"{operation} {first['run']}".encode()).hexdigest()[:32]
        batch = options.batch or made
        trials = [_trial(row, batch, source, layout, options) for row in members]
        found += [_batch(batch, operation, source, trials, options), *trials]
    return found


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
    """Return whether flags take few values in all combinations, and not a new one in each trial.

    A file does not say how its trials were chosen. Of a grid that was ended half way, half of the
    combinations are there; of a search over two flags or more, nearly none.
    """
    flags = groups.varying(trials)
    points = {tuple(values.flag_text(t.flags.get(n)) for n in flags) for t in trials}
    spread = [len({values.flag_text(t.flags.get(n)) for t in trials}) for n in flags]
    return math.prod(spread) <= 2 * len(points)


def _trial(
    row: dict[str, str], batch: str, source: str, layout: _Layout, options: Options
) -> RunRecord:
    step = _number(row.get(layout.step))
    at = int(step) if step is not None and math.isfinite(step) else None
    said = row.get(layout.result, "")
    status, reason = _end(row["status"], at, said)
    result = outcome.parsed(said) if status == FINISHED and not options.objective else None
    value = _number(row.get(layout.objective))
    if result is None and value is not None:
        name = layout.metrics[layout.objective]
        objective = {"name": name, "value": value, "kind": "mean", "goal": options.goal}
        if at is not None:
            objective |= {"at": at, "axis": layout.axis}
        if also := _rate(row, layout):
            objective["also"] = also
        result = {"objective": objective}
    own = {name: values.flag(row[header]) for header, name in layout.flags.items() if row[header]}
    seed = own.get("seed")
    known = {*own, *options.flags.get(row["operation"], ())}
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
        flags=own,
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
    known = {flag for name in operations for flag in options.flags.get(name, ())}
    of = {header: declared[header] for header in headers if header in declared}
    if of:
        # A column that was asked for with --cols is a flag if the operation has such a flag.
        flags = {h: c.name for h, c in of.items() if c.kind == FLAG}
        rest = [h for h in headers if h not in of and h not in _FACTS]
        flags |= {header: header for header in rest if header in known}
        # The mean of a metric's values is no value of the metric: it goes by its own name.
        metrics = {
            header: c.name if c.of == "last" else header
            for header, c in of.items()
            if c.kind == SCALAR and not c.is_step
        }
        metrics |= {header: header for header in rest if header not in known and header != "step"}
    else:
        guessed, numeric = _split(headers, rows)
        flags, metrics = {h: h for h in guessed}, {h: h for h in numeric}
    told_by = {c.name: h for h, c in of.items() if c.kind == ATTRIBUTE}
    step = next((h for h, c in of.items() if c.is_step), "step" if "step" in headers else "")
    metrics = {h: n for h, n in metrics.items() if _is_numeric(h, rows)}
    return _Layout(
        flags,
        metrics,
        step,
        step.removesuffix("s") or "step",
        _objective(path, list(metrics), rows, options.objective),
        told_by.get(_RESULT, ""),
        told_by.get(_HOST, ""),
    )


def _split(columns: list[str], rows: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """Return the columns that are flags and those that are metrics, where nothing declares them.

    Guild writes flags, then "step", then scalars. Without a step, the labels (`lr=0.1 seed=1`) tell the
    flags.
    """
    rest = [name for name in columns if name not in _FACTS]
    if "step" in rest:
        cut = rest.index("step")
        return rest[:cut], rest[cut + 1 :]
    labelled: set[str] = set()
    for row in rows:
        try:
            tokens = shlex.split(row.get("label") or "")
        except ValueError:
            tokens = []
        labelled.update(token.partition("=")[0] for token in tokens if "=" in token)
    flags = [name for name in rest if name in labelled]
    return flags, [name for name in rest if name not in labelled]


def _is_numeric(header: str, rows: list[dict[str, str]]) -> bool:
    return all(row[header] == "" or _number(row[header]) is not None for row in rows)


def _objective(path: Path, metrics: list[str], rows: list[dict[str, str]], asked: str) -> str:
    filled = [name for name in metrics if any(row[name] for row in rows)]
    if asked:
        if asked not in metrics:
            known = ", ".join(metrics[:8]) or "none"
            raise CatalogError(f"{path}: no metric {asked!r}; there are: {known}")
        return asked
    for pattern in _OBJECTIVES:
        for name in filled:
            if re.search(pattern, name, re.IGNORECASE):
                return name
    return filled[0] if filled else ""


def _rate(row: dict[str, str], layout: _Layout) -> dict[str, Any] | None:
    """A rate beside the objective, as a share of 1; the source may have written per cent."""
    for pattern in _RATES:
        for header, name in layout.metrics.items():
            value = _number(row[header])
            if header != layout.objective and value is not None:
                if not re.search(pattern, name, re.IGNORECASE):
                    continue
                share = value / 100 if value > 1 else value
                return {"name": name, "value": share, "kind": "rate"}
    return None


def _end(status: str, step: int | None, said: str) -> tuple[str, str]:
    if status == "completed":
        return FINISHED, ""
    if status == "terminated" or said.startswith(outcome.KILLED):
        return KILLED, said.removeprefix(outcome.KILLED) or "terminated"
    if status == "running":
        return KILLED, "lost: it was running when it was exported"
    place = "before the first step" if step is None else f"at step {step}"
    return FAILED, said or f"{status or 'error'} {place}"


def _number(shown: str | None) -> float | None:
    try:
        return float(shown or "")
    except ValueError:
        return None


def _time(shown: str | None) -> int | None:
    """Milliseconds since the epoch; Guild writes the local time, and does not say which place's."""
    try:
        moment = datetime.strptime(shown or "", "%Y-%m-%d %H:%M:%S")
        return int(moment.timestamp() * 1000)  # of this machine's place, or $TZ
    except (ValueError, OverflowError, OSError):
        return None


def _seconds(shown: str | None) -> float | None:
    match = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", shown or "")
    if match is None:
        return None
    return 3600.0 * int(match[1] or 0) + 60.0 * int(match[2]) + int(match[3])
