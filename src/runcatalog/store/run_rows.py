"""A run in MLflow: the record that it makes, and how a record is written so that it reads back the same."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from runcatalog.guild.runs import is_automatic
from runcatalog.model import values
from runcatalog.model.record_files import dumps
from runcatalog.model.run_record import RUNNING, STATUSES, Point, RunRecord

IDS = 400  # runs in one query of points; SQLite takes 999 variables
_TAG = 7900  # characters; MLflow cuts a tag at 8000
_KEY = 240  # characters; MLflow takes 250
_ID = re.compile(r"[0-9a-f]{8,32}")
_PLAIN = re.compile(r"[A-Za-z0-9_\-. :/]")
_ESCAPE = re.compile(r"_x([0-9A-F]{1,6})_")
_TEXT_TAGS = ("operation", "label", "reason", "reported_by", "machine", "gpu", "host_cpu", "dirty")


@dataclass(frozen=True)
class StoredRun:
    """A run in MLflow with its tags, params and last values.

    Attributes:
        id: MLflow's id.
        run: The run_id.
        experiment: Name of the experiment.
        status: MLflow's status.
        deleted: Whether someone deleted it in MLflow.
        load: Returns "tags", "params" or "metrics" (last values) by name.
    """

    id: str
    run: str
    experiment: str
    status: str
    deleted: bool
    load: Callable[[str], Mapping[str, Any]] = field(compare=False, repr=False)

    @classmethod
    def of(
        cls, run: tuple[str, str, str, str], run_id: str, load: Callable[[str], Mapping[str, Any]]
    ) -> StoredRun | None:
        """Return a run of MLflow, None if its run_id is not that of a recorded run.

        Args:
            run: MLflow's id, the experiment's name, status and lifecycle stage.
            run_id: The run_id.
            load: See the class.
        """
        if not _ID.fullmatch(run_id):
            return None
        return cls(run[0], run_id, run[1], run[2], run[3] == "deleted", load)

    @cached_property
    def own_tags(self) -> dict[str, str]:
        """All tags as they are in MLflow."""
        return {name: value or "" for name, value in self.load("tags").items()}

    @cached_property
    def tags(self) -> dict[str, str]:
        """All tags; a label that Guild made of the flags is left empty."""
        tags = self.own_tags
        if tags.get("label") and is_automatic(tags["label"], self.flags):
            return tags | {"label": ""}
        return tags

    @cached_property
    def flags(self) -> dict[str, Any]:
        """Flags by name, as text."""
        flags: dict[str, Any] = {decode(n): value for n, value in self.load("params").items()}
        changed = self.own_tags.get("changed_flags")  # MLflow never changes a param
        return flags | _object(changed) if changed else flags

    @cached_property
    def last(self) -> dict[str, float]:
        """Last values of the metrics by name."""
        return {decode(name): _number(value) for name, value in self.load("metrics").items()}

    def tag(self, name: str) -> str:
        """Return one of the tags, "" without it; the others need not be read."""
        return self.tags.get(name, "") if name == "label" else self.load("tags").get(name) or ""

    def flag(self, name: str, missing: Any = None) -> Any:
        """Return one of the flags, as text; the others need not be read."""
        if encode(name) != name or self.tag("changed_flags"):
            return self.flags.get(name, missing)
        return self.load("params").get(name, missing)

    def last_of(self, name: str, missing: Any = None) -> Any:
        """Return the last value of one of the metrics; the others need not be read."""
        if encode(name) != name:
            return self.last.get(name, missing)
        value = self.load("metrics").get(name, missing)
        return missing if value is missing else _number(value)

    @cached_property
    def record(self) -> RunRecord:
        """The run, without metrics."""
        tags = self.tags
        batch = tags.get("batch", "")
        digests = _object(tags.get("digest")) or {
            "weights": tags.get("digest_weights", ""),
            "metrics": tags.get("digest_metrics", ""),
        }
        return RunRecord(
            run=self.run,
            study=tags.get("study") or self.experiment,
            status=self.status if self.status in STATUSES else RUNNING,
            batch=batch if _ID.fullmatch(batch) else "",
            commit=tags.get("commit", ""),
            flags=self.flags,
            result=_result(tags),
            seed=_integer(tags.get("seed")),
            started=_integer(tags.get("started")),
            env_steps=_integer(tags.get("env_steps")),
            wall_seconds=_float(tags.get("wall_seconds")),
            versions=_object(tags.get("versions")),
            environment=_object(tags.get("environment")),
            digest=digests,
            parents=tuple(filter(None, tags.get("parents", "").split(","))),
            **{name: tags.get(name, "") for name in _TEXT_TAGS},
        )


class Reader:
    """Read the runs of an MLflow.

    Attributes:
        uri: Server or database.
    """

    uri: str

    def runs(self, *, deleted: bool = False, rarely: Collection[str] = ()) -> list[StoredRun]:
        """Return the runs that have a run_id, by start, without their curves.

        Args:
            deleted: Deleted ones too.
            rarely: Those of "tags", "params" and "metrics" that the caller needs of few runs; they are
                read on demand, maybe later than the rest.

        Raises:
            MlflowError: MLflow does not answer.
        """
        raise NotImplementedError

    def names(self, stored: Iterable[StoredRun]) -> tuple[set[str], set[str]]:
        """Return the names of the flags, and of the metrics, that any run has.

        Args:
            stored: What :meth:`runs` returned.

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
        """Return points by MLflow's id of the run and by metric, in the order of :func:`point_order`.

        Raises:
            MlflowError: MLflow does not answer.
        """
        raise NotImplementedError

    def records(self, *, curves: bool = True) -> list[RunRecord]:
        """Return the record of every run; the first where MLflow has two of a run_id.

        Args:
            curves: With their metrics.
        """
        first: dict[str, StoredRun] = {}
        for run in self.runs():
            first.setdefault(run.run, run)
        if curves:
            return self.with_points(list(first.values()))
        return [run.record for run in first.values()]

    def with_points(self, stored: Sequence[StoredRun]) -> list[RunRecord]:
        """Return the records of some runs with their metrics."""
        records = []
        for group in groups(stored, IDS):
            points = self.points([run.id for run in group])
            records += [run.record.with_points(points.get(run.id, {})) for run in group]
        return records


