"""Compare journals, results, checkpoints, MLflow and committed records with one another, run by run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.guild import runs as guild_runs
from runcatalog.guild.runs import GuildRun
from runcatalog.model import values
from runcatalog.model.project import Project
from runcatalog.model.run_record import RUNNING, RunRecord, to_json
from runcatalog.record import journal
from runcatalog.record.delivery.mlflow_client import chunks, shown
from runcatalog.record.errors import UserError
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.lines import Damage
from runcatalog.record.journal.metrics import Point, read_metrics
from runcatalog.record.lifecycle.status import EDITED, Status, has_other_points, status_of
from runcatalog.record.training import checkpoint
from runcatalog.store.run_rows import Reader, StoredRun
from runcatalog.sync.ownership import GuildHome, own, own_ids

AT_ONCE = 100  # runs whose points are read from MLflow together
# Fields of a record that a later command may add to, or that another version of the library may write otherwise.
_COMPARED = (
    "batch", "digest", "dirty", "commit", "env_steps", "flags", "metrics", "operation", "parents", "reason", "result",
    "seed", "started", "status", "wall_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """What does not agree in a run.

    Attributes:
        run: Its id.
        operation: Its operation.
        text: What is wrong.
        missing: Whether MLflow lacks something that the journal has, so that sending it again helps.
    """

    run: str
    operation: str
    text: str
    missing: bool = False


@dataclass
class Report:
    """Outcome of :func:`verify`.

    Attributes:
        journals: Number of run directories whose files were checked.
        in_mlflow: Number of those that were compared with MLflow, point by point.
        records: Number of committed records that were compared with MLflow.
        differences: What does not agree.
        unchecked: Number of runs that could not be compared, by reason.
        directories: Directories of the checked runs by id.
    """

    journals: int = 0
    in_mlflow: int = 0
    records: int = 0
    differences: list[Difference] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)
    directories: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class _Local:
    """A run directory: its id, facts, folder and state."""

    run: str
    operation: str
    directory: Path
    status: Status


def verify(
    project: Project,
    source: Reader,
    home: Path | None,
    records: Iterable[RunRecord],
    report_line: Callable[[str], None],
) -> Report:
    """Compare all that is known of a project's runs.

    Of each run directory the journal's lines are checked, its points against the digest in `result.json`, and, once it
    has ended, the files of its checkpoints against their manifests; then its points, status and end against MLflow's;
    and each committed record against what MLflow has. Times of points and artifacts are not compared.

    Args:
        project: The project.
        source: Reader of its MLflow.
        home: The Guild home; None without one.
        records: The committed records.
        report_line: Called with a line for each difference.

    Raises:
        MlflowError: MLflow does not answer.
    """
    report = Report()

    def differ(run: str, operation: str, text: str, *, missing: bool = False) -> None:
        report.differences.append(Difference(run, operation, text, missing))
        report_line(f"{run[:8]}  {operation}  {text}")

    stored = source.runs(deleted=True)
    present = [run for run in stored if not run.deleted]
    live: dict[str, StoredRun] = {}
    for run in own(project, source.uri, present):
        if run.run in live:
            differ(run.run, run.record.operation, "is in MLflow twice")
        live[run.run] = run
    deleted = {run.run for run in stored if run.deleted} - live.keys()
    known = own_ids(project, source.uri, present)

    for directories in chunks(_directories(project, home, known), AT_ONCE):
        compared: list[tuple[_Local, list[Point], StoredRun]] = []
        for run_id, directory in directories:
            local = _local(run_id, directory)
            if local is None:
                report.unchecked["no readable journal"] += 1
                continue
            report.journals += 1
            report.directories[local.run] = directory
            points, damage = read_metrics(directory / "journal" / journal.METRICS)
            for text in _files(local, points, damage):
                differ(local.run, local.operation, text)
            if local.status.status == RUNNING:
                report.unchecked["still running"] += 1
            elif local.run in deleted:
                report.unchecked["deleted in MLflow"] += 1
            elif local.run not in live:
                differ(local.run, local.operation, "is not in MLflow", missing=True)
            else:
                compared.append((local, points, live[local.run]))
        curves = source.points([run.id for _, _, run in compared])
        for local, points, run in compared:
            report.in_mlflow += 1
            for text, missing in _against_mlflow(local, points, run, curves.get(run.id, {})):
                differ(local.run, local.operation, text, missing=missing)

    wanted = list(records)
    stored_too = [record for record in wanted if record.run in live]
    report.records = len(stored_too)
    report.unchecked["committed records that are not in MLflow"] = len(wanted) - len(stored_too)
    for record, name in _other_records(source, stored_too, live):
        differ(record.run, record.operation, f"record: {name} differs from MLflow")
    report.unchecked += Counter()  # without zeros
    return report


def forget_what_was_sent(directory: Path, uri: str) -> None:
    """Let the next sync compare and send all points of a run, whatever was noted as sent."""
    path = directory / "journal" / "mlflow.json"
    content = read_json(path) or {}
    if content.pop(shown(uri), None) is not None:
        write_json(path, content)


def _directories(
    project: Project, home: Path | None, known: set[str]
) -> Iterator[tuple[str, Path]]:
    """Yield (id, directory) of the project's own runs with a journal."""
    guild_home = GuildHome(project, home, known)
    for run in guild_runs.read(home):
        directory = Path(run.where)
        if (directory / "journal" / "run.json").exists() and guild_home.is_own(run):
            yield run.id, directory
    for directory in sorted((project.root / "runs").glob("*")):
        if (directory / "journal" / "run.json").exists():
            yield "", directory


