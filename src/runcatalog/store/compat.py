"""All that the library uses of MLflow's undocumented parts: tables, validation, and what its web page reads.

Seen in MLflow 3.17.2. tests/runcatalog/store/test_compat.py says which name an update of MLflow has moved.
MLflow is imported where a function needs it: that takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# All columns of the tables that are written; a database with others is left to MLflow's client.
# Seen in MLflow 3.17.2.
WRITTEN_COLUMNS = {
    "runs": (
        "run_uuid",
        "name",
        "source_type",
        "source_name",
        "entry_point_name",
        "user_id",
        "status",
        "start_time",
        "end_time",
        "source_version",
        "lifecycle_stage",
        "artifact_uri",
        "experiment_id",
        "deleted_time",
    ),
    "tags": ("key", "value", "run_uuid"),
    "params": ("key", "value", "run_uuid"),
    "metrics": ("key", "value", "timestamp", "run_uuid", "step", "is_nan"),
    "latest_metrics": ("key", "value", "timestamp", "run_uuid", "step", "is_nan"),
}
# The columns that are read; a database without one of them is left to MLflow's client.
# Seen in MLflow 3.17.2.
READ_COLUMNS = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "runs": {"run_uuid", "experiment_id", "status", "start_time", "lifecycle_stage"},
    "tags": {"run_uuid", "key", "value"},
    "params": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "value", "timestamp", "step", "is_nan"},
}
# The largest value that MLflow stores; an infinity becomes it. Seen in MLflow 3.17.2.
LARGEST = sys.float_info.max
# Tag of an experiment that keeps a saved view of its page. Seen in MLflow 3.17.2.
SHARED_VIEW = "mlflow.sharedViewState."
# Tag of an experiment that chooses the menu of its page. Seen in MLflow 3.17.2.
EXPERIMENT_KIND = "mlflow.experimentKind"

Row = tuple[str, str, int, int, float, bool]


def points(client: MlflowClient, run_ids: Sequence[str]) -> Iterator[Row] | None:
    """Return (run, key, timestamp, step, value, is NaN) of runs from MLflow's database, in one query.

    None where MLflow is behind a server. Its documented interface takes a query for each metric of each run.
    """
    # mlflow.store.tracking.sqlalchemy_store, seen in MLflow 3.17.2
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = client._tracking_client.store  # seen in MLflow 3.17.2
    return _rows(store, run_ids) if isinstance(store, SqlAlchemyStore) else None


def _rows(store: Any, run_ids: Sequence[str]) -> Iterator[Row]:
    # mlflow.store.tracking.dbmodels.models, seen in MLflow 3.17.2
    from mlflow.store.tracking.dbmodels.models import SqlMetric as M

    with store.ManagedSessionMaker() as session:  # seen in MLflow 3.17.2
        query = session.query(M.run_uuid, M.key, M.timestamp, M.step, M.value, M.is_nan)
        for row in query.filter(M.run_uuid.in_(run_ids)):
            yield tuple(row)  # type: ignore[misc]


def checked_batch(
    metrics: Sequence[Metric], params: Sequence[Param], tags: Sequence[RunTag]
) -> tuple[Sequence[Metric], Sequence[Param], Sequence[RunTag]]:
    """Return what MLflow's client would store of a batch.

    Raises:
        MlflowException: MLflow refuses it.
    """
    # mlflow.utils.validation, _validate_batch_log_limits and _validate_batch_log_data, seen in MLflow 3.17.2
    from mlflow.utils.validation import _validate_batch_log_data, _validate_batch_log_limits

    _validate_batch_log_limits(metrics, params, tags)
    return _validate_batch_log_data(metrics, params, tags)


def checked_params(params: dict[str, str]) -> dict[str, str]:
    """Return params as MLflow's client would store them, any number of them.

    Raises:
        MlflowException: MLflow refuses one.
    """
    from mlflow.entities import Param

    # mlflow.utils.validation._validate_batch_log_data, seen in MLflow 3.17.2
    from mlflow.utils.validation import _validate_batch_log_data

    found = _validate_batch_log_data([], [Param(*item) for item in params.items()], [])[1]
    return {param.key: param.value for param in found}


def check_metric(key: str, value: float, timestamp: int, step: int) -> None:
    """Raise what MLflow's client raises of a metric's point.

    Raises:
        MlflowException: MLflow refuses it.
    """
    # mlflow.utils.validation._validate_metric, seen in MLflow 3.17.2
    from mlflow.utils.validation import _validate_metric

    _validate_metric(key, value, timestamp, step)


def random_run_name() -> str:
    """Return a name such as MLflow gives to a run without one."""
    # mlflow.utils.name_utils._generate_random_name, seen in MLflow 3.17.2
    from mlflow.utils.name_utils import _generate_random_name

    return _generate_random_name()


def artifact_repository(uri: str) -> ArtifactRepository:
    """Return what writes the artifacts at a URI."""
    # mlflow.store.artifact.artifact_repository_registry, seen in MLflow 3.17.2
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri)
