"""Guild's runs and the journals to MLflow: what is missing or has changed, as often as wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catalog import guild_runs
from catalog.errors import CatalogError
from catalog.guild_runs import Batch, GuildRun
from catalog.model import KILLED, RUNNING, RunRecord
from catalog.project import Project
from catalog.store import BATCH_KEY, DIGEST, Store, Stored, digest
from record import journal
from record.errors import UserError
from record.mlflow_client import MlflowError
from record.publish import publish
from record.status import status_of

STAMP = "catalog.stamp"  # tag: sizes and times of the files that were sent, once a run has ended
_GONE = "process gone"


@dataclass
class Report:
    """What a sync did.

    Attributes:
        runs: Runs and batches that were looked at.
        sent: Those that were new or had changed.
        deleted: Those that someone deleted in MLflow; they are left so.
        problems: One line for each that could not be sent.
    """

    runs: int = 0
    sent: int = 0
    deleted: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def alone(project: Project) -> Iterator[None]:
    """Lets one process at a time change the project's MLflow from the catalog.

    Raises:
        CatalogError: Another one goes on for ten minutes, or the folder cannot be written.
    """
    folder = project.root / ".cache"
    try:
        folder.mkdir(exist_ok=True)
        with journal.locked(folder / "catalog.lock", timeout=600):
            yield
    except TimeoutError:
        raise CatalogError("another catalog command has been at work for ten minutes") from None
    except PermissionError as error:
        raise CatalogError(f"cannot write {error.filename}: {error.strerror}") from None


class Sync:
    """One pass over all runs.

    Args:
        project: The project.
        store: Its MLflow.
        say: Called with a line for each run that is sent.
    """

    def __init__(self, project: Project, store: Store, say: Callable[[str], None]) -> None:
        self.project = project
        self.store = store
        self.say = say
        self.report = Report()
        self.operations = project.operations()
        self.stored: dict[str, Stored] = {}
        for each in store.runs(deleted=True):
            known = self.stored.get(each.record.run)
            if known is None or known.deleted:
                self.stored[each.record.run] = each

    def run(self, home: Path | None) -> Report:
        """Sends what is missing of a Guild home and of the project's runs/ folder."""
        runs = guild_runs.read(home)
        by_id = {run.id: run for run in runs}
        batch_of: dict[str, tuple[str, str]] = {}
        for batch in guild_runs.batches(runs, self.operations):
            members = [by_id[trial] for trial in batch.trials]
            batch_id = self._batch_id(batch)
            with self._problems(batch_id):
                parent = self._send_batch(batch_id, batch, members)
                batch_of |= dict.fromkeys(batch.trials, (batch_id, parent))
        for run in runs:
            if not run.proto_operation:
                with self._problems(run.id):
                    self._send_run(run, *batch_of.get(run.id, ("", "")))
        for directory in sorted((self.project.root / "runs").glob("*")):
            if (directory / "journal" / "run.json").is_file():
                self.send_journal(directory)
        return self.report

    def send_journal(self, directory: Path) -> None:
        """Sends a run that was started without Guild, or copied from another machine."""
        with self._problems(directory.name):
            self._send_journal(directory)

    def _send_journal(self, directory: Path) -> None:
        facts = journal.read_json(directory / "journal" / "run.json") or {}
        run_id = str(facts.get("id") or "")
        script, study = str(facts.get("operation") or ""), str(facts.get("study") or "")
        run = GuildRun(run_id, directory)
        tags = {"operation": self.project.operation_of_script(script, study), "batch": ""}
        if (directory / ".guild" / "opref").is_file():
            tags |= {"operation": run.operation or script, "label": run.label}
        self._publish(run_id, directory, tags)

    @contextmanager
    def _problems(self, run_id: str) -> Iterator[None]:
        """Goes on with the next run when one is broken."""
        self.report.runs += 1
        try:
            yield
        except MlflowError:
            raise  # the next one would meet the same
        except (UserError, CatalogError, OSError, ValueError, KeyError, TypeError) as error:
            self.report.problems.append(f"{run_id[:8]}: {str(error) or type(error).__name__}")

    def _batch_id(self, batch: Batch) -> str:
        """The id that the batch has in MLflow already, else Guild's, else one made of its key."""
        for stored in self.stored.values():
            if stored.tags.get(BATCH_KEY) == batch.key:
                return stored.record.run
        for trial in batch.trials:
            known = self.stored.get(trial)
            if known is not None and known.record.batch:
                return known.record.batch
        return batch.run.id if batch.run else batch.key

    def _send_batch(self, batch_id: str, batch: Batch, members: list[GuildRun]) -> str:
        """Sends a batch's own row; returns MLflow's id of it."""
        stored = self.stored.get(batch_id)
        if stored is not None and stored.deleted:
            self.report.deleted += 1
            return ""
        status, reason = batch.run.end() if batch.run else ("FINISHED", "")
        first = _facts(members[0]) if members else {}
        ends = [
            m.started + int(1000 * (m.wall_seconds or 0)) for m in members if m.started is not None
        ]
        begun = [m.started for m in members if m.started is not None]
        started = min(begun, default=None)
        if batch.run is not None and batch.run.started is not None:
            started = batch.run.started
        wall = batch.run.wall_seconds if batch.run else None
        if wall is None and ends and started is not None and status != RUNNING:
            wall = max(0, max(ends) - started) / 1000
        labels = {m.label for m in members}
        label = batch.run.label if batch.run else ""
        record = RunRecord(
            run=batch_id,
            operation=batch.operation,
            study=self._study(batch.operation, first),
            status=status,
            reason=reason,
            label=label or (labels.pop() if len(labels) == 1 else ""),
            result={"batch": True, "method": batch.method, **_optimised(members)},
            flags=batch.run.flags if batch.run and batch.run.operation != "+" else {},
            started=started,
            wall_seconds=wall,
            **{name: str(first.get(name) or "") for name in ("machine", "gpu", "host_cpu")},
        )
        return self._put(record, {BATCH_KEY: batch.key})

    def _send_run(self, run: GuildRun, batch: str, parent: str) -> None:
        tags = {"operation": run.operation, "batch": batch, "label": run.label}
        if parent:
            tags["mlflow.parentRunId"] = parent
        if search := _search(run.directory):
            tags["search"] = search
        if run.parents:
            own = (journal.read_json(run.directory / "journal" / "parents.json") or {}).get(
                "parents", []
            )
            tags["parents"] = ",".join(dict.fromkeys([*own, *run.parents]))
        if run.has_journal:
            self._publish(run.id, run.directory, tags, run)
            return
        status, reason = run.end()
        if status == KILLED and reason.startswith(_GONE):
            reason = "process gone before it recorded anything"
        search = tags.pop("search", "")
        record = RunRecord(
            run=run.id,
            operation=run.operation,
            study=self._study(run.operation, {}),
            status=status,
            reason=reason,
            batch=batch,
            label=run.label,
            result={"search": json.loads(search)} if search else None,
            seed=run.flags.get("seed") if isinstance(run.flags.get("seed"), int) else None,
            flags=run.flags,
            machine=self._machine(run),
            started=run.started,
            wall_seconds=run.wall_seconds,
            parents=tuple(run.parents),
        )
        self._put(record, {k: tags[k] for k in ("mlflow.parentRunId",) if k in tags})

    def _put(self, record: RunRecord, tags: dict[str, str]) -> str:
        """Adds or changes a run that has no journal; returns MLflow's id of it."""
        stored = self.stored.get(record.run)
        if stored is None:
            self._told(record.run, record.operation, record.status)
            return self.store.write(record, tags)
        if stored.deleted:
            self.report.deleted += 1
            return ""
        wanted = {**tags, DIGEST: digest(record)}
        changed = any(stored.tags.get(name) != value for name, value in wanted.items())
        if changed or stored.record.status != record.status:
            self._told(record.run, record.operation, record.status)
            if stored.record.study != record.study:  # an experiment cannot be changed
                self.store.forget(stored)
                return self.store.write(record, tags)
            self.store.update(stored, record, tags)
        return stored.id

    def _publish(
        self, run_id: str, directory: Path, tags: dict[str, str], run: GuildRun | None = None
    ) -> None:
        """Sends a run that has a journal, unless nothing has changed since it ended."""
        stored = self.stored.get(run_id)
        if stored is not None and stored.deleted:
            self.report.deleted += 1
            return
        stamp = _stamp(directory)
        if (
            stored is not None and DIGEST in stored.tags
        ):  # from a record; here is the journal itself
            self.store.forget(stored)
            stored = None
        if stored is not None and stored.record.status != RUNNING:
            same = all(stored.tags.get(name, "") == value for name, value in tags.items())
            if same and stored.tags.get(STAMP) == stamp:
                return
        status = status_of(directory)
        end = None
        if run is not None and status.reason.startswith(_GONE):
            told = run.end()  # Guild saw how the process ended
            end = (
                told if told[0] not in ("FINISHED", RUNNING) and told[1] != status.reason else None
            )
        if end is not None:
            tags = {**tags, "reason": end[1]}
        published = publish(directory, self.store.uri, tags)
        if not published.mlflow_run_id:
            self.report.deleted += 1
            return
        final = end[0] if end is not None else published.status.status
        if end is not None and end[0] != published.status.status:
            self.store.client.set_terminated(
                published.mlflow_run_id, end[0], published.status.ended
            )
        if final != RUNNING:
            self.store.tag(published.mlflow_run_id, {STAMP: stamp})
        operation = tags.get("operation", "")
        if stored is None or published.points or stored.record.status != final:
            self._told(run_id, operation, final)

    def _told(self, run_id: str, operation: str, status: str) -> None:
        self.report.sent += 1
        self.say(f"{run_id[:8]}  {operation}  {status}")

    def _study(self, operation: str, facts: dict[str, Any]) -> str:
        return str(facts.get("study") or self.project.study_of(operation) or "unassigned")

    def _machine(self, run: GuildRun) -> str:
        from record.facts import machine_name

        host = str(run.attr("host") or "")
        return machine_name(self.project.root, host) if host else ""


