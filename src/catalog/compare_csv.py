"""Takes in what `guild compare --csv` wrote: the trials of a batch as imported records."""

from __future__ import annotations

import csv
import hashlib
import math
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from catalog import values
from catalog.errors import CatalogError
from catalog.model import FAILED, FINISHED, KILLED, RunRecord

_FACTS = ("run", "operation", "started", "time", "status", "label", "sourcecode")
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
    """

    study: str
    objective: str = ""
    goal: str = "max"
    batch: str = ""
    reported_by: str = ""


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the columns and rows of a file.

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
    """Returns the batch and its trials, one batch per operation in the file.

    Raises:
        CatalogError: The file is wrong, or a column that was asked for is not in it.
    """
    columns, rows = read(path)
    rows = [row for row in rows if row["status"] not in _NOT_BEGUN]
    flags, metrics = _split(columns, rows)
    objective = _objective(path, metrics, rows, options.objective)
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
        trials = [_trial(row, batch, source, flags, metrics, objective, options) for row in members]
        found += [_batch(batch, operation, source, trials, options), *trials]
    return found


def _batch(
    batch: str, operation: str, source: str, trials: list[RunRecord], options: Options
) -> RunRecord:
    starts = [t.started for t in trials if t.started is not None]
    return RunRecord(
        run=batch,
        operation=operation,
        study=options.study,
        status=FINISHED,
        result={"batch": True, "method": "imported"},
        reported_by=source,
        started=min(starts, default=None),
        wall_seconds=sum(t.wall_seconds or 0.0 for t in trials),
    )


def _trial(
    row: dict[str, str],
    batch: str,
    source: str,
    flags: list[str],
    metrics: list[str],
    objective: str,
    options: Options,
) -> RunRecord:
    step = _number(row.get("step"))
    at = int(step) if step is not None and math.isfinite(step) else None
    status, reason = _end(row["status"], at)
    value = _number(row.get(objective))
    result: dict[str, Any] | None = None
    if value is not None:
        told = {"name": objective, "value": value, "kind": "mean", "goal": options.goal}
        if at is not None:
            told |= {"at": at, "axis": "step"}
        if also := _rate(row, metrics, objective):
            told["also"] = also
        result = {"objective": told}
    own = {name: values.flag(row[name]) for name in flags if row[name] != ""}
    seed = own.get("seed")
    record = RunRecord(
        run=row["run"],
        batch=batch,
        operation=row["operation"],
        study=options.study,
        status=status,
        reason=reason,
        result=result,
        reported_by=source,
        seed=seed if isinstance(seed, int) and not isinstance(seed, bool) else None,
        flags=own,
        started=_time(row.get("started")),
        wall_seconds=_seconds(row.get("time")),
    )
    numbers = {name: _number(row[name]) for name in metrics}
    return record.with_points({n: [(at or 0, v)] for n, v in numbers.items() if v is not None})


def _split(columns: list[str], rows: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """Returns the columns that are flags and those that are metrics.

    Guild writes flags, then "step", then scalars. Without a step, the labels (`lr=0.1 seed=1`) and what
    is no number tell the flags.
    """
    rest = [name for name in columns if name not in _FACTS]
    if "step" in rest:
        cut = rest.index("step")
        flags, metrics = rest[:cut], rest[cut + 1 :]
    else:
        labelled: set[str] = set()
        for row in rows:
            try:
                tokens = shlex.split(row.get("label") or "")
            except ValueError:
                tokens = []
            labelled.update(token.partition("=")[0] for token in tokens if "=" in token)
        flags = [name for name in rest if name in labelled]
        metrics = [name for name in rest if name not in labelled]
    numeric = [n for n in metrics if all(r[n] == "" or _number(r[n]) is not None for r in rows)]
    return flags, numeric


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


def _rate(row: dict[str, str], metrics: list[str], objective: str) -> dict[str, Any] | None:
    """A rate beside the objective, as a share of 1; the source may have written per cent."""
    for pattern in _RATES:
        for name in metrics:
            value = _number(row[name])
            if name != objective and value is not None and re.search(pattern, name, re.IGNORECASE):
                share = value / 100 if value > 1 else value
                return {"name": name, "value": share, "kind": "rate"}
    return None


def _end(status: str, step: int | None) -> tuple[str, str]:
    if status == "completed":
        return FINISHED, ""
    if status == "terminated":
        return KILLED, "terminated"
    if status == "running":
        return KILLED, "lost: it was running when it was exported"
    place = "before the first step" if step is None else f"at step {step}"
    return FAILED, f"{status or 'error'} {place}"


def _number(shown: str | None) -> float | None:
    try:
        return float(shown or "")
    except ValueError:
        return None


def _time(shown: str | None) -> int | None:
    try:
        moment = datetime.strptime(shown or "", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return int(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _seconds(shown: str | None) -> float | None:
    match = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", shown or "")
    if match is None:
        return None
    return 3600.0 * int(match[1] or 0) + 60.0 * int(match[2]) + int(match[3])
