"""Runs in MLflow: read all of them in few queries, write a record so that it reads back the same."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from catalog import values
from catalog.guild_runs import is_automatic
from catalog.model import RUNNING, STATUSES, Point, RunRecord
from catalog.records import dumps
from record.mlflow_client import connect, experiment_id, one_line_errors, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000  # runs in one request
POINTS = 1000  # points in one request; MLflow takes no more
IDS = 400  # runs in one query of points; SQLite takes 999 variables
DIGEST = "catalog.record"  # tag: digest of the record that a run was imported from
BATCH_KEY = "catalog.batch"  # tag: what the trials of a batch share, where Guild keeps no batch
_TAG = 7900  # characters; MLflow cuts a tag at 8000
_KEY = 240  # characters; MLflow takes 250
_PLAIN = re.compile(r"[A-Za-z0-9_\-. :/]")
_ESCAPE = re.compile(r"_x([0-9A-F]{1,6})_")
_TEXT_TAGS = ("operation", "label", "reason", "reported_by", "machine", "gpu", "host_cpu", "dirty")


@dataclass(frozen=True)
class Stored:
    """A run in MLflow and what it says.

    Attributes:
        id: MLflow's id of it.
        record: The run, without metrics if they were not asked for.
        tags: All tags.
        deleted: Whether someone deleted it there.
    """

    id: str
    record: RunRecord
    tags: dict[str, str]
    deleted: bool


class Store:
    """The MLflow of a project.

    Args:
        uri: Server or database; by default $MLFLOW_TRACKING_URI or the project's own.

    Raises:
        MlflowError: It does not answer.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = tracking_uri(uri)
        self.client: MlflowClient = connect(self.uri)
        self._experiments: dict[str, str] = {}

    def runs(self, *, deleted: bool = False) -> list[Stored]:
        """Returns the runs that have a run_id, without their metrics.

        Args:
            deleted: Deleted ones too.
        """
        from mlflow.entities import ViewType

        with one_line_errors(self.uri):
            kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
            names = {e.experiment_id: e.name for e in self._all_experiments()}
            if not names:
                return []
            found, token = [], None
            while True:
                page = self.client.search_runs(
                    list(names), "", kind, PAGE, ["attributes.start_time ASC"], token
                )
                found += page
                token = page.token
                if not token:
                    break
        kept = (_stored(run, names[run.info.experiment_id]) for run in found)
        return [each for each in kept if each is not None]

    def records(self, *, curves: bool = True) -> list[RunRecord]:
        """Returns the record of every run; one per run_id, should MLflow hold two of it."""
        stored = self.runs()
        points = self._points([each.id for each in stored]) if curves else {}
        by_run: dict[str, RunRecord] = {}
        for each in stored:
            by_run.setdefault(each.record.run, each.record.with_points(points.get(each.id, {})))
        return list(by_run.values())

    def with_points(self, stored: Sequence[Stored]) -> list[RunRecord]:
        """Returns the records of some runs with their metrics."""
        points = self._points([each.id for each in stored])
        return [each.record.with_points(points.get(each.id, {})) for each in stored]

    def write(self, record: RunRecord, tags: dict[str, str] | None = None) -> str:
        """Adds a run for a record; returns MLflow's id of it.

        Args:
            record: The run.
            tags: More tags.
        """
        from mlflow.entities import Metric, Param

        everything = {**tags_of(record), DIGEST: digest(record), **(tags or {})}
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
            run = self.client.create_run(experiment, time, everything, _run_name(record))
            run_id = run.info.run_id
            room = POINTS - min(len(params), 100)
            self.client.log_batch(run_id, points[:room], params[:100])
            for group in _groups(params[100:], 100):
                self.client.log_batch(run_id, params=group)
            for group in _groups(points[room:], POINTS):
                self.client.log_batch(run_id, metrics=group)
            if record.status != RUNNING:
                end = time + int(1000 * (record.wall_seconds or 0))
                self.client.set_terminated(run_id, record.status, end)
        return run_id

    def update(self, stored: Stored, record: RunRecord, tags: dict[str, str]) -> None:
        """Makes a run without metrics say what a record says, with tags that are not the record's."""
        wanted = {**tags_of(record), DIGEST: digest(record), **tags}
        self.tag(stored.id, {k: v for k, v in wanted.items() if stored.tags.get(k) != v})
        ended = (record.started or 0) + int(1000 * (record.wall_seconds or 0))
        self.end(stored, record.status, ended)

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Sets tags of a run."""
        from mlflow.entities import RunTag

        with one_line_errors(self.uri):
            for group in _groups([RunTag(k, v) for k, v in tags.items()], 100):
                self.client.log_batch(run_id, tags=group)

    def end(self, stored: Stored, status: str, ended: int | None) -> None:
        """Sets a run's status, if it is another."""
        if stored.record.status != status and status != RUNNING:
            with one_line_errors(self.uri):
                self.client.set_terminated(stored.id, status, ended)

    def forget(self, stored: Stored) -> None:
        """Removes a run that is about to be replaced; nothing finds it by its run_id any more."""
        with one_line_errors(self.uri):
            self.client.set_tag(stored.id, "run_id", f"replaced-{stored.record.run}")
            self.client.delete_run(stored.id)

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

    def _points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """Points by run and metric, by step, the earliest of a step first."""
        raw = _database_points(self.client, run_ids)
        with one_line_errors(self.uri):
            rows = list(raw if raw is not None else self._served_points(run_ids))
        rows.sort(key=lambda row: (row[3], row[2]))
        found: dict[str, dict[str, list[Point]]] = {}
        for run_id, name, _, step, value in rows:
            found.setdefault(run_id, {}).setdefault(decode(name), []).append((step, value))
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
            for ids in _groups(list(run_ids), IDS):
                query = session.query(M.run_uuid, M.key, M.timestamp, M.step, M.value, M.is_nan)
                for *row, is_nan in query.filter(M.run_uuid.in_(ids)):
                    yield (*row[:4], math.nan if is_nan else row[4])  # type: ignore[misc]

    return rows()


