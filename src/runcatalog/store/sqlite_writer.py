"""Writer of new, ended runs to an MLflow database in SQLite, many per transaction.

MLflow's client uses a transaction with a sync to disk per call, validates every point, and scans all runs to find out
whether a run_id exists. The rows written here equal those of :class:`mlflow.MlflowClient`; a test compares all of them.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runcatalog.record.delivery.mlflow_client import BUSY, chunks, sqlite_path
from runcatalog.record.errors import UserError
from runcatalog.store import compat

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Param, Run, RunTag

# In KiB: with SQLite's default of 2 MiB a large transaction is written to disk twice
CACHE = 64 * 1024
_ROWS = 100  # rows per statement
# Columns of a point that differ within a curve.
_POINT = ("step", "timestamp", "value", "is_nan")
_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'metrics' AND sql IS NOT NULL"
_SET_TAG = """
INSERT INTO tags (key, value, run_uuid)
SELECT ?, ?, run_uuid FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'
ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value
"""
_SET_EXPERIMENT_TAG = """
INSERT INTO experiment_tags (key, value, experiment_id)
SELECT ?, ?, experiment_id FROM experiments WHERE experiment_id = ? AND lifecycle_stage = 'active'
ON CONFLICT (key, experiment_id) DO UPDATE SET value = excluded.value
"""
_RUN_ID = re.compile(r"tags\.run_id = '([0-9a-f]+)'")


class RunExists(UserError):
    """Another process has added a run with the same run_id."""


class Points(NamedTuple):
    """Points of a metric as columns.

    Attributes:
        steps: Steps.
        times: Milliseconds since the epoch.
        values: Values; NaN and infinities included.
    """

    steps: Sequence[int]
    times: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class NewRun:
    """A run that has ended, as MLflow stores it.

    Attributes:
        experiment: The experiment.
        name: Its name.
        status: Final status.
        started, ended: Milliseconds since the epoch.
        tags, params: Values by name; the tags include `run_id`.
        metrics: Points by name.
        id: MLflow id.
    """

    experiment: Experiment
    name: str
    status: str
    started: int
    ended: int
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, Points]
    id: str

    @property
    def run_id(self) -> str:
        """The run_id, as used by journals, Guild and records."""
        return self.tags.get("run_id", "")

    @property
    def count(self) -> int:
        """Number of points."""
        return sum(len(points.steps) for points in self.metrics.values())

    @cached_property
    def stored(self) -> dict[str, tuple[Sequence[float], Iterable[bool]]]:
        """Values as MLflow stores them, and whether they are NaN, by metric."""
        return {key: _storable(points.values) for key, points in self.metrics.items()}

    def rows(self) -> dict[str, Iterator[tuple[Any, ...]]]:
        """Return its rows by table, except those of points, in the order of `compat.WRITTEN_COLUMNS`."""
        run = (
            self.id,
            self.name,
            "UNKNOWN",
            "",
            "",
            self.tags.get("mlflow.user", "unknown"),
            self.status,
            self.started,
            self.ended,
            "",
            "active",
            artifact_uri(self.experiment, self.id),
            int(self.experiment.experiment_id),
            None,
        )
        return {
            "runs": iter([run]),
            "tags": ((key, value, self.id) for key, value in self.tags.items()),
            "params": ((key, value, self.id) for key, value in self.params.items()),
            "latest_metrics": (self._latest(key) for key in self.metrics),
        }

    def points(self) -> Iterator[tuple[str, str, Iterable[tuple[Any, ...]]]]:
        """Yield the (key, MLflow id, rows of `_POINT`) of each metric."""
        for key, (steps, times, _) in self.metrics.items():
            values, is_nan = self.stored[key]
            yield key, self.id, zip(steps, times, values, is_nan, strict=False)

    def _latest(self, key: str) -> tuple[Any, ...]:
        """Return the row of the point that MLflow shows, the largest by (step, time, value)."""
        steps, times, _ = self.metrics[key]
        stored = self.stored[key]
        order = list(zip(steps, times, stored[0], strict=True))
        last = max(range(len(order)), key=order.__getitem__)
        step, timestamp, value = order[last]
        is_nan = next(islice(stored[1], last, None))
        return key, value, timestamp, self.id, step, is_nan


class Tables:
    """The tables of an MLflow database, opened for writing.

    Args:
        path: The database.

    Raises:
        sqlite3.Error: The database cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
        # Checks of foreign keys would take a third of the time; `add` itself inserts the referenced runs.
        self._connection.execute("PRAGMA foreign_keys = OFF")
        self._connection.execute(f"PRAGMA cache_size = -{CACHE}")
        self._ids: dict[str, str] = {}
        self._version = -1

    @classmethod
    def open(cls, uri: str) -> Tables | None:
        """Return the tables of a tracking URI; None if it is not an SQLite database with the known schema."""
        path = sqlite_path(uri)
        if path is None or not path.exists():
            return None
        try:
            tables = cls(path)
            for table, columns in compat.WRITTEN_COLUMNS.items():
                info = tables._connection.execute(f"PRAGMA table_info({table})")
                if sorted(row[1] for row in info) != sorted(columns):
                    return None
        except sqlite3.Error:
            return None
        return tables

    def mlflow_id(self, run_id: str) -> str | None:
        """Return the MLflow id of the run with a run_id, deleted or not; None without one."""
        # The version changes when another connection has written.
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            rows = self._connection.execute("SELECT value, run_uuid FROM tags WHERE key = 'run_id'")
            self._ids, self._version = dict(rows), version
        return self._ids.get(run_id)

    def add(self, runs: Sequence[NewRun], replaced: Collection[str] = ()) -> list[str]:
        """Add runs in a single transaction: after a crash, either all of them are stored or none.

        A run whose run_id is already stored, or occurs twice in `runs`, is left out.

        Args:
            runs: The runs.
            replaced: MLflow ids of runs that do not count as stored.

        Returns:
            MLflow ids by position: the run's own, or that of the stored run.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            ids: dict[str, str] = {}
            for run in runs:
                stored = self.mlflow_id(run.run_id)
                ids.setdefault(
                    run.run_id, run.id if stored is None or stored in replaced else stored
                )
            rows = [run.rows() for run in runs if ids[run.run_id] == run.id]
            for table in ("runs", "tags", "params", "latest_metrics"):
                columns = compat.WRITTEN_COLUMNS[table]
                _insert(connection, table, columns, chain.from_iterable(r[table] for r in rows))
            self._insert_points([run for run in runs if ids[run.run_id] == run.id])
            for experiment in {run.experiment.experiment_id for run in runs}:
                if not self._has_experiment(experiment):
                    raise sqlite3.IntegrityError(f"experiment {experiment} is no longer in MLflow")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite itself ends it where the disk is full
                connection.execute("ROLLBACK")
            raise
        self._ids |= ids
        return [ids[run.run_id] for run in runs]

    def _insert_points(self, runs: Sequence[NewRun]) -> None:
        """Insert the points of runs; where most of the table is new, its indexes are made last."""
        connection = self._connection
        (before,) = connection.execute("SELECT COALESCE(MAX(rowid), 0) FROM metrics").fetchone()
        indexes = []
        if sum(run.count for run in runs) > before:
            indexes = connection.execute(_INDEXES).fetchall()
        for name, _ in indexes:
            connection.execute(f'DROP INDEX "{name}"')
        # In the order of the primary key, whose index then grows at its end alone.
        runs = sorted(runs, key=lambda run: (run.started, run.id))
        curves = chain.from_iterable(run.points() for run in runs)
        for key, id, rows in sorted(curves, key=itemgetter(0)):
            _insert_curve(connection, key, id, rows)
        for _, command in indexes:
            connection.execute(command)

    def tag(self, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Set tags of active runs in a single transaction.

        Args:
            tags: Tags by MLflow id, with names and lengths that MLflow accepts; the run's name is not among them.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        rows = [(key, value, id) for id, of_run in tags.items() for key, value in of_run.items()]
        self._execute_for_all(_SET_TAG, rows)

    def tag_experiment(self, experiment_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of an active experiment in a single transaction; see :meth:`tag`."""
        rows = [(key, value, int(experiment_id)) for key, value in tags.items()]
        self._execute_for_all(_SET_EXPERIMENT_TAG, rows)

    def artifact_uri(self, id: str) -> str:
        """Return the address of the artifacts of a stored run, given by MLflow id."""
        query = "SELECT artifact_uri FROM runs WHERE run_uuid = ?"
        (uri,) = self._connection.execute(query, (id,)).fetchone()
        return uri

    def _execute_for_all(self, command: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(command, rows)

    def _has_experiment(self, experiment_id: str) -> bool:
        query = "SELECT 1 FROM experiments WHERE experiment_id = ?"
        return self._connection.execute(query, (int(experiment_id),)).fetchone() is not None


class NewRunClient:
    """Client for a new run that has ended, which adds it to MLflow in a single transaction.

    :meth:`set_terminated` adds the run. All other calls, and all later ones, are passed to MLflow's client.

    Args:
        tables: The database.
        client: MLflow's client of the same database.
        experiments: Cached experiments by name.
        replaced: MLflow ids of runs that do not count as stored.
    """

    def __init__(
        self,
        tables: Tables,
        client: MlflowClient,
        experiments: dict[str, Experiment],
        replaced: Collection[str] = (),
    ) -> None:
        self._tables = tables
        self._replaced = replaced
        self._client = client
        self._experiments = experiments
        self._run: Run | None = None
        self._tags: dict[str, str] = {}
        self._params: dict[str, str] = {}
        self._metrics: dict[str, list[Metric]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_experiment_by_name(self, name: str) -> Experiment | None:
        """As the client's method, cached."""
        if name not in self._experiments:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None or experiment.lifecycle_stage == "deleted":
                return experiment
            self._experiments[name] = experiment
        return self._experiments[name]

    def search_runs(self, experiments: list[str], query: str = "", *args: Any, **more: Any) -> Any:
        """As the client's method, except that a query for an unknown run_id is not sent."""
        match = _RUN_ID.fullmatch(query)
        if match and not self._tables.mlflow_id(match[1]):
            return []
        return self._client.search_runs(experiments, query, *args, **more)

    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, str] | None = None,
        run_name: str = "",
    ) -> Run:
        """Begin the run."""
        from mlflow.entities import Run, RunData, RunInfo, RunTag

        experiment = experiment_of(self._client, experiment_id, self._experiments)
        run_id, self._tags = uuid.uuid4().hex, dict(tags or {})
        self._tags.setdefault("mlflow.runName", run_name)
        info = RunInfo(
            run_id=run_id,
            experiment_id=experiment_id,
            user_id=self._tags.get("mlflow.user", "unknown"),
            status="RUNNING",
            start_time=start_time or now(),
            end_time=None,
            lifecycle_stage="active",
            artifact_uri=artifact_uri(experiment, run_id),
            run_name=run_name,
        )
        self._run = Run(info, RunData(tags=[RunTag(*tag) for tag in self._tags.items()]))
        return self._run

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
    ) -> None:
        """As the client's method, with its checks."""
        if not self._is_open(run_id):
            self._client.log_batch(run_id, metrics, params, tags)
            return
        metrics, params, tags = compat.checked_batch(metrics, params, tags)
        for metric in metrics:
            self._metrics.setdefault(metric.key, []).append(metric)
        self._params |= {param.key: param.value for param in params}
        self._tags |= {tag.key: tag.value for tag in tags}

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        """As the client's method."""
        if not self._is_open(run_id):
            self._client.log_artifact(run_id, local_path, artifact_path)
            return
        assert self._run is not None
        repository = compat.artifact_repository(self._run.info.artifact_uri)
        repository.log_artifact(local_path, artifact_path)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """As the client's method."""
        folder, name = os.path.split(artifact_file)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary, name)
            path.write_text(text, encoding="utf-8")
            self.log_artifact(run_id, str(path), folder or None)

    def set_terminated(
        self, run_id: str, status: str | None = None, end_time: int | None = None
    ) -> None:
        """End the run and add it to MLflow.

        Raises:
            RunExists: Another process has added a run with its run_id.
        """
        if not self._is_open(run_id):
            self._client.set_terminated(run_id, status, end_time)
            return
        assert self._run is not None
        info, self._run = self._run.info, None
        new = NewRun(
            experiment=experiment_of(self._client, info.experiment_id, self._experiments),
            name=info.run_name,
            status=status or "FINISHED",
            started=info.start_time,
            ended=end_time or now(),
            tags=self._tags,
            params=self._params,
            metrics={name: _columns(metrics) for name, metrics in self._metrics.items()},
            id=info.run_id,
        )
        (id,) = self._tables.add([new], self._replaced)
        if id != new.id:
            raise RunExists(f"run {new.run_id[:8]} is in MLflow already")

    def _is_open(self, run_id: str) -> bool:
        return self._run is not None and self._run.info.run_id == run_id


