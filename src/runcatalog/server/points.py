"""Points of metrics into the server's PostgreSQL: two statements a request instead of an object a point.

MLflow's own function writes about 4,000 points a second and core. Here the tables get the same rows; whatever is more
than valid points of an active run goes to MLflow's function, and so does every error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from runcatalog.numbers import is_int64
from runcatalog.server import compat
from runcatalog.store.compat import LARGEST, check_metrics

if TYPE_CHECKING:
    from flask import Response

_BYTES, _POINTS = 1_000_000, 1000  # MLflow's limits of a request
_FIELDS = ({"key", "value", "timestamp"}, {"key", "value", "timestamp", "step"})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ROWS = (
    "SELECT key, value, timestamp, step, is_nan, %s FROM unnest(%s::text[], %s::float8[], %s::int8[], %s::int8[], "
    "%s::bool[]) AS point (key, value, timestamp, step, is_nan)"
)
_COLUMNS = "(key, value, timestamp, step, is_nan, run_uuid)"
_METRICS = f"INSERT INTO metrics {_COLUMNS} {_ROWS} ON CONFLICT DO NOTHING"
_LATEST = (
    f"INSERT INTO latest_metrics AS old {_COLUMNS} {_ROWS} ON CONFLICT (key, run_uuid) DO UPDATE SET "
    "value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan "
    "WHERE (excluded.step, excluded.timestamp, excluded.value) > (old.step, old.timestamp, old.value)"
)
_ACTIVE = "SELECT FROM runs WHERE run_uuid = %s AND lifecycle_stage = 'active'"

Row = tuple[str, float, int, int, bool]  # key, value as stored, timestamp, step, is NaN


class Batch(NamedTuple):
    """Points of a run.

    Attributes:
        run: The run's id in MLflow.
        rows: The points, each once.
    """

    run: str
    rows: list[Row]


def log_batch(mlflow_view: Callable[[], Response]) -> Callable[[], Response]:
    """Return the function behind the route that takes batches.

    Args:
        mlflow_view: MLflow's own.
    """

    def view() -> Response:
        from flask import Response, request
        from sqlalchemy.exc import DBAPIError

        batch = parse(request.get_data(cache=True))
        try:
            stored = batch is not None and _store(batch)
        except DBAPIError:  # among them a deadlock, after which MLflow tries again
            stored = False
        return Response("{}", mimetype="application/json") if stored else mlflow_view()

    return view


def parse(body: bytes) -> Batch | None:
    """Return the points of a request; None unless it has nothing but valid points."""
    if len(body) > _BYTES:
        return None
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict):
        return None
    run, points = message.pop("run_id", None), message.pop("metrics", None)
    if type(run) is not str or type(points) is not list or not 0 < len(points) <= _POINTS:
        return None
    if any(message.pop(name, []) != [] for name in ("params", "tags")) or message:
        return None
    rows = [_row(point) for point in points]
    if None in rows or not _are_names({row[0] for row in rows if row}):
        return None
    return Batch(run, list(dict.fromkeys(row for row in rows if row)))


def _row(point: Any) -> Row | None:
    if not isinstance(point, dict) or point.keys() not in _FIELDS:
        return None
    key, value, time = point["key"], point["value"], point["timestamp"]
    step = point.get("step", 0)
    if type(value) is str:
        value = _WORDS.get(value)
    if type(key) is not str or type(value) not in (float, int):
        return None
    if not (is_int64(time) and time >= 0 and is_int64(step)):
        return None
    if value != value:
        return key, 0.0, time, step, True
    return key, max(-LARGEST, min(LARGEST, float(value))), time, step, False


def _are_names(keys: set[str]) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        check_metrics(keys, 0)
    except MlflowException:
        return False
    return True


def _store(batch: Batch) -> bool:
    """Store points that the database lacks; return False if there is no such active run."""
    latest: dict[str, Row] = {}
    for row in batch.rows:
        old = latest.get(row[0])
        if old is None or (row[3], row[2], row[1]) > (old[3], old[2], old[1]):
            latest[row[0]] = row
    # Transactions that lock rows in the same order wait for one another, and never in a circle.
    newest = [latest[key] for key in sorted(latest)]
    with compat.tracking_engine().begin() as connection:
        if connection.exec_driver_sql(_ACTIVE, (batch.run,)).first() is None:
            return False
        for statement, rows in ((_METRICS, batch.rows), (_LATEST, newest)):
            columns = [list(column) for column in zip(*rows, strict=True)]
            connection.exec_driver_sql(statement, (batch.run, *columns))
    return True