def tags_of(record: RunRecord) -> dict[str, str]:
    """Returns the tags from which a record, metrics, flags and status apart, can be read again."""
    tags = {name: getattr(record, name) for name in _TEXT_TAGS}
    tags |= {"run_id": record.run, "batch": record.batch, "study": record.study}
    tags |= {"commit": record.commit, "parents": ",".join(record.parents)}
    tags["versions"] = _json(record.versions)
    tags["digest"] = _json(record.digest)
    for name in ("seed", "started", "env_steps", "wall_seconds"):
        value = getattr(record, name)
        tags[name] = "" if value is None else repr(value)
    result = "" if record.result is None else _json(record.result)
    tags["result"] = result[:_TAG]
    rest = result[_TAG:]
    for number in range(1, 1 + math.ceil(len(rest) / _TAG)):  # a tag is too short for a long result
        tags[f"result.{number}"] = rest[(number - 1) * _TAG : number * _TAG]
    return tags


def _stored(run: Run, experiment: str) -> Stored | None:
    tags = dict(run.data.tags)
    run_id = tags.get("run_id", "")
    if not re.fullmatch("[0-9a-f]{8,32}", run_id):
        return None
    flags = {decode(name): value for name, value in run.data.params.items()}
    flags |= _object(tags.get("changed_flags"))  # MLflow never changes a param
    if is_automatic(tags.get("label", ""), flags):
        tags["label"] = ""
    digests = _object(tags.get("digest")) or {
        "weights": tags.get("digest_weights", ""),
        "metrics": tags.get("digest_metrics", ""),
    }
    batch = tags.get("batch", "")
    status = str(run.info.status)
    record = RunRecord(
        run=run_id,
        study=tags.get("study") or experiment,
        status=status if status in STATUSES else RUNNING,
        batch=batch if re.fullmatch("[0-9a-f]{8,32}", batch) else "",
        commit=tags.get("commit", ""),
        flags=flags,
        result=_result(tags),
        seed=_integer(tags.get("seed")),
        started=_integer(tags.get("started")),
        env_steps=_integer(tags.get("env_steps")),
        wall_seconds=_float(tags.get("wall_seconds")),
        versions=_object(tags.get("versions")),
        digest=digests,
        parents=tuple(filter(None, tags.get("parents", "").split(","))),
        **{name: tags.get(name, "") for name in _TEXT_TAGS},
    )
    deleted = run.info.lifecycle_stage == "deleted"
    return Stored(run.info.run_id, record, tags, deleted)


def _result(tags: dict[str, str]) -> dict[str, Any] | None:
    shown, number = tags.get("result", ""), 1
    while f"result.{number}" in tags and len(shown) == _TAG * number:
        shown += tags[f"result.{number}"]
        number += 1
    result = _object(shown) if shown else None
    if not shown or result is None or not shown.startswith("{"):
        result = None
    search = _object(tags.get("search"))
    return {**(result or {}), "search": search} if search else result


def digest(record: RunRecord) -> str:
    """Returns a digest of a record's text."""
    return hashlib.sha256(dumps(record).encode()).hexdigest()[:16]


def encode(name: str) -> str:
    """Returns a name as MLflow takes it; :func:`decode` gives it back."""
    kept = name.replace("_x", "_x5F_x")  # else it could read as an escape
    shown = "".join(c if _PLAIN.fullmatch(c) else f"_x{ord(c):X}_" for c in kept)
    odd = posixpath.normpath(shown) != shown or shown.startswith(("/", "."))
    if odd or not shown.strip() or shown != shown.strip():
        shown = re.sub("[./ ]", lambda m: f"_x{ord(m[0]):X}_", shown)
    if len(shown) > _KEY:
        shown = f"{shown[: _KEY - 20]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return shown or "_x_"


def decode(key: str) -> str:
    """Returns the name that :func:`encode` was given."""
    return "" if key == "_x_" else _ESCAPE.sub(lambda m: chr(int(m[1], 16)), key)


def _run_name(record: RunRecord) -> str:
    return record.label or record.operation or record.id8


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _object(shown: str | None) -> dict[str, Any]:
    try:
        value = json.loads(shown or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _integer(shown: str | None) -> int | None:
    try:
        return int(shown or "")
    except ValueError:
        number = _float(shown)
        return int(number) if number is not None else None


def _float(shown: str | None) -> float | None:
    try:
        number = float(shown or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _groups(items: Sequence[Any] | Iterable[Any], size: int) -> Iterator[list[Any]]:
    held = list(items)
    for begin in range(0, len(held), size):
        yield held[begin : begin + size]