def _local(run_id: str, directory: Path) -> _Local | None:
    facts = read_json(directory / "journal" / "run.json")
    if facts is None or not (run_id or isinstance(facts.get("id"), str)):
        return None
    try:
        status = status_of(directory)
    except (OSError, *EDITED):
        return None
    operation = GuildRun(run_id, str(directory)).operation if run_id else ""
    return _Local(
        run_id or facts["id"], operation or str(facts.get("operation") or ""), directory, status
    )


def _files(local: _Local, points: Sequence[Point], damage: Damage) -> Iterator[str]:
    """Yield what is wrong in a run's own files.

    Args:
        local: The run.
        points: The points of its journal.
        damage: The damage of their file.
    """
    folder = local.directory / "journal"
    damages = {journal.METRICS: damage}
    damages |= {name: damage_of(folder / name) for name in (journal.SESSIONS, journal.EVENTS)}
    for name, found in damages.items():
        if found:
            yield f"journal/{name}: {found.text()}"
    result = read_json(local.directory / "result.json")
    if result is None and (local.directory / "result.json").exists():
        yield "result.json cannot be read"
    if has_other_points(local.directory, result or {}, points):
        yield "the journal has other points than result.json's digest"
    if local.status.status == RUNNING:  # it may be removing a checkpoint that newer ones replace
        return
    for path in checkpoint.checkpoints_in(local.directory / "checkpoints"):
        try:
            checkpoint.check_files(path)
        except UserError as error:
            yield str(error).replace(str(path), f"checkpoints/{path.name}")


def _against_mlflow(
    local: _Local,
    points: Iterable[Point],
    run: StoredRun,
    curves: Mapping[str, Sequence[tuple[int, float]]],
) -> Iterator[tuple[str, bool]]:
    """Yield (what differs between a run's journal and MLflow, whether MLflow lacks it)."""
    if run.status != local.status.status:
        yield f"status is {run.status} in MLflow, {local.status.status} here", True
    here: Counter[tuple[str, int, float | str]] = Counter()
    for point in points:
        here[point.name, point.step, _comparable(point.value)] += 1
    there = Counter(
        (name, step, _comparable(value)) for name, curve in curves.items() for step, value in curve
    )
    if here == there:
        return
    lacking, surplus = here - there, there - here
    if lacking:
        names = ", ".join(sorted({name for name, _, _ in lacking})[:3])
        yield f"{lacking.total()} of {here.total()} points are missing in MLflow ({names})", True
    if surplus:
        names = ", ".join(sorted({name for name, _, _ in surplus})[:3])
        yield f"{surplus.total()} points in MLflow are not in the journal ({names})", False


def _comparable(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"  # no NaN equals another
    return values.number(value)  # MLflow's database replaces an infinity by the largest number


def _other_records(
    source: Reader, records: Sequence[RunRecord], live: Mapping[str, StoredRun]
) -> Iterator[tuple[RunRecord, str]]:
    """Yield (record, name of a field that MLflow has otherwise)."""
    for chunk in chunks(records, AT_ONCE):
        stored = source.with_points([live[record.run] for record in chunk])
        for record, other in zip(chunk, stored, strict=True):
            first, second = _fields(record), _fields(other)
            yield from ((record, name) for name in _COMPARED if first.get(name) != second.get(name))


def _fields(record: RunRecord) -> dict[str, Any]:
    content = to_json(record)
    content["metrics"] = {
        name: {**metric, "curve": [list(point) for point in metric["curve"]]}
        for name, metric in content["metrics"].items()
    }
    return content
