"""Guild's runs and the journals to MLflow: what is missing or has changed, as often as wanted.

A run that records nothing itself gets the scalars that Guild captured as metrics, and its operation's objective.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runcatalog.guild import file_stamps, scalars
from runcatalog.guild import runs as guild_runs
from runcatalog.guild.runs import Batch, Cache, GuildRun
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Objective, Project
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RUNNING, Point, RunRecord
from runcatalog.record import journal
from runcatalog.record.console import last_lines, output_path
from runcatalog.record.delivery.mlflow_client import MlflowError
from runcatalog.record.delivery.publish import Published, publish
from runcatalog.record.errors import UserError
from runcatalog.record.lifecycle.signals import GONE
from runcatalog.record.lifecycle.status import last_session, status_of
from runcatalog.record.provenance.redact import still_hidden
from runcatalog.record.untrusted import inside
from runcatalog.store.client import BATCH_KEY, DIGEST, INCOMPLETE, Store
from runcatalog.store.run_index import RunIndex
from runcatalog.store.run_rows import StoredRun, digest
from runcatalog.store.sqlite_writer import RunExists
from runcatalog.sync.ownership import PROJECT, GuildHome, own_ids
from runcatalog.text import markdown

SCALARS = "catalog.scalars"  # tag: what a row with Guild's scalars was made of
STAMP = "catalog.stamp"  # tag: sizes and times of the files that were sent, once a run has ended


@dataclass
class Report:
    """What a sync did.

    Attributes:
        runs: Runs and batches that were looked at.
        sent: Those that were new or had changed.
        others: Runs of other projects, which were left out.
        deleted: Those that someone deleted in MLflow; they are left so.
        problems: One line for each that could not be sent.
    """

    runs: int = 0
    sent: int = 0
    others: int = 0
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
        # Each reads the studies' declarations again.
        self._operation_of = functools.cache(project.operation_of_script)
        self._study_of = functools.cache(project.study_of)
        self.index = RunIndex(store)
        self.home = GuildHome(project, None)
        self._copied = False  # whether the caller names the runs: then they are the project's

    def run(self, home: Path | None, *, everything: bool = False) -> Report:
        """Send what is missing of a Guild home and of the project's runs/ folder.

        Args:
            home: The Guild home.
            everything: Whether runs that were started from other projects are sent too.
        """
        self.index.remove_duplicates()
        self.home = GuildHome(self.project, home, own_ids(self.project, self.store.uri, self.index))
        cache = Cache(self.project.root / ".cache" / "guild_runs.json")
        runs = guild_runs.read(home, cache)
        wanted = runs if everything else [run for run in runs if self.home.is_own(run)]
        self.report.others = len(runs) - len(wanted)
        self._send_all(wanted)
        self._send_removed(home, {run.id for run in runs}, everything)
        for directory in sorted((self.project.root / "runs").glob("*")):
            if (directory / "journal" / "run.json").is_file():
                self._send_plain(directory)
        cache.keep(runs)
        return self._tidied()

    def send_copied(self, directories: Sequence[Path]) -> Report:
        """Sends runs that were copied from another machine, Guild's with the batches that they are of."""
        self.index.remove_duplicates()
        self._copied = True
        runs: dict[str, GuildRun] = {}
        for directory in directories:
            if (directory / ".guild" / "opref").is_file():
                try:
                    run = guild_runs.copied(directory)
                except CatalogError as error:
                    self.report.problems.append(str(error))
                    continue
                if not run.is_waiting:
                    runs.setdefault(run.id, run)  # a copy may hold a batch's trials twice
            else:
                self._send_plain(directory)
        self._send_all(list(runs.values()))
        return self._tidied()

    def _send_all(self, runs: Sequence[GuildRun]) -> None:
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
                    self._send_run(run, *(batch_of.get(run.id) or self._known_batch(run.id)))

    def _send_removed(self, home: Path | None, there: set[str], everything: bool) -> None:
        """Tells the end of runs that MLflow takes for running, though Guild's user has deleted them."""
        for stored in self.index:
            if stored.status != RUNNING or stored.deleted or stored.run in there or home is None:
                continue
            run = GuildRun(stored.run, str(home / "trash" / "runs" / stored.run))
            wanted = everything or self.home.is_own(run)
            if wanted and file_stamps.has_journal(file_stamps.stamp_of(run.where)):
                with self._problems(run.id):
                    self._send_run(run, *self._known_batch(run.id))

    def _tidied(self) -> Report:
        if self.report.sent:
            self.index.tidy()
        return self.report

    def _known_batch(self, run_id: str) -> tuple[str, str]:
        """The batch of a trial whose fellows Guild has deleted, as MLflow knows it: (id, MLflow's id)."""
        known = self.index.live(run_id)
        batch = ""
        # A CSV knows nothing of batches.
        if known is not None and known.tags.get("batch") and not known.record.reported_by:
            batch = known.record.batch
        parent = self.index.live(batch) if batch else None
        return batch, parent.id if parent is not None else ""

    def _send_plain(self, directory: Path) -> None:
        """Sends a run that was started without Guild."""
        with self._problems(directory.name):
            facts = journal.read_json(directory / "journal" / "run.json") or {}
            script, study = str(facts.get("operation") or ""), str(facts.get("study") or "")
            tags = {"operation": self._operation_of(script, study), "batch": ""}
            tags[PROJECT] = self.project.name
            self._publish(str(facts.get("id") or ""), str(directory), tags)

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
        stored = self.index.batch(batch.key)
        if stored is not None:
            return stored.run
        for trial in batch.trials:
            known = self.index.get(trial)
            if known is not None and known.record.batch and not known.record.reported_by:
                return known.record.batch
        return batch.run.id if batch.run else batch.key

    def _send_batch(self, batch_id: str, batch: Batch, members: list[GuildRun]) -> str:
        """Sends a batch's own row; returns MLflow's id of it."""
        stored = self.index.get(batch_id)
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
            study=self._study(batch.operation, first, batch.run or members[0]),
            status=status,
            reason=reason,
            label=label or (labels.pop() if len(labels) == 1 else ""),
            result={"batch": True, "method": batch.method}
            | _searched(members)
            | _importance(batch, stored),
            flags=batch.run.shown_flags if batch.run and batch.run.operation != "+" else {},
            started=started,
            wall_seconds=wall,
            **{name: str(first.get(name) or "") for name in ("machine", "gpu", "host_cpu")},
        )
        if stored is not None:
            record = self._with_removed(record, stored, batch)
        own = self._tag_of(batch.run or members[0])
        return self._put(record, {BATCH_KEY: batch.key, PROJECT: own})

    def _with_removed(self, record: RunRecord, stored: StoredRun, batch: Batch) -> RunRecord:
        """Keeps in a batch's row what came from runs that Guild's user has deleted since."""
        before = stored.record
        complete = batch.run is not None and self.index.trials(before.run) <= set(batch.trials)
        if complete or before.status == RUNNING or before.reported_by or DIGEST not in stored.tags:
            return record
        started = min(filter(None, (before.started, record.started)), default=None)
        ends = [r.started + 1000 * (r.wall_seconds or 0) for r in (before, record) if r.started]
        return replace(
            before if batch.run is None else record,
            result={**(record.result or {}), **(before.result or {})},
            started=started,
            wall_seconds=(max(ends) - started) / 1000 if ends and started else None,
        )

    def _send_run(self, run: GuildRun, batch: str, parent: str) -> None:
        tags = {"operation": run.operation, "batch": batch, "label": run.label}
        tags[PROJECT] = self._tag_of(run)
        if parent:
            tags["mlflow.parentRunId"] = parent
        if run.search:
            tags["search"] = run.search
        if run.parents:
            own = (journal.read_json(run.directory / "journal" / "parents.json") or {}).get(
                "parents", []
            )
            tags["parents"] = ",".join(dict.fromkeys([*own, *run.parents]))
        if self._publish(run.id, run.where, tags, run.stamp):
            return
        status, reason = run.end()
        if status == KILLED and reason == GONE:
            reason = "process gone before it recorded anything"
        search = tags.pop("search", "")
        record = RunRecord(
            run=run.id,
            operation=run.operation,
            study=self._study(run.operation, {}, run),
            status=status,
            reason=reason,
            batch=batch,
            label=run.label,
            result={"search": json.loads(search)} if search else None,
            seed=run.flags.get("seed") if isinstance(run.flags.get("seed"), int) else None,
            flags=run.shown_flags,
            machine=self._machine(run),
            commit=run.commit,
            started=run.started,
            wall_seconds=run.wall_seconds,
            parents=tuple(run.parents),
        )
        known = self.index.get(run.id)
        new = known is None or known.status != status
        unchanged = {name: tags[name] for name in ("mlflow.parentRunId", PROJECT) if name in tags}
        # Of a run that goes on, the scalars are read when it has ended: MLflow's points are never taken back.
        files = scalars.event_files(run.directory) if status != RUNNING else []
        objective = self._objective(run)
        if files:
            # The files are not read again while they and all else are as they were.
            unchanged[SCALARS] = (
                f"{digest(record)} {scalars.stamp(files, run.directory)} {objective}"[:500]
            )
            stored = self.index.live(run.id)
            if (
                stored is not None
                and stored.status == status
                and all(stored.tags.get(name) == value for name, value in unchanged.items())
            ):
                return
            record = _with_scalars(record, scalars.points(run.directory, files), objective)
        mlflow_id = self._put(record, unchanged)
        log = output_path(run.directory)
        # What was sent is not sent again: another shell may not know the secrets to hide.
        new = new or known.id != mlflow_id  # a row with metrics is written anew
        if mlflow_id and new and status in (FAILED, KILLED) and inside(run.directory, log):
            tail = run.hide.text(last_lines(log))
            self.store.client.log_text(mlflow_id, f"{tail}\n", "log_tail.txt")

    def _put(self, record: RunRecord, tags: dict[str, str]) -> str:
        """Adds or changes a run that has no journal; returns MLflow's id of it."""
        tags = {**tags, STAMP: "guild"}
        stored = self.index.get(record.run)
        if stored is None:
            self._told(record.run, record.operation, record.status)
            return self.store.write(record, tags)
        if stored.deleted:
            self.report.deleted += 1
            return ""
        record = _still_hidden(record, stored.record)
        wanted = {**tags, DIGEST: digest(record)}
        changed = any(stored.tags.get(name) != value for name, value in wanted.items())
        if changed or stored.status != record.status:
            self._told(record.run, record.operation, record.status)
            # An experiment cannot be changed; what was written in part, or from a CSV, or has metrics, is written anew.
            partly = stored.tags.get(DIGEST) == INCOMPLETE or stored.record.reported_by
            partly = partly or bool(record.metrics)
            if partly or stored.record.study != record.study:
                self.index.forget(stored)
                return self.store.write(record, tags)
            self.store.update(stored, record, tags)
        return stored.id

    def _publish(self, run_id: str, where: str, tags: dict[str, str], known: str = "") -> bool:
        """Sends a run that has a journal, unless nothing has changed since it ended.

        Returns False for one that died before it had written down that it began.

        Args:
            run_id: The run.
            where: Its directory.
            tags: Tags of what the journal does not say.
            known: Its stamp, which holds if the run has ended by itself: without a new session nothing
                is written to it. One that was killed or lost may turn out to be alive.
        """
        stored = self.index.get(run_id)
        ended = stored is not None and stored.status in (FINISHED, FAILED)
        stamp = known if known and ended else file_stamps.stamp_of(where)
        if not file_stamps.has_journal(stamp):
            return False
        if stored is not None and stored.deleted:
            self.report.deleted += 1
            return True
        if stored is None or DIGEST in stored.tags:
            if last_session(Path(where)) is None:
                return False
            if stored is not None:  # from a record; here is the journal itself
                self.index.forget(stored)
            stored = None
        if stored is not None:
            tags = {n: still_hidden(v, stored.tags.get(n, "")) for n, v in tags.items()}
        if stored is not None and stored.status != RUNNING:
            # Earlier versions told no project: that alone is no reason to send a run again.
            missing = {PROJECT: tags.get(PROJECT, "")}
            same = all(
                stored.tags.get(name, missing.get(name, "")) == value
                for name, value in tags.items()
            )
            told = stored.tags.get(STAMP, "")
            if (same and told == stamp) or file_stamps.is_older(stamp, told):
                return True
        fresh = stored is None and status_of(Path(where)).status != RUNNING
        published = self._send_journal(Path(where), tags | ({STAMP: stamp} if fresh else {}), fresh)
        if not published.mlflow_run_id:
            self.report.deleted += 1
            return True
        final = published.status.status
        if final != RUNNING and not fresh:
            self.store.tag(published.mlflow_run_id, {STAMP: stamp})
        operation = tags.get("operation", "")
        if stored is None or published.points or stored.status != final:
            self._told(run_id, operation, final)
        return True

    def _send_journal(self, directory: Path, tags: dict[str, str], fresh: bool) -> Published:
        """Publishes a run; one that has ended and is new in one step."""
        if fresh:
            with suppress(RunExists):
                return publish(directory, self.store.uri, tags, client=self.store.new_run_client())
        return publish(directory, self.store.uri, tags)

    def _told(self, run_id: str, operation: str, status: str) -> None:
        self.report.sent += 1
        self.say(f"{run_id[:8]}  {operation}  {status}")

    def _study(self, operation: str, facts: dict[str, Any], run: GuildRun) -> str:
        if told := str(facts.get("study") or ""):
            return told
        if run.where and not self._is_own(run):
            return self.home.name(run)
        return self._study_of(operation) or "unassigned"

    def _is_own(self, run: GuildRun) -> bool:
        return self._copied or self.home.is_own(run)

    def _tag_of(self, run: GuildRun) -> str:
        return self.project.name if self._copied else self.home.tag(run)

    def _objective(self, run: GuildRun) -> Objective | None:
        """The operation's objective; of a trial whose operation declares none, that of its search."""
        declared = self.operations.get(run.operation) if self._is_own(run) else None
        if declared is not None and declared.objective is not None:
            return declared.objective
        told = run.objective or {}
        if isinstance(name := told.get("name"), str):
            return Objective(name, "min" if told.get("goal") == "min" else "max")
        return self.project.objective if self._is_own(run) else None

    def _machine(self, run: GuildRun) -> str:
        from runcatalog.record.provenance.environment import machine_name

        host = str(run.attr("host") or "")
        return machine_name(self.project.root, host) if host else ""


