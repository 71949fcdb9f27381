"""Runs of the committed records, read beside those in MLflow: a fresh clone needs no import to be searched.

Marks of committed records count for the runs in MLflow too: a colleague's `catalog forget` comes with `git pull`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import index
from pathlib import Path
from typing import Any

import orjson

from runcatalog.model import values
from runcatalog.model.record_files import read
from runcatalog.model.run_record import Point, from_json
from runcatalog.record.delivery.names import encode
from runcatalog.store.run_rows import Reader, StoredRun, mark_tags, params_of, tags_of

_DIGITS = 8  # of a run's id that the name of its file begins with
# As `record_files.dumps` writes them; parsing all records would take far longer.
_MARKS = (b'\n "retracted": "', b'\n "superseded_by": "')
_PREFIX = "record "  # of the ids that stand in for MLflow's


class WithCommitted(Reader):
    """The runs of a reader with the marks of their committed records, and the runs that only these have.

    Args:
        source: Reader of MLflow.
        folder: Folder of the records.
    """

    def __init__(self, source: Reader, folder: Path) -> None:
        self.uri = source.uri
        self._source = source
        self._folder = folder
        self._paths: dict[str, Path] = {}  # of the records that MLflow does not have, by id

    def runs(self, *, deleted: bool = False, on_demand: Collection[str] = ()) -> list[StoredRun]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        stored = self._source.runs(deleted=deleted, on_demand=on_demand)
        known = {run.run[:_DIGITS]: run for run in stored}
        self._paths = {}
        missing, marks = [], {}
        for path in sorted(self._folder.glob("*/*.json")):
            in_mlflow = known.get(path.name[:_DIGITS])
            if in_mlflow is None:
                run = _stored(path)
                self._paths[run.id] = path
                missing.append(run)
            elif _is_marked(path) and in_mlflow.is_current:
                record = read(path)
                marks[record.run] = mark_tags(record)
        stored = [_with_tags(run, marks.get(run.run)) for run in stored]
        return sorted([*stored, *missing], key=_start) if missing else stored

    def names(self, stored: Iterable[StoredRun]) -> tuple[set[str], set[str]]:
        """See :meth:`runcatalog.store.run_rows.Reader.names`."""
        stored = list(stored)
        flags, metrics = self._source.names([s for s in stored if s.id not in self._paths])
        more = super().names(s for s in stored if s.id in self._paths)
        return flags | more[0], metrics | more[1]

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        found = self._source.points([id_ for id_ in run_ids if id_ not in self._paths])
        for id_ in run_ids:
            if id_ in self._paths:
                metrics = read(self._paths[id_]).metrics
                found[id_] = {name: list(metric.curve) for name, metric in metrics.items()}
        return found


def _is_marked(path: Path) -> bool:
    content = path.read_bytes()
    return any(mark in content for mark in _MARKS)


def _with_tags(run: StoredRun, tags: dict[str, str] | None) -> StoredRun:
    """Return a run with further tags; the run itself without any."""
    if tags is None:
        return run

    def load(kind: str) -> dict[str, Any]:
        return {**run.load(kind), **(tags if kind == "tags" else {})}

    return replace(run, load=load)


def _stored(path: Path) -> StoredRun:
    """Return the run of a record, as if it was in MLflow.

    Of a curve only the last step is checked: checking all points would double the time. `points` does.

    Raises:
        CatalogError: The file is not a record.
    """
    try:
        content = orjson.loads(path.read_bytes())
        metrics = content.pop("metrics")
        # The last point of the curve, as `from_json` has it, and not the field `last` beside it.
        ends = {encode(name): m["curve"][-1] for name, m in metrics.items()}
        last = {name: values.number(value) for name, (_, value) in ends.items()}
        steps = {name: index(step) for name, (step, _) in ends.items()}
        record = from_json(content, str(path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        record = read(path)
        last = {encode(name): metric.last for name, metric in record.metrics.items()}
        steps = {encode(name): metric.steps[-1] for name, metric in record.metrics.items()}
    id_ = f"{_PREFIX}{record.run}"
    load: dict[str, Callable[[], Mapping[str, Any]]] = {
        "tags": lambda: tags_of(record),
        "params": lambda: params_of(record),
        "metrics": lambda: last,
        "steps": lambda: steps,
    }
    return StoredRun(
        id_, record.run, record.study, record.status, False, cache(lambda kind: load[kind]())
    )


def _start(stored: StoredRun) -> tuple[float, str]:
    """Return the sort key by start; runs without one come last."""
    return (math.inf if stored.started is None else stored.started), stored.run
