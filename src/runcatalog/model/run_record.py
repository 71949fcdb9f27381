"""Record of a run, read from MLflow or from JSON.

Construction puts every field into its canonical form, curves included, so that pages rendered from MLflow and from the
committed records are the same bytes.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter, lt
from types import MappingProxyType
from typing import Any

from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.numbers import is_int64
from runcatalog.record.evaluation import EvaluationSet, LevelOutcomes, declared, outcomes_of

CURVE_POINTS = 100
STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")
FINISHED, FAILED, KILLED, RUNNING = "FINISHED", "FAILED", "KILLED", "RUNNING"

# Flags that do not change what a run computes: runs that differ in these alone are equivalent. A setting is all
# others, without the seed.
NEUTRAL_FLAGS = frozenset(
    {"resume", "threads", "envs-per-call", "video", "save-interval", "save-freq", "val-batch-size"}
)
NOT_OF_SETTING = NEUTRAL_FLAGS | {"seed"}

_RUN = re.compile(r"[0-9a-f]{8,32}")
_STUDY = re.compile(r"[^A-Za-z0-9_-]+")
# Metrics for which smaller is better, if no objective gives a goal.
_SMALL_IS_GOOD = re.compile(r"loss|error|penetration|regret|kl\b|^time/", re.IGNORECASE)

Point = tuple[int, float]


@dataclass(frozen=True)
class Metric:
    """A metric of a run.

    Attributes:
        last: Value at the last step.
        best: Best value: the largest, or the smallest if smaller is better.
        step_of_best: First step with that value.
        steps, values: Points by step, at most CURVE_POINTS, with the first, last and best point.
    """

    last: float
    best: float
    step_of_best: int
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def curve(self) -> tuple[Point, ...]:
        """The points as (step, value)."""
        return tuple(zip(self.steps, self.values, strict=True))

    @classmethod
    def from_points(cls, points: Iterable[Point], *, maximize: bool = True) -> Metric:
        """Return the metric of a run's points; the first value of a step counts.

        Raises:
            ValueError: There are no points, or one is not a step of 64 bits and a number.
        """
        points = list(points)
        if not points:
            raise ValueError("a metric needs a point")
        steps, numbers = zip(*points, strict=True)
        if not _plain(steps, numbers):
            by_step: dict[int, float] = {}
            for step, value in points:
                by_step.setdefault(_step(step), values.number(value))
            steps, numbers = zip(*sorted(by_step.items()), strict=True)
        elif 0.0 in numbers:
            numbers = tuple(number + 0.0 for number in numbers)  # no negative zero
        at = best_index(numbers, maximize=maximize)
        last, best, step_of_best = numbers[-1], numbers[at], steps[at]
        if len(steps) > CURVE_POINTS:
            keep = itemgetter(*downsample(len(steps), at))
            steps, numbers = keep(steps), keep(numbers)
        return cls(last, best, step_of_best, steps, numbers)


def _plain(steps: Sequence[Any], numbers: Sequence[Any]) -> bool:
    """Return whether points are canonical: sorted by step without repeats, finite, below the largest number."""
    return (
        set(map(type, steps)) == {int}
        and set(map(type, numbers)) == {float}
        and all(map(lt, steps, steps[1:]))
        and is_int64(steps[0])
        and is_int64(steps[-1])
        and math.isfinite(sum(numbers))
        and max(numbers) < values.HUGE
        and min(numbers) > -values.HUGE
    )


def best_index(numbers: Sequence[float], *, maximize: bool) -> int:
    """Return the index of the first best value; NaN is worse than any number."""
    if math.isfinite(sum(numbers)) or not any(map(math.isnan, numbers)):
        return numbers.index(max(numbers) if maximize else min(numbers))
    sign = -1 if maximize else 1
    return min(
        range(len(numbers)),
        key=lambda i: (
            math.isnan(numbers[i]),
            sign * numbers[i] if numbers[i] == numbers[i] else 0,
        ),
    )


def downsample(count: int, best: int, limit: int = CURVE_POINTS) -> list[int]:
    """Return which of `count` points a record keeps: all, or `limit` evenly spaced by index.

    The first, the last and the best point are always kept; a second downsampling changes nothing.
    """
    if count <= limit:
        return list(range(count))
    even = {round(i * (count - 1) / (limit - 1)) for i in range(limit)}
    if best not in even:
        even = {round(i * (count - 1) / (limit - 2)) for i in range(limit - 1)} | {best}
    return sorted(even)


@dataclass(frozen=True)
class RunRecord:
    """A run or a batch.

    Attributes:
        run: Id, 8 to 32 hex digits.
        batch: Id of the batch of a trial; "" for other runs.
        operation: Name as typed after `guild run`.
        label: Label given by the user; "" without one.
        study: The study.
        status: One of STATUSES.
        reason: Why it did not finish.
        result: Result of the script, with `objective`, `summary`, `variant`, …; None without.
        reported_by: Source of an imported run; "" for a recorded run.
        seed: The seed, if it has one.
        flags: All effective flags by name.
        metrics: Metrics by name.
        machine, gpu, host_cpu: Machine, its GPU and CPU.
        versions: Versions of Python and packages.
        commit, dirty: Commit, and digest of uncommitted changes.
        started: Milliseconds since the epoch.
        wall_seconds: Duration over all sessions, in seconds.
        env_steps: Environment steps.
        digest: Digests of the final `weights` and of the `metrics`.
        environment: Environment variables that may change a run, on the allow-list of `redact`.
        parents: Ids of the runs whose checkpoint or result it started from.
        superseded_by: Id of the run or batch that stands for the same question today; "" for none.
        superseded_why: Why it stands there.
        retracted: Why the run does not count, such as a wrong setting; "" where it does.
        reproduced: Reruns: {when, cpu, bits, value}, the oldest first.
    """

    run: str
    operation: str
    study: str
    status: str
    batch: str = ""
    label: str = ""
    reason: str = ""
    result: dict[str, Any] | None = None
    reported_by: str = ""
    seed: int | None = None
    flags: dict[str, values.Scalar] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    machine: str = ""
    gpu: str = ""
    host_cpu: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: str = ""
    started: int | None = None
    wall_seconds: float | None = None
    env_steps: int | None = None
    digest: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    parents: tuple[str, ...] = ()
    superseded_by: str = ""
    superseded_why: str = ""
    retracted: str = ""
    reproduced: tuple[dict[str, Any], ...] = ()
    # No field, since it is not of the record: see `with_added_flags`.
    _added_flags = MappingProxyType[str, values.Scalar]({})

    def __post_init__(self) -> None:
        _check_id("run", self.run)
        if self.batch:
            _check_id("batch", self.batch)
        if self.superseded_by:
            _check_id("superseded_by", self.superseded_by)
        if self.status not in STATUSES:
            raise CatalogError(
                f"run {self.run[:8]}: status is one of {', '.join(STATUSES)}, got {self.status!r}"
            )
        put = object.__setattr__
        put(self, "label", values.label(self.label)[:MAX_TEXT])
        for name in _TEXTS:
            put(self, name, values.text(getattr(self, name))[:MAX_TEXT])
        for name in ("commit", "dirty"):
            put(self, name, values.text(getattr(self, name))[:64])
        put(
            self, "study", _STUDY.sub("-", values.text(self.study)).strip("-")[:100] or "unassigned"
        )
        put(
            self,
            "flags",
            {values.text(k): values.parse_flag(v) for k, v in sorted(self.flags.items())},
        )
        for name in ("versions", "environment"):
            put(self, name, _texts(getattr(self, name)))
        put(self, "digest", {k: v for k, v in _texts(self.digest).items() if v})
        put(self, "result", None if self.result is None else values.to_json(self.result))
        put(self, "parents", tuple(values.text(p) for p in self.parents if p))
        if not all(isinstance(entry, dict) for entry in self.reproduced):
            raise CatalogError(f"run {self.run[:8]}: reproduced is a list of objects")
        put(self, "reproduced", tuple(values.to_json(entry) for entry in self.reproduced))
        if self.wall_seconds is not None:
            put(self, "wall_seconds", round(float(self.wall_seconds), 3))

    @property
    def id8(self) -> str:
        """The 8 hex digits that the catalog shows."""
        return self.run[:8]

    @property
    def is_current(self) -> bool:
        """Whether the run counts: it is neither superseded nor retracted."""
        return not self.superseded_by and not self.retracted

    @property
    def objective(self) -> dict[str, Any] | None:
        """The result's objective, see :func:`checked_objective`; None without one."""
        return checked_objective((self.result or {}).get("objective"), self.outcomes)

    @property
    def evaluation(self) -> EvaluationSet | None:
        """The set on which the objective was computed, if the run declares it."""
        return declared(self.result)

    @property
    def outcomes(self) -> dict[str, LevelOutcomes]:
        """Successes on the levels of fixed sets, by the names of the metrics that are their means."""
        return outcomes_of(self.result)

    @property
    def comparable_flags(self) -> Mapping[str, values.Scalar]:
        """The flags, with the declared values of those that its script did not have yet: :meth:`with_added_flags`."""
        return {**self._added_flags, **self.flags} if self._added_flags else self.flags

    @property
    def split(self) -> str:
        """Split of the set on which the objective was computed; "" if the run declares none."""
        return self.evaluation.split if self.evaluation else ""

    def with_added_flags(self, added: Mapping[str, values.Scalar]) -> RunRecord:
        """Return the record with values of flags that its script did not have yet.

        They count where runs are compared (`comparable_flags`); `flags` and the record's file are as recorded.
        """
        lacking = {name: value for name, value in added.items() if name not in self.flags}
        if not lacking or not self.flags:  # a batch has no flags
            return self
        record = copy.copy(self)
        object.__setattr__(record, "_added_flags", lacking)
        return record

    def with_points(self, points: Mapping[str, Iterable[Point]]) -> RunRecord:
        """Return the record with the metrics of these points."""
        objective = self.objective or {}
        record = copy.copy(self)  # its fields are in canonical form already
        metrics = {
            name: Metric.from_points(curve, maximize=is_maximized(name, objective))
            for name, curve in sorted(points.items())
        }
        object.__setattr__(record, "metrics", metrics)
        return record

    def with_objective(self, objective: Mapping[str, Any]) -> RunRecord:
        """Return the record with this objective in its result."""
        record = copy.copy(self)  # its fields are in canonical form already
        stated = {name: value for name, value in objective.items() if name != "outcomes"}
        result = {**(self.result or {}), "objective": values.to_json(stated)}
        object.__setattr__(record, "result", dict(sorted(result.items())))
        return record