def experiment_of(
    client: MlflowClient, experiment_id: str, known: dict[str, Experiment]
) -> Experiment:
    """Return an experiment; an unknown one is added to the known ones.

    Args:
        client: MLflow's client.
        experiment_id: Its MLflow id.
        known: Experiments by name.
    """
    for experiment in known.values():
        if experiment.experiment_id == experiment_id:
            return experiment
    experiment = client.get_experiment(experiment_id)
    known[experiment.name] = experiment
    return experiment


def artifact_uri(experiment: Experiment, run_id: str) -> str:
    """Return the address of a run's artifacts.

    Args:
        experiment: Its experiment.
        run_id: Its MLflow id.
    """
    return f"{experiment.artifact_location}/{run_id}/artifacts"


def _insert(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterator[tuple[Any, ...]],
) -> None:
    """Insert rows, `_ROWS` per statement, which halves the time spent outside of SQLite."""
    query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
    places = f"({', '.join('?' * len(columns))})"
    for values in chunks(chain.from_iterable(rows), _ROWS * len(columns)):
        connection.execute(query + ", ".join([places] * (len(values) // len(columns))), values)


def _insert_curve(
    connection: sqlite3.Connection, key: str, id: str, rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert points of a metric of a run, `_ROWS` per statement; duplicate points are stored once."""
    for values in chunks(chain.from_iterable(rows), _ROWS * len(_POINT)):
        connection.execute(_curve_command(len(values) // len(_POINT)), [key, id, *values])


@lru_cache(_ROWS)
def _curve_command(rows: int) -> str:
    """Return the statement that inserts points of a curve; key and run are bound once, which saves a third."""
    columns, first, last = ", ".join(_POINT), "?, ?, ?, ?", len(_POINT)
    points = ", ".join([f"({first})"] * rows)
    names = ", ".join(f"column{number}" for number in range(1, last + 1))
    return (
        f"INSERT OR IGNORE INTO metrics (key, run_uuid, {columns}) "
        f"SELECT ?1, ?2, {names} FROM (VALUES {points})"
    )


def _storable(values: Sequence[float]) -> tuple[Sequence[float], Iterable[bool]]:
    """Return (values as MLflow stores them, without NaN and infinities; whether they are NaN)."""
    if math.isfinite(sum(values)):
        return values, repeat(False)
    is_nan = [value != value for value in values]
    low, high = -compat.LARGEST, compat.LARGEST
    return [0.0 if v != v else max(low, min(high, v)) for v in values], is_nan


def _columns(metrics: Sequence[Metric]) -> Points:
    return Points(
        [metric.step for metric in metrics],
        [metric.timestamp for metric in metrics],
        [float(metric.value) for metric in metrics],
    )


def now() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)