_SUMMARY = 4  # scalars that stand for the result of a run without an objective


def _with_scalars(
    record: RunRecord, points: dict[str, list[Point]], objective: Objective | None
) -> RunRecord:
    """The record with Guild's scalars, and the value of its objective if it has ended well."""
    result = dict(record.result or {})
    name = scalars.find(objective.scalar, list(points)) if objective is not None else None
    if objective is not None and name is not None and record.status == FINISHED:
        at, value = scalars.chosen(points[name], objective.value)
        told: dict[str, Any] = {
            "name": name,
            "value": value,
            "kind": "mean",
            "goal": objective.goal,
        }
        if at:
            told |= {"at": at, "axis": "step"}
        result["objective"] = told
    elif points and record.status == FINISHED:
        # Counters of the machine that Guild's plugins keep say nothing of the outcome.
        names = [each for each in points if not each.startswith("sys/")][:_SUMMARY]
        values = (f"{each} {markdown.number(points[each][-1][1])}" for each in names)
        if shown := ", ".join(values):
            result["summary"] = shown
    return replace(record, result=result or None).with_points(points)


def _facts(run: GuildRun) -> dict[str, Any]:
    return journal.read_json(run.directory / "journal" / "run.json") or {}


def _still_hidden(record: RunRecord, before: RunRecord) -> RunRecord:
    """The record with what was hidden in it when it was sent hidden still."""
    return replace(
        record,
        label=still_hidden(record.label, before.label),
        reason=still_hidden(record.reason, before.reason),
        flags={
            name: still_hidden(value, str(before.flags.get(name, "")))
            if isinstance(value, str)
            else value
            for name, value in record.flags.items()
        },
    )


def _searched(members: list[GuildRun]) -> dict[str, Any]:
    """The metric that a search looked at, and where it looked, as its first trial's note says."""
    objective = next((m.objective for m in members if m.objective), None)
    space = next((m.space for m in members if m.space), None)
    told = {"optimised": objective, "space": space}
    return {name: value for name, value in told.items() if value}


def _importance(batch: Batch, stored: StoredRun | None) -> dict[str, Any]:
    """The importance of a search's parameters; of a search that did not compute it, what MLflow has from a record."""
    found = batch.run.importance if batch.run else None
    if found is None and stored is not None:
        found = (stored.record.result or {}).get("importance")
    return {"importance": found} if found else {}
