"""Conversion between records and runs in MLflow; a record that is written and read again is equal."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runcatalog.guild.runs import is_automatic
from runcatalog.model import values
from runcatalog.model.marks import unmarked
from runcatalog.model.record_files import dumps
from runcatalog.model.run_record import MARKS, RUNNING, STATUSES, Point, RunRecord
from runcatalog.record.delivery.hidden_tags import LENGTH, plain_names, stored_name
from runcatalog.record.delivery.mlflow_client import chunks
from runcatalog.record.delivery.names import decode, encode
from runcatalog.record.delivery.points_in_mlflow import POINTS, has_fewer
from runcatalog.record.untrusted import is_nested_deeply

IDS = 400  # runs per query of points; SQLite allows 999 variables
_ID = re.compile(r"[0-9a-f]{8,32}")
_TEXT_TAGS = ("operation", "label", "reason", "reported_by", "machine", "gpu", "host_cpu", "dirty")


@dataclass(frozen=True)
class StoredRun:
    """A run in MLflow with its tags, params and last values.

    Attributes:
        id: MLflow's id.
        run: The run_id.
        experiment: Name of the experiment.
        status: MLflow's status.
        deleted: Whether it was deleted in MLflow.
        load: Returns "tags", "params", "metrics" (last values) or, from a server, "steps" (last steps) by name.
    """

    id: str
    run: str
    experiment: str
    status: str
    deleted: bool
    load: Callable[[str], Mapping[str, Any]] = field(compare=False, repr=False)

    @classmethod
    def from_mlflow(
        cls, run: tuple[str, str, str, str], run_id: str, load: Callable[[str], Mapping[str, Any]]
    ) -> StoredRun | None:
        """Return a run of MLflow, None if its run_id is not that of a recorded run.

        Args:
            run: MLflow id, name of the experiment, status and lifecycle stage.
            run_id: The run_id.
            load: See the class.
        """
        if not _ID.fullmatch(run_id):
            return None
        return cls(run[0], run_id, run[1], run[2], run[3] == "deleted", load)

    @cached_property
    def own_tags(self) -> dict[str, str]:
        """All tags as they are in MLflow, and those that only programs read by their plain names."""
        return plain_names({name: value or "" for name, value in self.load("tags").items()})

    @cached_property
    def tags(self) -> dict[str, str]:
        """All tags; a label that Guild created from the flags is replaced by ""."""
        tags = self.own_tags
        if tags.get("label") and is_automatic(tags["label"], self.flags):
            return tags | {"label": ""}
        return tags

    @cached_property
    def flags(self) -> dict[str, Any]:
        """Flags by name, as text."""
        flags: dict[str, Any] = {decode(n): value for n, value in self.load("params").items()}
        changed = self.own_tags.get("changed_flags")  # MLflow's params cannot be changed
        return flags | _object(changed) if changed else flags

    @cached_property
    def last(self) -> dict[str, float]:
        """Last values of the metrics by name."""
        return {decode(name): _number(value) for name, value in self.load("metrics").items()}

    def tag(self, name: str) -> str:
        """Return a tag, "" without it; other tags are not read."""
        if name == "label":
            return self.tags.get(name, "")
        tags = self.load("tags")
        stored = stored_name(name)
        value = tags.get(stored if stored in tags else name) or ""
        return self.own_tags[name] if len(value) == LENGTH else value  # the begin of a long text

    def flag(self, name: str, missing: Any = None) -> Any:
        """Return a flag as text; other flags are not read."""
        if encode(name) != name or self.tag("changed_flags"):
            return self.flags.get(name, missing)
        return self.load("params").get(name, missing)

    def last_value(self, name: str, missing: Any = None) -> Any:
        """Return the last value of a metric; other metrics are not read."""
        if encode(name) != name:
            return self.last.get(name, missing)
        value = self.load("metrics").get(name, missing)
        return missing if value is missing else _number(value)

    @property
    def batch(self) -> str:
        """Id of its batch; "" for a run that is not a trial."""
        batch = self.tag("batch")
        return batch if _ID.fullmatch(batch) else ""

    @property
    def started(self) -> int | None:
        """Milliseconds since the epoch; None if unknown."""
        return _integer(self.tag("started"))

    @property
    def is_current(self) -> bool:
        """Whether the run is neither marked as superseded nor as retracted."""
        return not self.tag("superseded_by") and not self.tag("retracted")

    @cached_property
    def record(self) -> RunRecord:
        """The run, without metrics."""
        tags = self.tags
        digests = _object(tags.get("digest")) or {
            "weights": tags.get("digest_weights", ""),
            "metrics": tags.get("digest_metrics", ""),
        }
        texts: dict[str, Any] = {name: tags.get(name, "") for name in _TEXT_TAGS}
        return RunRecord(
            run=self.run,
            study=tags.get("study") or self.experiment,
            status=self.status if self.status in STATUSES else RUNNING,
            batch=self.batch,
            commit=tags.get("commit", ""),
            flags=self.flags,
            result=_result(tags),
            seed=_integer(tags.get("seed")),
            started=self.started,
            env_steps=_integer(tags.get("env_steps")),
            wall_seconds=_float(tags.get("wall_seconds")),
            versions=_object(tags.get("versions")),
            environment=_object(tags.get("environment")),
            digest=digests,
            parents=tuple(filter(None, tags.get("parents", "").split(","))),
            superseded_by=by if _ID.fullmatch(by := tags.get("superseded_by", "")) else "",
            superseded_why=tags.get("superseded_why", ""),
            retracted=tags.get("retracted", ""),
            reproduced=_objects(tags.get("reproduced")),
            **texts,
        )


class Reader:
    """Reader of the runs in an MLflow.

    Attributes:
        uri: Server or database.
    """

    uri: str

    def runs(self, *, deleted: bool = False, on_demand: Collection[str] = ()) -> list[StoredRun]:
        """Return the runs with a run_id, by start, without their curves.

        Args:
            deleted: Whether to include deleted runs.
            on_demand: Kinds of data ("tags", "params", "metrics") that the caller needs of few runs; they are read on
                demand.

        Raises:
            MlflowError: MLflow does not answer.
        """
        raise NotImplementedError

    def names(self, stored: Iterable[StoredRun]) -> tuple[set[str], set[str]]:
        """Return the names of the flags and the names of the metrics of all runs.

        Args:
            stored: Result of :meth:`runs`.

        Raises:
            MlflowError: MLflow does not answer.
        """
        flags: set[str] = set()
        metrics: set[str] = set()
        for run in stored:
            flags.update(run.flags)
            metrics.update(run.last)
        return flags, metrics

    def points(self, run_ids: Sequence[str]) -> dict[str, dict[str, list[Point]]]:
        """Return points by MLflow id and by metric, in the order of :func:`point_order`.

        Raises:
            MlflowError: MLflow does not answer.
        """
        raise NotImplementedError

    def lacks_points(self, stored: StoredRun) -> bool:
        """Return whether MLflow has fewer points of a run than its tag POINTS says.

        Raises:
            MlflowError: MLflow does not answer.
        """
        return has_fewer(stored.tag(POINTS), last=stored.load("steps").values())

    def with_points(self, stored: Sequence[StoredRun]) -> list[RunRecord]:
        """Return the records of runs with their metrics."""
        records = []
        for chunk in chunks(stored, IDS):
            points = self.points([run.id for run in chunk])
            records += [run.record.with_points(points.get(run.id, {})) for run in chunk]
        return records


def by_id(stored: Iterable[StoredRun]) -> dict[str, StoredRun]:
    """Return runs by their run_id; the first if MLflow has two runs with the same one."""
    runs: dict[str, StoredRun] = {}
    for run in stored:
        runs.setdefault(run.run, run)
    return runs


def point_order(time: int, step: int, value: float) -> tuple[int, int, bool, float]:
    """Sort key of a metric's points: by step, then by time, since the earliest point of a step counts."""
    return step, time, value != value, 0.0 if value != value else value


