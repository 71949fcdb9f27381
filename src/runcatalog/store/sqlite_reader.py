"""Reader of an MLflow database in SQLite that uses only the standard library.

Importing MLflow takes longer than reading ten thousand runs, and its client creates an object per tag.
The results equal those of :class:`runcatalog.store.client.Store` for the same database.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from runcatalog.model import values
from runcatalog.model.run_record import Point
from runcatalog.record.delivery.mlflow_client import (
    BUSY,
    is_damage,
    one_line_errors,
    sqlite_path,
    tracking_uri,
)
from runcatalog.record.delivery.names import decode
from runcatalog.record.delivery.points_in_mlflow import POINTS, has_fewer
from runcatalog.store import compat
from runcatalog.store.run_rows import Reader, StoredRun

ROWS = 500  # runs whose tags, params or metrics are read separately; reading all is as fast as more than this
_RUNS = """
SELECT runs.run_uuid, experiments.name, runs.status, runs.lifecycle_stage, COALESCE(tags.value, '')
FROM runs JOIN experiments ON experiments.experiment_id = runs.experiment_id
LEFT JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = 'run_id'
WHERE experiments.lifecycle_stage = 'active' AND (runs.lifecycle_stage = 'active' OR ?)
ORDER BY runs.start_time IS NULL, runs.start_time, runs.run_uuid
"""
_OBJECTS = "SELECT run_uuid, json_group_object(key, value) FROM {} GROUP BY run_uuid"
_VALUE = "CASE WHEN is_nan THEN NULL ELSE value END"
# Not as JSON, which would round numbers to 15 digits.
_LATEST = f"SELECT run_uuid, key, {_VALUE} FROM latest_metrics"
_COLUMN = {
    "tags": "SELECT run_uuid, value FROM tags WHERE key = ?",
    "params": "SELECT run_uuid, value FROM params WHERE key = ?",
    "metrics": f"SELECT run_uuid, {_VALUE} FROM latest_metrics WHERE key = ?",
}
_ROW = {
    "tags": "SELECT key, value FROM tags WHERE run_uuid = ?",
    "params": "SELECT key, value FROM params WHERE run_uuid = ?",
    "metrics": f"SELECT key, {_VALUE} FROM latest_metrics WHERE run_uuid = ?",
}
# Distinct keys, in steps through the primary key, which begins with the key; DISTINCT would read every row.
_KEYS = """
WITH RECURSIVE names(key) AS (
    SELECT MIN(key) FROM {0}
    UNION ALL
    SELECT (SELECT MIN(key) FROM {0} WHERE key > names.key) FROM names WHERE names.key IS NOT NULL
)
SELECT names.key FROM names WHERE EXISTS (
    SELECT 1 FROM {0} JOIN runs ON runs.run_uuid = {0}.run_uuid
    JOIN experiments ON experiments.experiment_id = runs.experiment_id
    JOIN tags AS ids ON ids.run_uuid = runs.run_uuid AND ids.key = 'run_id'
    WHERE {0}.key = names.key AND runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active'
)
"""
# From the index of MLflow that begins with the run, in the order of that index.
_COUNTS = "SELECT run_uuid, COUNT(*) FROM metrics GROUP BY run_uuid"
_POINTS = f"SELECT key, step, {_VALUE} FROM metrics WHERE run_uuid = ? ORDER BY key, step"
_CURVE = f"""
SELECT step, {_VALUE} FROM metrics WHERE run_uuid = ? AND key = ?
ORDER BY step, timestamp, is_nan, value
"""


def reader(uri: str | None = None) -> Reader:
    """Return the fastest reader of an MLflow.

    It reads the file of an SQLite database with the known schema; otherwise it uses MLflow's client.

    Args:
        uri: Server or database; by default $MLFLOW_TRACKING_URI or the project's own.
    """
    uri = tracking_uri(uri)
    path = sqlite_path(uri)
    if path is not None:
        if not path.exists():
            return Database(uri, None)
        with one_line_errors(uri):
            connection = _opened(path)
        if connection is not None:
            return Database(uri, connection)
    from runcatalog.store.client import Store

    return Store(uri)


class Database(Reader):
    """An MLflow database, opened read-only.

    Args:
        uri: Its URI.
        connection: The database; None if it does not exist yet and so has no runs.
    """

    def __init__(self, uri: str, connection: sqlite3.Connection | None) -> None:
        self.uri = uri
        self._connection = connection
        self._points: dict[str, int] | None = None  # number by MLflow id

    def runs(self, *, deleted: bool = False, on_demand: Collection[str] = ()) -> list[StoredRun]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        if self._connection is None:
            return []
        fields = _RunFields(self.uri, self._connection)
        with one_line_errors(self.uri), _snapshot(self._connection) as database:
            rows = database.execute(_RUNS, (deleted,)).fetchall()
            for kind in {"tags", "params", "metrics"}.difference(on_demand):
                fields.read(kind)
        runs = (
            StoredRun.from_mlflow(row[:4], row[4], partial(fields.values, row[0])) for row in rows
        )
        return [run for run in runs if run is not None]

    def names(self, stored: Iterable[StoredRun]) -> tuple[set[str], set[str]]:
        """See :meth:`runcatalog.store.run_rows.Reader.names`."""
        if self._connection is None:
            return set(), set()
        with one_line_errors(self.uri):
            flags, metrics = (
                {decode(row[0]) for row in self._connection.execute(_KEYS.format(table))}
                for table in ("params", "latest_metrics")
            )
        for run in stored:
            if run.tag("changed_flags"):
                flags.update(run.flags)
        return flags, metrics

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        by_run: dict[str, dict[str, list[Point]]] = {}
        if self._connection is None:
            return by_run
        with one_line_errors(self.uri):
            for run_id in run_ids:
                rows = self._connection.execute(_POINTS, (run_id,)).fetchall()
                curves = {
                    decode(key): self._curve(run_id, key, [row[1:] for row in group])
                    for key, group in groupby(rows, itemgetter(0))
                }
                if curves:
                    by_run[run_id] = curves
        return by_run

    def lacks_points(self, stored: StoredRun) -> bool:
        """See :meth:`runcatalog.store.run_rows.Reader.lacks_points`; the points of all runs are counted at once."""
        if self._points is None and self._connection is not None:
            with one_line_errors(self.uri):
                self._points = dict(self._connection.execute(_COUNTS).fetchall())
        return has_fewer(stored.tag(POINTS), points=(self._points or {}).get(stored.id, 0))

    def _curve(self, run_id: str, key: str, curve: list[Any]) -> list[Point]:
        """Return points with NaN restored; if a step has several points, a further query gives their order."""
        assert self._connection is not None
        steps, numbers = zip(*curve, strict=True)
        if len(set(steps)) < len(steps):
            curve = self._connection.execute(_CURVE, (run_id, key)).fetchall()
            numbers = tuple(value for _, value in curve)
        if None in numbers:
            curve = [(step, math.nan if value is None else value) for step, value in curve]
        return curve


class _RunFields:
    """Tags, params and last metrics ("kinds") of runs, read completely, by name or by run, whichever is fastest."""

    def __init__(self, uri: str, connection: sqlite3.Connection) -> None:
        self._uri, self._connection = uri, connection
        self._texts: dict[str, dict[str, str]] = {}  # of tags and params: JSON objects
        self._metrics: dict[str, dict[str, Any]] | None = None
        self._columns: dict[tuple[str, str], dict[str, Any]] = {}
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}

    def read(self, kind: str) -> None:
        """Read a kind for all runs."""
        with one_line_errors(self._uri):
            if kind == "metrics":
                self._metrics = _by_run(self._connection.execute(_LATEST))
            else:
                self._texts[kind] = dict(self._connection.execute(_OBJECTS.format(kind)))

    def values(self, run_id: str, kind: str) -> Mapping[str, Any]:
        """Return a run's values of a kind by name."""
        whole = self._whole(run_id, kind)
        return _Row(self, run_id, kind) if whole is None else whole

    def column(self, kind: str, name: str) -> dict[str, Any]:
        """Return the values of a name by run."""
        if (kind, name) not in self._columns:
            with one_line_errors(self._uri):
                rows = self._connection.execute(_COLUMN[kind], (name,))
                self._columns[kind, name] = dict(rows.fetchall())
        return self._columns[kind, name]

    def row(self, run_id: str, kind: str) -> Mapping[str, Any]:
        """Return all values of a kind for a run."""
        whole = self._whole(run_id, kind)
        if whole is None and len(self._rows) >= ROWS:
            self.read(kind)
            whole = self._whole(run_id, kind)
        if whole is not None:
            return whole
        if (run_id, kind) not in self._rows:
            with one_line_errors(self._uri):
                rows = self._connection.execute(_ROW[kind], (run_id,))
                self._rows[run_id, kind] = dict(rows.fetchall())
        return self._rows[run_id, kind]

    def _whole(self, run_id: str, kind: str) -> Mapping[str, Any] | None:
        """Return a run's values of a kind that was read for all runs; None if it was not."""
        if kind == "metrics":
            return None if self._metrics is None else self._metrics.get(run_id, {})
        return self._parsed(run_id, kind) if kind in self._texts else None

    def _parsed(self, run_id: str, kind: str) -> dict[str, Any]:
        text = self._texts[kind].get(run_id, "{}")
        try:
            return orjson.loads(text)  # all values are text, so no number is rounded
        except ValueError:
            return values.parse_json(text.encode())