def point_order(time: int, step: int, value: float) -> tuple[int, int, bool, float]:
    """Sort key of a metric's points: by step, the earliest of a step first; only that one counts."""
    return step, time, value != value, 0.0 if value != value else value


def tags_of(record: RunRecord) -> dict[str, str]:
    """Return the tags from which a record, metrics, flags and status apart, can be read again."""
    tags = {name: getattr(record, name) for name in _TEXT_TAGS}
    tags |= {"run_id": record.run, "batch": record.batch, "study": record.study}
    tags |= {"commit": record.commit, "parents": ",".join(record.parents)}
    tags["versions"] = _json(record.versions)
    tags["digest"] = _json(record.digest)
    tags["environment"] = _json(record.environment)
    for name in ("seed", "started", "env_steps", "wall_seconds"):
        value = getattr(record, name)
        tags[name] = "" if value is None else repr(value)
    result = "" if record.result is None else _json(record.result)
    tags["result"] = result[:_TAG]
    rest = result[_TAG:]
    for number in range(1, 1 + math.ceil(len(rest) / _TAG)):  # a tag is too short for a long result
        tags[f"result.{number}"] = rest[(number - 1) * _TAG : number * _TAG]
    return tags


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


def _number(value: float | None) -> float:
    """A metric's value; MLflow marks NaN in a column of its own, which reads as None."""
    return math.nan if value is None or value != value else values.number(value)


def digest(record: RunRecord) -> str:
    """Return a digest of a record's text."""
    return hashlib.sha256(dumps(record).encode()).hexdigest()[:16]


@lru_cache(10_000)
def encode(name: str) -> str:
    """Return a name as MLflow takes it; :func:`decode` gives it back."""
    kept = name.replace("_x", "_x5F_x")  # else it could read as an escape
    shown = "".join(c if _PLAIN.fullmatch(c) else f"_x{ord(c):X}_" for c in kept)
    odd = posixpath.normpath(shown) != shown or shown.startswith(("/", "."))
    if odd or not shown.strip() or shown != shown.strip():
        shown = re.sub("[./ ]", lambda m: f"_x{ord(m[0]):X}_", shown)
    if len(shown) > _KEY:
        shown = f"{shown[: _KEY - 20]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return shown or "_x_"


@lru_cache(10_000)
def decode(key: str) -> str:
    """Return the name that :func:`encode` was given."""
    return "" if key == "_x_" else _ESCAPE.sub(lambda m: chr(int(m[1], 16)), key)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _object(shown: str | None) -> dict[str, Any]:
    if not shown:
        return {}
    try:
        value = values.parse_json(shown)
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


def groups(items: Sequence[Any] | Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yields items in lists of at most `size`."""
    items = list(items)
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
