"""MLflow as a store: reads all runs in few queries, and writes records so that reading gives equal records."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runcatalog.model.run_record import RUNNING, Point, RunRecord
from runcatalog.record.delivery.hidden_tags import stored_names
from runcatalog.record.delivery.mlflow_client import (
    MlflowError,
    chunks,
    connect,
    experiment_id,
    one_line_errors,
    tracking_uri,
)
from runcatalog.record.delivery.names import decode, encode
from runcatalog.record.delivery.points_in_mlflow import last_steps
from runcatalog.store import compat
from runcatalog.store.run_rows import (
    IDS,
    Reader,
    StoredRun,
    digest,
    params_of,
    point_order,
    tags_of,
)
from runcatalog.store.sqlite_writer import (
    NewRun,
    NewRunClient,
    Points,
    Tables,
    experiment_of,
    now,
)
from runcatalog.text import markdown

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

PAGE = 1000  # runs per request
POINTS = 1000  # points per request, MLflow's limit
TRANSACTION = 600_000  # points per transaction, 2-4 s in which other writers wait
DIGEST = "catalog.record"  # tag: digest of the record that a run was imported from
_REPLACED = "replaced-"  # prefix of the run_id of a removed run, so that no query returns it
INCOMPLETE = "incomplete"  # that tag's value until the whole record is written
Curves = Mapping[str, Sequence[Point]]
BATCH_KEY = "catalog.batch"  # tag: key of a batch's trials, also if Guild has no run of the batch


@dataclass(frozen=True)
class Addition:
    """A record to write.

    Attributes:
        record: The run.
        tags: Tags in addition to those of the record.
        replaces: The run in MLflow to replace; None for a new run.
        points: All points by metric, of which the record keeps a part; empty if the record has all.
    """

    record: RunRecord
    tags: dict[str, str] = field(default_factory=dict)
    replaces: StoredRun | None = None
    points: Curves = field(default_factory=dict)


class Store(Reader):
    """MLflow server or database of a project, read and written through MLflow's client.

    Args:
        uri: Server or database; by default $MLFLOW_TRACKING_URI or the project's own.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = tracking_uri(uri)
        self._experiments: dict[str, str] = {}
        self._known: dict[str, Experiment] = {}

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client, connected on first use, since importing MLflow takes seconds.

        Raises:
            MlflowError: MLflow does not answer.
        """
        return connect(self.uri)

    @cached_property
    def _tables(self) -> Tables | None:
        assert self.client is not None  # connecting creates the tables of a new database
        return Tables.open(self.uri)

    def answers(self) -> bool:
        """Return whether MLflow answers a simple request."""
        try:
            with one_line_errors(self.uri):
                self.client.search_experiments(max_results=1)
        except MlflowError:
            return False
        return True

    def new_run_client(self, replaced: Collection[str] = ()) -> MlflowClient:
        """Return the fastest client for publishing a new run that has ended.

        Args:
            replaced: MLflow ids of runs that it replaces.

        Raises:
            MlflowError: MLflow does not answer.
        """
        if self._tables is None:
            return self.client
        return cast("MlflowClient", NewRunClient(self._tables, self.client, self._known, replaced))

    def runs(self, *, deleted: bool = False, on_demand: Collection[str] = ()) -> list[StoredRun]:
        """See :meth:`runcatalog.store.run_rows.Reader.runs`."""
        client = self.client  # first, since connecting silences the messages of the import
        from mlflow.entities import ViewType

        with one_line_errors(self.uri):
            kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
            names = {e.experiment_id: e.name for e in self._all_experiments()}
            if not names:
                return []
            runs: list[Any] = []
            token = None
            while True:
                page = client.search_runs(
                    list(names), "", kind, PAGE, ["attributes.start_time ASC"], token
                )
                runs += page
                token = page.token
                if not token:
                    break
        stored = (_stored(run, names[run.info.experiment_id]) for run in runs)
        return [run for run in stored if run is not None]

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """See :meth:`runcatalog.store.run_rows.Reader.points`."""
        with one_line_errors(self.uri):
            rows = list(self._database_points(run_ids) or self._served_points(run_ids))
        rows.sort(key=lambda row: point_order(row[2], row[3], row[4]))
        points: dict[str, dict[str, list[Point]]] = {}
        for run_id, name, _, step, value in rows:
            points.setdefault(run_id, {}).setdefault(decode(name), []).append((step, value))
        return points

    def write(
        self, record: RunRecord, tags: dict[str, str] | None = None, points: Curves | None = None
    ) -> str:
        """Add a run for a record; return its MLflow id. The arguments are those of :class:`Addition`."""
        ((_, id),) = self.write_all([Addition(record, tags or {}, points=points or {})])
        return id

    def write_all(self, additions: Sequence[Addition]) -> Iterator[tuple[RunRecord, str]]:
        """Add runs for records, with SQLite many per transaction; the iterator must be exhausted.

        Yields:
            (record, MLflow id) of every written record, or the id of a run that another process wrote first.

        Raises:
            UserError: MLflow rejects a record; earlier records may be written, later ones are not.
        """
        new: list[NewRun] = []
        pending: list[Addition] = []
        points = 0
        # In ascending order SQLite appends to its indexes, which saves a quarter of the insertion.
        ids = sorted(uuid.uuid4().hex for _ in additions)
        for addition, id in zip(additions, ids, strict=True):
            if self._tables is None or addition.record.status == RUNNING:
                run_id = self.write_by_client(addition.record, addition.tags, addition.points)
                self._remove_replaced([addition])
                yield addition.record, run_id
                continue
            with one_line_errors(self.uri, addition.record.id8):
                run = self._new_run(addition.record, addition.tags, id, addition.points)
            if pending and points + run.count > TRANSACTION:
                yield from self._add(pending, new)
                new, pending, points = [], [], 0
            new.append(run)
            pending.append(addition)
            points += run.count
        if pending:
            yield from self._add(pending, new)

    def _add(
        self, additions: Sequence[Addition], runs: Sequence[NewRun]
    ) -> Iterator[tuple[RunRecord, str]]:
        assert self._tables is not None
        replaced = {a.replaces.id for a in additions if a.replaces is not None}
        with one_line_errors(self.uri, ", ".join(a.record.id8 for a in additions[:3])):
            ids = self._tables.add(runs, replaced)
        self._remove_replaced(additions)
        yield from zip((addition.record for addition in additions), ids, strict=True)

    def _remove_replaced(self, additions: Iterable[Addition]) -> None:
        """Delete the replaced runs, after the new ones are written: a kill in between leaves both, and all marks."""
        for addition in additions:
            if addition.replaces is not None:
                self.forget(addition.replaces)

    def _new_run(
        self, record: RunRecord, tags: dict[str, str], id: str, points: Curves | None = None
    ) -> NewRun:
        experiment = experiment_of(self.client, self.experiment(record.study), self._known)
        name = run_name(record)
        params = compat.checked_params(params_of(record))
        time = record.started or 0
        metrics = {}
        for name_, (steps, numbers) in _columns(record, points).items():
            metrics[encode(name_)] = Points(steps, [time] * len(steps), numbers)
        compat.check_metrics(metrics, time)  # the steps of a record are integers, its values floats
        return NewRun(
            experiment=experiment,
            name=name,
            status=record.status,
            started=time or now(),
            ended=_end(record) or now(),
            tags={
                **stored_names({**tags_of(record), **tags}),
                "mlflow.runName": name,
                DIGEST: digest(record),
            },
            params=params,
            metrics=metrics,
            id=id,
        )

    def write_by_client(
        self, record: RunRecord, tags: dict[str, str] | None = None, points: Curves | None = None
    ) -> str:
        """Add a run for a record through MLflow's client, in few requests: with SQLite a request syncs to disk."""
        from mlflow.entities import Metric, Param, RunTag

        client = self.client
        params = [Param(*item) for item in params_of(record).items()]
        time = record.started or 0
        metrics = [
            Metric(encode(name), value, time, step)
            for name, columns in _columns(record, points).items()
            for step, value in zip(*columns, strict=True)
        ]
        with one_line_errors(self.uri, record.id8):
            experiment = self.experiment(record.study)
            first_tags = stored_names({**tags_of(record), DIGEST: INCOMPLETE, **(tags or {})})
            run = client.create_run(experiment, time, first_tags, run_name(record))
            run_id = run.info.run_id
            room = POINTS - min(len(params), 100) - 1
            for chunk in chunks(params[100:], 100):
                client.log_batch(run_id, params=chunk)
            for point_chunk in chunks(metrics[room:], POINTS):
                client.log_batch(run_id, metrics=point_chunk)
            # MLflow writes the tags of a request after its points and params.
            complete = [RunTag(DIGEST, digest(record))]
            client.log_batch(run_id, metrics[:room], params[:100], complete)
            if record.status != RUNNING:
                client.set_terminated(run_id, record.status, _end(record))
        return run_id

    def update(self, stored: StoredRun, record: RunRecord, tags: dict[str, str]) -> None:
        """Update a run without metrics to a record with the same flags, with additional tags."""
        new_tags = {**tags_of(record), DIGEST: digest(record), **tags}
        new_tags["mlflow.runName"] = run_name(record)
        self.tag(stored.id, {k: v for k, v in new_tags.items() if stored.tags.get(k) != v})
        self.end(stored, record.status, _end(record))

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Set tags of a run."""
        client = self.client
        from mlflow.entities import RunTag

        with one_line_errors(self.uri, run_id):
            for chunk in chunks([RunTag(k, v) for k, v in stored_names(tags).items()], 100):
                client.log_batch(run_id, tags=chunk)

    def tag_all(self, tags: Mapping[str, dict[str, str]]) -> None:
        """Set tags of runs, given by MLflow id: in an SQLite file at once, as a request syncs to disk.

        The names are valid, the values of at most 8000 characters, and the run's name is not among them.
        """
        if self._tables is None:
            for run_id, of_run in tags.items():
                self.tag(run_id, of_run)
        else:
            with one_line_errors(self.uri):
                self._tables.tag({run: stored_names(of_run) for run, of_run in tags.items()})

    def tag_experiment(self, experiment_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of an experiment; names and lengths are valid. See :meth:`tag_all`."""
        with one_line_errors(self.uri):
            if self._tables is not None:
                self._tables.tag_experiment(experiment_id, tags)
                return
            for key, value in tags.items():
                self.client.set_experiment_tag(experiment_id, key, value)

    def add_file(self, run_id: str, path: Path, folder: str) -> None:
        """Add a file to a folder of a run's artifacts; MLflow's client would read the whole run for that."""
        with one_line_errors(self.uri):
            if self._tables is None:
                self.client.log_artifact(run_id, str(path), folder)
            else:
                repository = compat.artifact_repository(self._tables.artifact_uri(run_id))
                repository.log_artifact(str(path), folder)

    def end(self, stored: StoredRun, status: str, ended: int | None) -> None:
        """Set a run's final status if it differs."""
        if stored.record.status != status and status != RUNNING:
            with one_line_errors(self.uri, stored.run[:8]):
                self.client.set_terminated(stored.id, status, ended)

    def forget(self, stored: StoredRun) -> None:
        """Delete a run that is replaced, after changing its run_id, so that no query returns it.

        A user of a group's server may not delete: there the run stays, with the other run_id.
        """
        with one_line_errors(self.uri, stored.run[:8]), _where_permitted():
            self.client.set_tag(stored.id, "run_id", f"{_REPLACED}{stored.run}")
            self.client.delete_run(stored.id)

    def finish_forgetting(self) -> None:
        """Delete runs whose run_id was changed by a process that was killed, or might not delete them."""
        with one_line_errors(self.uri):
            experiments = [e.experiment_id for e in self._all_experiments()]
            query = f"tags.run_id LIKE '{_REPLACED}%'"
            for run in self.client.search_runs(experiments, query):
                with _where_permitted():
                    self.client.delete_run(run.info.run_id)

    def experiment(self, study: str) -> str:
        """Return MLflow's id of a study's experiment."""
        if study not in self._experiments:
            self._experiments[study] = experiment_id(self.client, self.uri, study)
        return self._experiments[study]

    def _all_experiments(self) -> list[Any]:
        experiments: list[Any] = []
        token = None
        while True:
            page = self.client.search_experiments(max_results=1000, page_token=token)
            experiments += page
            token = page.token
            if not token:
                return experiments

    def _database_points(
        self, run_ids: Sequence[str]
    ) -> Iterator[tuple[str, str, int, int, float]] | None:
        """Return the points of runs, with a query per `IDS` runs; None if MLflow is behind a server."""
        queries = [compat.points(self.client, ids) for ids in chunks(run_ids, IDS)]
        if any(rows is None for rows in queries):
            return None
        return (
            (*row[:4], math.nan if row[5] else row[4]) for rows in queries for row in rows or ()
        )

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
            for points in pool.map(history, pairs):
                for run_id, m in points:
                    yield run_id, m.key, m.timestamp, m.step, m.value


