#!/usr/bin/env python3
"""Add parameter importance to committed records of searches that ended before it was stored.

    .venv/bin/python tools/store_importance.py && catalog render --records

Only batch records under experiments/records without this field change. Works for searches imported from a CSV too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from runcatalog.analysis import groups, searches
from runcatalog.model import record_files
from runcatalog.model.project import Project
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.search.importance import importance


def main() -> None:
    folder = Project.find().records
    paths = {path: record_files.read(path) for path in sorted(folder.glob("*/*.json"))}
    trials: dict[str, list[RunRecord]] = {}
    for record in paths.values():
        if record.batch:
            trials.setdefault(record.batch, []).append(record)
    for path, batch in paths.items():
        own = trials.get(batch.run, [])
        result = batch.result or {}
        if not own or "importance" in result or not searches.is_search(batch, own):
            continue
        value = importance_of(batch, [searches.as_searched(batch, trial) for trial in own])
        if value is not None:
            record_files.write_text(
                path, record_files.dumps(replace(batch, result={**result, "importance": value}))
            )
            print(f"{path}: R² {value['r2']:.2f}")


def importance_of(batch: RunRecord, trials: list[RunRecord]) -> dict[str, Any] | None:
    """Return the importance; without a recorded search space, the range of the trials is used."""
    ended = [t for t in trials if t.status in (FAILED, KILLED) or _is_finite(t)]
    names = groups.varying(ended)
    recorded = (batch.result or {}).get("space") or {}
    space = {n: recorded.get(n) or _space([t.flags.get(n) for t in ended]) for n in names}
    sign = -1 if any((t.objective or {}).get("goal") == "min" for t in ended) else 1
    objectives = [sign * (t.objective or {})["value"] if _is_finite(t) else None for t in ended]
    return importance([{n: t.flags.get(n) for n in names} for t in ended], objectives, space)


def _is_finite(trial: RunRecord) -> bool:
    objective = trial.objective if trial.status == FINISHED else None
    return objective is not None and math.isfinite(objective["value"])


def _space(values: list[Any]) -> dict[str, Any]:
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return {"choices": sorted({str(v) for v in values})}
    low, high = min(values), max(values)
    return {"low": low, "high": high, "log": low > 0 and high >= 100 * low}


if __name__ == "__main__":
    main()
