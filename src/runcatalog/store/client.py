"""Runs in MLflow: read all of them in few queries, write a record so that it reads back the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from runcatalog.model import values
from runcatalog.model.run_record import RUNNING, Point, RunRecord
from runcatalog.record.delivery.mlflow_client import (
    connect,
    experiment_id,
    one_line_errors,
    tracking_uri,
)
from runcatalog.store.run_rows import (
    IDS,
    Reader,
    Stored,
    decode,
    digest,
    encode,
    groups,
    in_order,
    tags_of,
)
from runcatalog.store.sqlite_writer import Adder, RunExists, Tables
from runcatalog.text import markdown

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

PAGE = 1000  # runs in one request
POINTS = 1000  # points in one request; MLflow takes no more
DIGEST = "catalog.record"  # tag: digest of the record that a run was imported from
_REPLACED = "replaced-"  # before the run_id of a run that nothing is to find any more
INCOMPLETE = "incomplete"  # what that tag says until the whole record is there
BATCH_KEY = "catalog.batch"  # tag: what the trials of a batch share, where Guild keeps no batch


class Store(Reader):
    """The MLflow of a project, through MLflow's client: what writes to it, and reads any of them.

    Args:
        uri: Server or database; by default $MLFLOW_TRACKING_URI or the project's own.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = tracking_uri(uri)
        self._experiments: dict[str, str] = {}
        self._known: dict[str, Experiment] = {}

    @cached_property
    def client(self) -> MlflowClient:
        """The client, connected when it is first needed: importing MLflow takes seconds.

        Raises:
            MlflowError: MLflow does not answer.
        """
        return connect(self.uri)

    @cached_property
    def _tables(self) -> Tables | None:
        assert self.client is not None  # it sets a new database up
        return Tables.of(self.uri)

    def adder(self) -> MlflowClient:
        """Returns what one run that is new and has ended is best added with; see :class:`Adder`.

        Raises:
            MlflowError: MLflow does not answer.
        """
        if self._tables is None:
            return self.client
        return cast("MlflowClient", Adder(self._tables, self.client, self._known))

    def runs(self, *, deleted: bool = False, rarely: Collection[str] = ()) -> list[Stored]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        client = self.client  # before the import, which it keeps quiet
        from mlflow.entities import ViewType

        with one_line_errors(self.uri):
            kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
            names = {e.experiment_id: e.name for e in self._all_experiments()}
            if not names:
                return []
            found, token = [], None
            while True:
                page = client.search_runs(
                    list(names), "", kind, PAGE, ["attributes.start_time ASC"], token
                )
                found += page
                token = page.token
                if not token:
                    break
        kept = (_stored(run, names[run.info.experiment_id]) for run in found)
        return [each for each in kept if each is not None]

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        raw = _database_points(self.client, run_ids)
        with one_line_errors(self.uri):
            rows = list(raw if raw is not None else self._served_points(run_ids))
        rows.sort(key=lambda row: in_order(row[2], row[3], row[4]))
        found: dict[str, dict[str, list[Point]]] = {}
        for run_id, name, _, step, value in rows:
            found.setdefault(run_id, {}).setdefault(decode(name), []).append((step, value))
        return found

    def write(self, record: RunRecord, tags: dict[str, str] | None = None) -> str:
        """Adds a run for a record; returns MLflow's id of it.

        Args:
            record: The run.
            tags: More tags.
        """
        client = self.client if record.status == RUNNING else self.adder()
        try:
            return self._write(client, record, tags or {})
        except RunExists as there:
            return there.id

    def _write(self, client: MlflowClient, record: RunRecord, tags: dict[str, str]) -> str:
        from mlflow.entities import Metric, Param, RunTag

        everything = {**tags_of(record), DIGEST: INCOMPLETE, **tags}
        params = [
            Param(encode(name), values.flag_text(value)) for name, value in record.flags.items()
        ]
        time = record.started or 0
        points = [
            Metric(encode(name), value, time, step)
            for name, metric in record.metrics.items()
            for step, value in metric.curve
        ]
        with one_line_errors(self.uri):
            experiment = self.experiment(record.study)
            # Few requests: on SQLite each waits for the disk.
            run = client.create_run(experiment, time, everything, run_name(record))
            run_id = run.info.run_id
            room = POINTS - min(len(params), 100) - 1
            for group in groups(params[100:], 100):
                client.log_batch(run_id, params=group)
            for group in groups(points[room:], POINTS):
                client.log_batch(run_id, metrics=group)
            # MLflow writes the tags of a request after its points and params.
            whole = [RunTag(DIGEST, digest(record))]
            client.log_batch(run_id, points[:room], params[:100], whole)
            if record.status != RUNNING:
                end = time + int(1000 * (record.wall_seconds or 0))
                client.set_terminated(run_id, record.status, end)
        return run_id

    def update(self, stored: Stored, record: RunRecord, tags: dict[str, str]) -> None:
        """Makes a run without metrics say what a record says, with tags that are not the record's."""
        wanted = {**tags_of(record), DIGEST: digest(record), **tags}
        self.tag(stored.id, {k: v for k, v in wanted.items() if stored.tags.get(k) != v})
        ended = (record.started or 0) + int(1000 * (record.wall_seconds or 0))
        self.end(stored, record.status, ended)

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Sets tags of a run."""
        client = self.client
        from mlflow.entities import RunTag

        with one_line_errors(self.uri):
            for group in groups([RunTag(k, v) for k, v in tags.items()], 100):
                client.log_batch(run_id, tags=group)

    def end(self, stored: Stored, status: str, ended: int | None) -> None:
        """Sets a run's status, if it is another."""
        if stored.record.status != status and status != RUNNING:
            with one_line_errors(self.uri):
                self.client.set_terminated(stored.id, status, ended)

    def forget(self, stored: Stored) -> None:
        """Removes a run that is about to be replaced; nothing finds it by its run_id any more."""
        with one_line_errors(self.uri):
            self.client.set_tag(stored.id, "run_id", f"{_REPLACED}{stored.run}")
            self.client.delete_run(stored.id)

    def finish_forgetting(self) -> None:
        """Removes runs that a process which was killed had begun to forget."""
        with one_line_errors(self.uri):
            experiments = [each.experiment_id for each in self._all_experiments()]
            query = f"tags.run_id LIKE '{_REPLACED}%'"
            for run in self.client.search_runs(experiments, query):
                self.client.delete_run(run.info.run_id)

    def experiment(self, study: str) -> str:
        """Returns MLflow's id of a study's experiment."""
        if study not in self._experiments:
            self._experiments[study] = experiment_id(self.client, self.uri, study)
        return self._experiments[study]

    def _all_experiments(self) -> list[Any]:
        found, token = [], None
        while True:
            page = self.client.search_experiments(max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _served_points(self, run_ids: Sequence[str]) -> Iterator[tuple[str, str, int, int, float]]:
        from concurrent.futures import ThreadPoolExecutor

        def history(pair: tuple[str, str]) -> list[Any]:
            return [(pair[0], m) for m in self.client.get_metric_history(*pair)]

        pairs = [
            (run_id, name)
            for run_id in run_ids
            for name in self.client.get_run(run_id).data.metrics
        ]
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(history, pairs):
                for run_id, m in found:
                    yield run_id, m.key, m.timestamp, m.step, m.value


def _database_points(
    client: MlflowClient, run_ids: Sequence[str]
) -> Iterator[tuple[str, str, int, int, float]] | None:
    """All points of some runs in one query each IDS; None where MLflow is behind a server.

    MLflow's own interface takes a query for each metric of each run.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = client._tracking_client.store
    if not isinstance(store, SqlAlchemyStore):
        return None

    def rows() -> Iterator[tuple[str, str, int, int, float]]:
        from mlflow.store.tracking.dbmodels.models import SqlMetric as M

        with store.ManagedSessionMaker() as session:
            for ids in groups(list(run_ids), IDS):
                query = session.query(M.run_uuid, M.key, M.timestamp, M.step, M.value, M.is_nan)
                for *row, is_nan in query.filter(M.run_uuid.in_(ids)):
                    yield (*row[:4], math.nan if is_nan else row[4])  # type: ignore[misc]

    return rows()


def _stored(run: Run, experiment: str) -> Stored | None:
    info, data = run.info, run.data
    told = (info.run_id, experiment, str(info.status), info.lifecycle_stage)
    return Stored.of(told, data.tags.get("run_id") or "", partial(getattr, data))


def run_name(record: RunRecord) -> str:
    """Returns what MLflow lists a run as: a batch by name and batch id as in its row, a run by its label."""
    if (record.result or {}).get("batch"):
        label = f" “{record.label}”" if record.label else ""
        return (
            markdown.literal(f"{record.operation.rpartition(':')[2]}{label}", 200)
            + f" {record.id8}"
        )
    return markdown.literal(record.label or record.operation, 200) or record.id8