def checked_objective(
    entry: object, outcomes: Mapping[str, LevelOutcomes]
) -> dict[str, Any] | None:
    """Return an objective, or a further number of one, as a script wrote it; None without a name and a number.

    An `interval` that is not two finite numbers is left out.

    Args:
        entry: What the script wrote.
        outcomes: Outcomes on levels of the run, which become part of it.
    """
    if not isinstance(entry, dict) or not entry.get("name"):
        return None
    try:
        value = values.number(entry["value"])
    except (KeyError, ValueError):
        return None
    stated = {**entry, "name": str(entry["name"]), "value": value}
    if "interval" in stated and not _is_interval(stated["interval"]):
        del stated["interval"]
    stated.pop("outcomes", None)  # a script's own entry of this name
    return {**stated, "outcomes": outcomes} if outcomes else stated


def _is_interval(bounds: object) -> bool:
    """Return whether a value is two finite numbers."""
    return (
        isinstance(bounds, list | tuple)
        and len(bounds) == 2
        and all(type(end) in (int, float) and math.isfinite(end) for end in bounds)
    )


def is_maximized(name: str, objective: Mapping[str, Any] | None) -> bool:
    """Return whether the largest value of a metric is the best."""
    if objective and objective.get("name") == name:
        return objective.get("goal", "max") != "min"
    return not _is_small_good(name)


