"""Which points MLflow has of a run, compared with the journal: a restored backup has fewer than were sent."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.record.delivery.mlflow_client import BUSY
from runcatalog.record.journal.metrics import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

POINTS = "catalog.points"  # tag of a run that has ended: :meth:`PointCounts.text`
_COUNTS = "SELECT key, COUNT(*) FROM metrics WHERE run_uuid = ? GROUP BY key"


class PointCounts:
    """Number of points and last step of each metric, up to an offset of the journal.

    Attributes:
        end: The offset, in bytes.
        number: Number of the last line, 0 if lines have none; a line with a smaller one is a repetition.
        counts: Number of points by metric, of those whose step is larger than all before.
        last: Largest step by metric.
        unordered: Metrics that have other points too, for which the last step and the number say too little.
    """

    def __init__(self) -> None:
        self.end = self.number = 0
        self.counts: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self.unordered: set[str] = set()

    def add(self, points: Iterable[Point], end: int, number: int) -> None:
        """Count the points of a line that ends at an offset; its number is 0 if it has none."""
        for point in points:
            if point.step > self.last.get(point.name, -1):
                self.last[point.name] = point.step
                self.counts[point.name] += 1
            else:
                self.unordered.add(point.name)
        self.end, self.number = end, number or self.number

    def text(self) -> str:
        """Return numbers of points and metrics, and the sum of last steps, for a tag; see :func:`has_fewer`."""
        return f"{self.counts.total()} {len(self.last)} {sum(self.last.values())}"


def lacks(
    client: MlflowClient,
    run: Run,
    database: Path | None,
    sent: PointCounts,
    points: Iterable[Point],
) -> bool:
    """Return whether MLflow has fewer points of a metric than were sent.

    A database is asked for the number of points of each metric. A server would have to send all points for that, so
    there the last step is compared, which the run already has; points are counted only where steps do not grow.

    Args:
        client: MLflow's client.
        run: The run, just read from MLflow.
        database: SQLite file; None for a server.
        sent: Counts of the points that were sent.
        points: These points; read only if steps of a metric do not grow.
    """
    run_id = run.info.run_id
    counts = None if database is None else _counts(database, run_id)
    if counts is not None and any(counts.get(n, 0) < count for n, count in sent.counts.items()):
        return True
    last = last_steps(run)
    if counts is None and any(last.get(name, -1) < step for name, step in sent.last.items()):
        return True
    if not sent.unordered:
        return False
    distinct = defaultdict(set)
    for point in points:
        if point.name in sent.unordered:
            distinct[point.name].add((point.step, point.time, _stored(point.value)))
    return any(
        len(client.get_metric_history(run_id, name)) < len(different)
        for name, different in distinct.items()
    )


def last_steps(run: Run) -> dict[str, int]:
    """Return the largest step of each metric of a run read from MLflow."""
    return {metric.key: metric.step for metric in run.data.to_proto().metrics}


def has_fewer(expected: str, *, points: int | None = None, last: Iterable[int] = ()) -> bool:
    """Return whether MLflow has fewer points than the tag POINTS of a run says.

    Args:
        expected: The tag; "" if an earlier version sent the run, whose points are then to be compared once.
        points: Number of points in MLflow, if known.
        last: Else the last step of each metric in MLflow.
    """
    try:
        total, metrics, steps = map(int, expected.split(" "))
    except ValueError:
        return True
    if points is not None:
        return points < total
    last = list(last)
    return len(last) < metrics or sum(last) < steps


def _counts(database: Path, run_id: str) -> dict[str, int] | None:
    """Return the number of points by metric; None if the tables are not as expected."""
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY)) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
        if not {"run_uuid", "key"} <= columns:
            return None
        return dict(connection.execute(_COUNTS, (run_id,)).fetchall())


def _stored(value: float) -> float | None:
    """Return a value as MLflow stores it: NaNs are equal, an infinity is the largest number."""
    return None if value != value else max(-sys.float_info.max, min(sys.float_info.max, value))