@contextlib.contextmanager
def _where_permitted() -> Iterator[None]:
    """Leave out what a user of a group's server may not do."""
    try:
        yield
    except Exception as error:  # MLflow's, which is imported on demand
        if getattr(error, "error_code", "") != "PERMISSION_DENIED":
            raise


def _stored(run: Run, experiment: str) -> StoredRun | None:
    info, data = run.info, run.data
    fields = (info.run_id, experiment, str(info.status), info.lifecycle_stage)
    return StoredRun.from_mlflow(fields, data.tags.get("run_id") or "", partial(_loaded, run))


def _loaded(run: Run, kind: str) -> dict[str, Any]:
    return last_steps(run) if kind == "steps" else getattr(run.data, kind)


def _columns(
    record: RunRecord, points: Curves | None
) -> dict[str, tuple[Sequence[int], Sequence[float]]]:
    """Return (steps, values) by metric: of all points, or else of those of the record."""
    columns: dict[str, tuple[Sequence[int], Sequence[float]]]
    columns = {name: (metric.steps, metric.values) for name, metric in record.metrics.items()}
    for name, curve in (points or {}).items():
        steps, numbers = zip(*curve, strict=True)
        columns[name] = steps, numbers
    return columns


def _end(record: RunRecord) -> int:
    return (record.started or 0) + int(1000 * (record.wall_seconds or 0))


def run_name(record: RunRecord) -> str:
    """Return a run's name in MLflow: its label, or for a batch name and id as on the generated page."""
    if (record.result or {}).get("batch"):
        label = f" “{record.label}”" if record.label else ""
        return (
            markdown.literal(f"{record.operation.rpartition(':')[2]}{label}", 200)
            + f" {record.id8}"
        )
    return markdown.literal(record.label or record.operation, 200) or record.id8