def tags_of(record: RunRecord) -> dict[str, str]:
    """Return the tags that store a record, except its metrics, flags and status."""
    tags = {name: getattr(record, name) for name in _TEXT_TAGS}
    tags |= {"run_id": record.run, "batch": record.batch, "study": record.study}
    tags |= {"commit": record.commit, "parents": ",".join(record.parents)}
    tags["versions"] = _json(record.versions)
    tags["digest"] = _json(record.digest)
    tags["environment"] = _json(record.environment)
    tags |= mark_tags(record)
    for name in ("seed", "started", "env_steps", "wall_seconds"):
        value = getattr(record, name)
        tags[name] = "" if value is None else repr(value)
    if record.split:
        tags["split"] = record.split
    tags["result"] = "" if record.result is None else _json(record.result)
    return tags


def params_of(record: RunRecord) -> dict[str, str]:
    """Return the params that store a record's flags."""
    return {encode(name): values.flag_text(value) for name, value in record.flags.items()}


def mark_tags(record: RunRecord) -> dict[str, str]:
    """Return the tags of a record's marks; none for a record without marks."""
    marks = {name: getattr(record, name) for name in MARKS if getattr(record, name)}
    return {name: v if isinstance(v, str) else _json(v) for name, v in marks.items()}


def _result(tags: dict[str, str]) -> dict[str, Any] | None:
    shown = tags.get("result", "")
    result = _object(shown) if shown else None
    if not shown or result is None or not shown.startswith("{"):
        result = None
    search = _object(tags.get("search"))
    return {**(result or {}), "search": search} if search else result


def _number(value: float | None) -> float:
    """Return a metric's value; None stands for NaN, which MLflow marks in a separate column."""
    return math.nan if value is None or value != value else values.number(value)


def digest(record: RunRecord) -> str:
    """Return a digest of a record's text without its marks, which do not make it another record."""
    return hashlib.sha256(dumps(unmarked(record)).encode()).hexdigest()[:16]


# A single encoder: json.dumps would create one per call.
_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def _object(shown: str | None) -> dict[str, Any]:
    value = _parsed(shown)
    return value if isinstance(value, dict) else {}


def _objects(shown: str | None) -> tuple[dict[str, Any], ...]:
    value = _parsed(shown)
    return tuple(v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()


def _parsed(shown: str | None) -> Any:
    """Return the value of a tag with JSON; None without one, and for what nobody could have recorded."""
    if not shown:
        return None
    try:
        value = values.parse_json(shown.encode())
    except ValueError:
        return None
    return None if is_nested_deeply(value) else value


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