def _facts(run: GuildRun) -> dict[str, Any]:
    return journal.read_json(run.directory / "journal" / "run.json") or {}


def _search(directory: Path) -> str:
    """What the search noted about a trial, as JSON short enough for a tag."""
    note = journal.read_json(directory / "search.json")
    if not note:
        return ""
    names = ("kind", "method", "trial", "predicted", "kernel", "acq_func", "hyperparameters")
    kept = {name: note[name] for name in names if note.get(name) not in (None, {}, "")}
    shown = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    return shown if len(shown) < 7000 else json.dumps({"kind": kept.get("kind", "")})


def _optimised(members: list[GuildRun]) -> dict[str, Any]:
    """The metric that a search looked at, as its first trial's note says."""
    for member in members:
        note = journal.read_json(member.directory / "search.json") or {}
        if isinstance(note.get("objective"), dict):
            return {"optimised": note["objective"]}
    return {}


def _stamp(directory: Path) -> str:
    """Changes when a file changes that a run's row is made of."""
    parts = []
    for name in (
        "result.json",
        "journal/run.json",
        "journal/sessions.jsonl",
        "journal/metrics.jsonl",
        "journal/parents.json",
        ".guild/attrs/exit_status",
    ):
        try:
            stat = (directory / name).stat()
            parts.append(f"{stat.st_size}.{stat.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)
