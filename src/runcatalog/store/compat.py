"""All undocumented parts of MLflow that the library uses: tables, validation, and tags that its web page reads.

As of MLflow 3.17.2. tests/runcatalog/store/test_compat.py names the part that an update of MLflow has moved.
MLflow is imported inside of functions, since the import takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# All columns of the tables that are written; a database with others is left to MLflow's client.
# As of MLflow 3.17.2.
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
    "experiment_tags": ("key", "value", "experiment_id"),
}
# The columns that are read; a database without one of them is left to MLflow's client.
# As of MLflow 3.17.2.
READ_COLUMNS = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "runs": {"run_uuid", "experiment_id", "status", "start_time", "lifecycle_stage"},
    "tags": {"run_uuid", "key", "value"},
    "params": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "value", "timestamp", "step", "is_nan"},
}
# The largest value that MLflow stores; an infinity becomes it. As of MLflow 3.17.2.
LARGEST = sys.float_info.max
# Tag of an experiment with a saved view of its page. As of MLflow 3.17.2.
SHARED_VIEW = "mlflow.sharedViewState."
# Tag of an experiment that chooses the menu of its page. As of MLflow 3.17.2.
EXPERIMENT_KIND = "mlflow.experimentKind"

Row = tuple[str, str, int, int, float, bool]


def points(client: MlflowClient, run_ids: Sequence[str]) -> Iterator[Row] | None:
    """Return (run, key, timestamp, step, value, is NaN) of runs from MLflow's database, with a single query.

    None if MLflow is behind a server. The documented interface needs a query per run and metric.
    """
    # mlflow.store.tracking.sqlalchemy_store, as of MLflow 3.17.2
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = client._tracking_client.store  # as of MLflow 3.17.2
    return _rows(store, run_ids) if isinstance(store, SqlAlchemyStore) else None


def _rows(store: Any, run_ids: Sequence[str]) -> Iterator[Row]:
    # mlflow.store.tracking.dbmodels.models, as of MLflow 3.17.2
    from mlflow.store.tracking.dbmodels.models import SqlMetric as M

    with store.ManagedSessionMaker() as session:  # as of MLflow 3.17.2
        query = session.query(M.run_uuid, M.key, M.timestamp, M.step, M.value, M.is_nan)
        for row in query.filter(M.run_uuid.in_(run_ids)):
            yield tuple(row)


def checked_batch(
    metrics: Sequence[Metric], params: Sequence[Param], tags: Sequence[RunTag]
) -> tuple[Sequence[Metric], Sequence[Param], Sequence[RunTag]]:
    """Return a batch as MLflow's client would store it.

    Raises:
        MlflowException: MLflow rejects it.
    """
    # mlflow.utils.validation, _validate_batch_log_limits and _validate_batch_log_data, as of MLflow 3.17.2
    from mlflow.utils.validation import _validate_batch_log_data, _validate_batch_log_limits

    _validate_batch_log_limits(metrics, params, tags)
    return _validate_batch_log_data(metrics, params, tags)


def checked_params(params: dict[str, str]) -> dict[str, str]:
    """Return any number of params as MLflow's client would store them.

    Raises:
        MlflowException: MLflow rejects a param.
    """
    return dict(_checked_param(*item) for item in params.items())


@lru_cache(10_000)  # runs repeat most params
def _checked_param(key: str, value: str) -> tuple[str, str]:
    # mlflow.utils.validation._validate_param, as of MLflow 3.17.2
    from mlflow.utils.validation import _validate_param

    param = _validate_param(key, value)
    return param.key, param.value


def check_metrics(names: Collection[str], timestamp: int) -> None:
    """Check the names of metrics, and the time of their points, as MLflow's client does.

    Raises:
        MlflowException: MLflow rejects a name or the time.
    """
    for name in names:
        _check_metric(name, 0)
    if names:
        _check_metric(next(iter(names)), timestamp)


@lru_cache(10_000)
def _check_metric(key: str, timestamp: int) -> None:
    # mlflow.utils.validation._validate_metric, as of MLflow 3.17.2
    from mlflow.utils.validation import _validate_metric

    _validate_metric(key, 0.0, timestamp, 0)


def artifact_repository(uri: str) -> ArtifactRepository:
    """Return the writer of artifacts at a URI."""
    # mlflow.store.artifact.artifact_repository_registry, as of MLflow 3.17.2
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri)
