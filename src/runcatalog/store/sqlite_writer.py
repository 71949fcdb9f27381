"""Adds a run to an MLflow in SQLite in one transaction: the client takes one, with its sync to the disk, for each
call, and scans all runs to say that none has a run_id yet.

What is written is what :class:`mlflow.MlflowClient` writes; a test compares every row of both.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record.errors import UserError
from runcatalog.store.sqlite_reader import BUSY, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Param, Run, RunTag

# All columns of the tables that are written; a schema with others is left to MLflow's client.
_COLUMNS = {
    "runs": (
        "run_uuid name source_type source_name entry_point_name user_id status start_time end_time "
        "source_version lifecycle_stage artifact_uri experiment_id deleted_time"
    ),
    "tags": "key value run_uuid",
    "params": "key value run_uuid",
    "metrics": "key value timestamp run_uuid step is_nan",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
_RUN_ID = re.compile(r"tags\.run_id = '([0-9a-f]+)'")
_LARGEST = 1.7976931348623157e308  # what MLflow keeps of an infinity


class RunExists(UserError):
    """Somebody else has added a run of the same run_id in the meantime.

    Args:
        run_id: The run_id.
        id: MLflow's id of that run.
    """

    def __init__(self, run_id: str, id: str) -> None:
        super().__init__(f"run {run_id[:8]} is in MLflow already")
        self.id = id


class Tables:
    """The tables of an MLflow database, opened for writing.

    Args:
        path: The database.

    Raises:
        sqlite3.Error: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._ids: dict[str, str] = {}
        self._version = -1

    @classmethod
    def of(cls, uri: str) -> Tables | None:
        """Returns the tables of a tracking URI; None if it is no SQLite, or of another schema."""
        path = sqlite_path(uri)
        if path is None or not path.exists():
            return None
        try:
            tables = cls(path)
            for table, columns in _COLUMNS.items():
                held = tables._connection.execute(f"PRAGMA table_info({table})")
                if sorted(row[1] for row in held) != sorted(columns.split()):
                    return None
        except sqlite3.Error:
            return None
        return tables

    def holder(self, run_id: str) -> str | None:
        """Returns MLflow's id of the run, deleted or not, that has a run_id."""
        # The version changes when another connection has written.
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            rows = self._connection.execute("SELECT value, run_uuid FROM tags WHERE key = 'run_id'")
            self._ids, self._version = dict(rows), version
        return self._ids.get(run_id)

    def add(self, run_id: str, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Adds the rows of a run.

        Args:
            run_id: Its run_id.
            rows: Rows by table.

        Raises:
            RunExists: Another one has this run_id.
            sqlite3.Error: The database takes nothing.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            if there := self.holder(run_id):
                raise RunExists(run_id, there)
            for table, columns in _COLUMNS.items():
                names = columns.split()
                places = ", ".join(f":{name}" for name in names)
                # A point that comes twice is one point.
                insert = "INSERT OR IGNORE" if table == "metrics" else "INSERT"
                query = f"{insert} INTO {table} ({', '.join(names)}) VALUES ({places})"
                connection.executemany(query, rows[table])
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        self._ids[run_id] = rows["runs"][0]["run_uuid"]


class Adder:
    """What publishing a run calls of MLflow's client, for one run that has ended and is new.

    The run is in MLflow once :meth:`set_terminated` has been called, and not before. Everything else, and what
    comes after, is the client's.

    Args:
        tables: The database.
        client: MLflow's client of the same database.
        experiments: Experiments that are known already, by name; others are added.
    """

    def __init__(
        self, tables: Tables, client: MlflowClient, experiments: dict[str, Experiment]
    ) -> None:
        self._tables = tables
        self._client = client
        self._experiments = experiments
        self._run: Run | None = None
        self._tags: dict[str, str] = {}
        self._params: dict[str, str] = {}
        self._metrics: dict[str, list[Metric]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_experiment_by_name(self, name: str) -> Experiment | None:
        """As the client's; asked once."""
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None or found.lifecycle_stage == "deleted":
                return found
            self._experiments[name] = found
        return self._experiments[name]

    def search_runs(
        self, experiments: Sequence[str], query: str = "", *args: Any, **more: Any
    ) -> Any:
        """As the client's; a run_id that no run has is known to be none."""
        match = _RUN_ID.fullmatch(query)
        if match and not self._tables.holder(match[1]):
            return []
        return self._client.search_runs(experiments, query, *args, **more)

    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, str] | None = None,
        run_name: str | None = None,
    ) -> Run:
        """Begins the run."""
        from mlflow.entities import Run, RunData, RunInfo, RunTag
        from mlflow.utils.name_utils import _generate_random_name

        by_id = {each.experiment_id: each for each in self._experiments.values()}
        experiment = by_id.get(experiment_id)
        if experiment is None:
            experiment = self._client.get_experiment(experiment_id)
            self._experiments[experiment.name] = experiment
        run_id, self._tags = uuid.uuid4().hex, dict(tags or {})
        name = run_name or _generate_random_name()
        self._tags.setdefault("mlflow.runName", name)
        info = RunInfo(
            run_id=run_id,
            experiment_id=experiment_id,
            user_id=self._tags.get("mlflow.user", "unknown"),
            status="RUNNING",
            start_time=start_time or _now(),
            end_time=None,
            lifecycle_stage="active",
            artifact_uri=f"{experiment.artifact_location}/{run_id}/artifacts",
            run_name=name,
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
        """As the client's, with its checks."""
        if not self._is_open(run_id):
            self._client.log_batch(run_id, metrics, params, tags)
            return
        from mlflow.utils import validation

        validation._validate_batch_log_limits(metrics, params, tags)
        metrics, params, tags = validation._validate_batch_log_data(metrics, params, tags)
        for metric in metrics:
            self._metrics.setdefault(metric.key, []).append(metric)
        self._params |= {param.key: param.value for param in params}
        self._tags |= {tag.key: tag.value for tag in tags}

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        """As the client's."""
        if not self._is_open(run_id):
            self._client.log_artifact(run_id, local_path, artifact_path)
            return
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        assert self._run is not None
        get_artifact_repository(self._run.info.artifact_uri).log_artifact(local_path, artifact_path)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """As the client's."""
        folder, name = os.path.split(artifact_file)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary, name)
            path.write_text(text, encoding="utf-8")
            self.log_artifact(run_id, str(path), folder or None)

    def set_terminated(
        self, run_id: str, status: str | None = None, end_time: int | None = None
    ) -> None:
        """Ends the run, which is now added.

        Raises:
            RunExists: Another one has its run_id.
        """
        if not self._is_open(run_id):
            self._client.set_terminated(run_id, status, end_time)
            return
        assert self._run is not None
        info, self._run = self._run.info, None
        row = {
            "run_uuid": info.run_id,
            "name": info.run_name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": info.user_id,
            "status": status or "FINISHED",
            "start_time": info.start_time,
            "end_time": end_time or _now(),
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": info.artifact_uri,
            "experiment_id": int(info.experiment_id),
            "deleted_time": None,
        }
        points = {name: [_row(each) for each in of] for name, of in self._metrics.items()}
        rows = {
            "runs": [row],
            "tags": [{"key": k, "value": v} for k, v in self._tags.items()],
            "params": [{"key": k, "value": v} for k, v in self._params.items()],
            "metrics": [each for of in points.values() for each in of],
            "latest_metrics": [max(of, key=_when) for of in points.values()],
        }
        for table in ("tags", "params", "metrics", "latest_metrics"):
            rows[table] = [{**each, "run_uuid": info.run_id} for each in rows[table]]
        self._tables.add(self._tags.get("run_id", ""), rows)

    def _is_open(self, run_id: str) -> bool:
        return self._run is not None and self._run.info.run_id == run_id


def _row(metric: Metric) -> dict[str, Any]:
    value, is_nan = float(metric.value), metric.value != metric.value
    value = 0.0 if is_nan else max(-_LARGEST, min(_LARGEST, value))
    return {
        "key": metric.key,
        "value": value,
        "timestamp": metric.timestamp,
        "step": metric.step,
        "is_nan": is_nan,
    }


def _now() -> int:
    return int(time.time() * 1000)


def _when(row: dict[str, Any]) -> tuple[int, int, float]:
    """What MLflow compares to find a metric's last value; of equals the first stays."""
    return row["step"], row["timestamp"], row["value"]