class _Row(Mapping[str, Any]):
    """Values of a kind for a run, read on demand; a name is read for all runs at once."""

    def __init__(self, fields: _RunFields, run_id: str, kind: str) -> None:
        self._fields, self._run_id, self._kind = fields, run_id, kind

    def __getitem__(self, name: str) -> Any:
        return self._fields.column(self._kind, name)[self._run_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields.row(self._run_id, self._kind))

    def __len__(self) -> int:
        return len(self._fields.row(self._run_id, self._kind))

    def items(self) -> ItemsView[str, Any]:
        """Return all names and values of the run."""
        return self._fields.row(self._run_id, self._kind).items()


def _opened(path: Path) -> sqlite3.Connection | None:
    """Return a read-only connection; None if the schema is unknown or the database cannot be read.

    A database whose last writer was killed must be repaired first, which MLflow's client does.

    Raises:
        sqlite3.DatabaseError: The file is damaged.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY, isolation_level=None)
        with contextlib.closing(connection.cursor()) as cursor:
            for table, columns in compat.READ_COLUMNS.items():
                existing = {row[1] for row in cursor.execute(f"PRAGMA table_info({table})")}
                if not columns <= existing:
                    return None
            # Raises if SQLite was built without it
            cursor.execute("SELECT json_group_object('a', 1)")
            existing = {row[1] for row in cursor.execute("PRAGMA table_info(experiments)")}
            others = "SELECT 1 FROM experiments WHERE workspace <> 'default' LIMIT 1"
            if "workspace" in existing and cursor.execute(others).fetchone():
                return None  # MLflow's client rejects it unless workspaces are enabled
    except sqlite3.Error as error:
        if is_damage(str(error)):
            raise
        return None
    return connection


@contextlib.contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run several queries in a transaction, so that they see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


def _by_run(rows: Iterable[tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """Group (run, key, value) into values by run and key."""
    by_run: dict[str, dict[str, Any]] = {}
    for run_id, key, value in rows:
        if run_id in by_run:
            by_run[run_id][key] = value
        else:
            by_run[run_id] = {key: value}
    return by_run