@lru_cache(10_000)
def _is_small_good(name: str) -> bool:
    return bool(_SMALL_IS_GOOD.search(name))


_TEXTS = (
    *("operation", "reason", "reported_by", "machine", "gpu", "host_cpu"),
    *("superseded_why", "retracted"),
)
# Fields that are added to a record after its run; absent where they are empty.
MARKS = ("superseded_by", "superseded_why", "retracted", "reproduced")
MAX_TEXT = 1500  # characters; MLflow takes 8000 bytes


def _check_id(kind: str, value: object) -> None:
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise CatalogError(f"{kind} {str(value)[:40]!r}: 8 to 32 hex digits are expected")


def _texts(mapping: Mapping[str, Any]) -> dict[str, str]:
    items = tuple(sorted(mapping.items()))
    if all(type(value) is str for _, value in items):  # the cache would take 1 and 1.0 for equal
        return dict(_canonical(items))
    return {values.text(name): values.text(value) for name, value in items}


@lru_cache(1000)
def _canonical(items: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return texts by name; cached, since runs of a machine have the same versions."""
    return tuple({values.text(name): values.text(value) for name, value in items}.items())


def to_json(record: RunRecord) -> dict[str, Any]:
    """Return the record as a strict JSON value."""
    number = values.json_number
    content = {name: getattr(record, name) for name in record.__dataclass_fields__}
    content["parents"] = list(record.parents)
    for name in ("environment", *MARKS):
        if not content[name]:
            del content[name]
    if record.reproduced:
        content["reproduced"] = list(record.reproduced)
    content["flags"] = dict(record.flags)
    content["metrics"] = {
        name: {
            "last": number(metric.last),
            "best": number(metric.best),
            "step_of_best": metric.step_of_best,
            "curve": _json_curve(metric),
        }
        for name, metric in sorted(record.metrics.items())
    }
    return content


def _json_curve(metric: Metric) -> Sequence[Sequence[Any]]:
    if math.isfinite(sum(metric.values)):
        return metric.curve  # JSON writes a tuple as a list
    return [[step, values.json_number(value)] for step, value in metric.curve]


def from_json(content: Any, where: str = "record") -> RunRecord:
    """Return the record of a JSON value.

    Args:
        content: The value.
        where: Its file, for messages.

    Raises:
        CatalogError: The value is not a record.
    """
    if not isinstance(content, dict):
        raise CatalogError(f"{where}: a record is a JSON object")
    known = RunRecord.__dataclass_fields__
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise CatalogError(f"{where}: unknown field {unknown[0]!r}")
    fields = {name: value for name, value in content.items() if value is not None}
    missing = [name for name in ("run", "operation", "study", "status") if name not in fields]
    if missing:
        raise CatalogError(f"{where}: field {missing[0]!r} is missing")
    try:
        points = {str(name): m["curve"] for name, m in fields.pop("metrics", {}).items()}
        for name, value in fields.items():
            if not isinstance(value, _KINDS.get(name, str)) or isinstance(value, bool):
                raise TypeError(f"field {name!r} is of the wrong type")
        if not math.isfinite(fields.get("wall_seconds", 0)):
            raise ValueError("field 'wall_seconds' is not a finite number")
        for name in ("parents", "reproduced"):
            fields[name] = tuple(fields.get(name, ()))
        return RunRecord(**fields).with_points(points)
    except CatalogError as error:
        raise CatalogError(f"{where}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CatalogError(f"{where}: {error}") from None


def _step(value: Any) -> int:
    step = int(value)
    if not is_int64(step):
        raise ValueError("a step exceeds 64 bits")
    return step


# Of the fields that are no text. A tuple: isinstance takes twice as long for a union.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("result", "flags", "versions", "digest", "environment"), dict),
    **dict.fromkeys(("parents", "reproduced"), list),
    **dict.fromkeys(("seed", "started", "env_steps"), int),
    "wall_seconds": (int, float),
}
