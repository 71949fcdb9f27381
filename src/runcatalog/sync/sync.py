"""Send Guild's runs and journals to MLflow if they are missing there or have changed; can be repeated.

For a run that records nothing itself, the scalars captured by Guild become metrics, and its operation's declaration
gives the objective.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runcatalog.guild import file_stamps, scalars
from runcatalog.guild import runs as guild_runs
from runcatalog.guild.runs import Batch, Cache, GuildRun
from runcatalog.model import record_files
from runcatalog.model.declarations import GUILD_FILE
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import with_marks
from runcatalog.model.project import Objective, Project
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RUNNING, Point, RunRecord
from runcatalog.record import journal
from runcatalog.record.delivery.mlflow_client import MlflowError, MlflowInternalError
from runcatalog.record.delivery.publish import PATIENCE, Published, RunIsBusy, publish
from runcatalog.record.errors import UserError
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import locked, read_json
from runcatalog.record.lifecycle.signals import GONE
from runcatalog.record.lifecycle.status import last_session, status_of
from runcatalog.record.output.console import last_lines, output_path
from runcatalog.record.provenance.redact import still_hidden
from runcatalog.record.untrusted import inside
from runcatalog.store.client import BATCH_KEY, DIGEST, INCOMPLETE, Addition, Curves, Store
from runcatalog.store.run_index import RunIndex
from runcatalog.store.run_rows import StoredRun, digest, mark_tags, params_of
from runcatalog.store.sqlite_writer import RunExists
from runcatalog.sync.ownership import PROJECT, GuildHome, own_ids
from runcatalog.text import markdown

SCALARS = "catalog.scalars"  # tag: digest of the inputs of a row with Guild's scalars
STAMP = "catalog.stamp"  # tag: sizes and times of the files that were sent, once a run has ended


@dataclass
class Report:
    """Counts and problems of a sync.

    Attributes:
        runs: Number of runs and batches that were checked.
        sent: Number of those that were new or had changed.
        others: Number of runs of other projects, which were left out.
        deleted: Number of runs that were deleted in MLflow, and so not sent again.
        hints: A line per operation whose runs have finished without a value of its objective.
        problems: A line per run that could not be sent.
    """

    runs: int = 0
    sent: int = 0
    others: int = 0
    deleted: int = 0
    hints: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@contextmanager
def project_lock(project: Project) -> Iterator[None]:
    """Hold the lock of commands that change the project's MLflow.

    Raises:
        CatalogError: Another command holds the lock for ten minutes, or the folder cannot be written.
    """
    folder = project.root / ".cache"
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder / "catalog.lock", timeout=600):
            yield
    except TimeoutError:
        raise CatalogError("another catalog command has been running for ten minutes") from None
    except PermissionError as error:
        raise CatalogError(f"cannot write {error.filename}: {error.strerror}") from None


class Sync:
    """Pass over all runs that sends what MLflow lacks.

    Args:
        project: The project.
        store: Its MLflow.
        report_line: Called with a line per sent run.
    """

    def __init__(self, project: Project, store: Store, report_line: Callable[[str], None]) -> None:
        self.project = project
        self.store = store
        self.report_line = report_line
        self.report = Report()
        self.operations = project.operations()
        # Cached, since every call reads the studies' declarations.
        self._operation_of = functools.cache(project.operation_of_script)
        self._study_of = functools.cache(project.study_of)
        self._studies = functools.cache(project.studies)
        self._paths = functools.cache(lambda: record_files.by_digits(project.records))
        self.index = RunIndex(store)
        self.home = GuildHome(project, None)
        self._copied = False  # whether the caller names the runs; they then belong to the project
        self._busy: list[tuple[str, Callable[[], object]]] = []  # runs that other processes send
        self._patience = 0.0  # s to wait for such a process

    def run(self, home: Path | None, *, everything: bool = False) -> Report:
        """Send the new and changed runs of a Guild home and of the project's runs/ folder.

        Args:
            home: The Guild home; None without one.
            everything: Whether to send runs that were started from other projects too.
        """
        self.index.remove_duplicates()
        self.home = GuildHome(self.project, home, own_ids(self.project, self.store.uri, self.index))
        cache = Cache(self.project.root / ".cache" / "guild_runs.json")
        runs = guild_runs.read(home, cache)
        selected = runs if everything else [run for run in runs if self.home.is_own(run)]
        self.report.others = len(runs) - len(selected)
        self._send_all(selected)
        self._send_removed(home, {run.id for run in runs}, everything)
        for directory in sorted((self.project.root / "runs").glob("*")):
            if (directory / "journal" / "run.json").is_file():
                self._send_plain(directory)
        self._send_busy()
        cache.keep(runs)
        return self._tidied()

    def send_copied(self, directories: Sequence[Path]) -> Report:
        """Send run directories copied from another machine; Guild's runs with their batches."""
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
                    runs.setdefault(run.id, run)  # a copy may contain a batch's trials twice
            else:
                self._send_plain(directory)
        self._send_all(list(runs.values()))
        self._send_busy()
        return self._tidied()

    def _send_all(self, runs: Sequence[GuildRun]) -> None:
        by_id = {run.id: run for run in runs}
        batch_of: dict[str, tuple[str, str]] = {}
        for batch in guild_runs.batches(runs, self.operations):
            members = [by_id[trial] for trial in batch.trials]
            batch_id = self._batch_id(batch)
            self.report.runs += 1
            with self._problems(batch_id):
                parent = self._send_batch(batch_id, batch, members)
                batch_of |= dict.fromkeys(batch.trials, (batch_id, parent))
        for run in runs:
            if not run.proto_operation:
                batch_ids = batch_of.get(run.id) or self._known_batch(run.id)
                self._try(run.id, run.where, functools.partial(self._send_run, run, *batch_ids))

    def _send_removed(self, home: Path | None, present: set[str], everything: bool) -> None:
        """Send the end of runs that are still running in MLflow but were deleted in Guild."""
        for stored in list(self.index):  # from which a row that is replaced is taken out
            if stored.status != RUNNING or stored.deleted or stored.run in present or home is None:
                continue
            run = GuildRun(stored.run, str(home / "trash" / "runs" / stored.run))
            selected = everything or self.home.is_own(run)
            if selected and file_stamps.has_journal(file_stamps.stamp_of(run.where)):
                batch = self._known_batch(run.id)
                self._try(run.id, run.where, functools.partial(self._send_run, run, *batch))

    def _tidied(self) -> Report:
        if self.report.sent or self.index.has_replaced:
            self.index.tidy()
        return self.report

    def _known_batch(self, run_id: str) -> tuple[str, str]:
        """Return the (id, MLflow id) in MLflow of the batch of a trial whose sibling trials were deleted in Guild."""
        known = self.index.live(run_id)
        batch = ""
        # A run from a CSV has a derived batch id.
        if known is not None and known.tags.get("batch") and not known.record.reported_by:
            batch = known.record.batch
        parent = self.index.live(batch) if batch else None
        return batch, parent.id if parent is not None else ""

    def _send_plain(self, directory: Path) -> None:
        """Send a run that was started without Guild."""

        def send() -> None:
            facts = read_json(directory / "journal" / "run.json") or {}
            script, study = str(facts.get("operation") or ""), str(facts.get("study") or "")
            tags = {"operation": self._operation_of(script, study), "batch": ""}
            tags[PROJECT] = self.project.name
            self._publish(str(facts.get("id") or ""), str(directory), tags)

        self._try(directory.name, str(directory), send)

    def _try(self, run_id: str, where: str, send: Callable[[], object]) -> None:
        """Send a run, or note that another process is sending it; one that goes on has its sender."""
        self.report.runs += 1
        with self._problems(run_id):
            try:
                send()
            except RunIsBusy:
                if status_of(Path(where)).status != RUNNING:
                    self._busy.append((run_id, send))

    def _send_busy(self) -> None:
        """Send the ended runs that other processes were sending; wait for all of them as long as for one."""
        end = time.monotonic() + PATIENCE
        for run_id, send in self._busy:
            self._patience = max(0.0, end - time.monotonic())
            with self._problems(run_id):
                send()

    @contextmanager
    def _problems(self, run_id: str) -> Iterator[None]:
        """Collect the error of a run, so that the next runs are sent; raise an error of the server."""
        try:
            yield
        except MlflowError as error:
            of_run = isinstance(error, RunIsBusy) or (
                isinstance(error, MlflowInternalError) and self.store.answers()
            )
            if not of_run:
                raise  # it would be the same for the next run
            self._add_problem(run_id, error)
        except Exception as error:  # a run may be damaged in any way
            self._add_problem(run_id, error)

    def _add_problem(self, run_id: str, error: Exception) -> None:
        line = next(iter(str(error).splitlines()), "")
        if not isinstance(error, UserError | OSError):
            line = f"cannot be read ({type(error).__name__}: {line})"
        self.report.problems.append(f"{run_id[:8]}: {line}")

    def _batch_id(self, batch: Batch) -> str:
        """Return the batch's id, in MLflow if it has one there."""
        stored = self.index.batch(batch.key)
        if stored is not None:
            return stored.run
        for trial in batch.trials:
            known = self.index.get(trial)
            if known is not None and known.record.batch and not known.record.reported_by:
                return known.record.batch
        return batch.id

    def _send_batch(self, batch_id: str, batch: Batch, members: list[GuildRun]) -> str:
        """Send a batch's own row; return its MLflow id."""
        stored = self.index.get(batch_id)
        if stored is not None and stored.deleted:
            self.report.deleted += 1
            return ""
        status, reason = batch.end()
        first = members[0].facts if members else {}
        ends = [
            m.started + int(1000 * (m.wall_seconds or 0)) for m in members if m.started is not None
        ]
        starts = [m.started for m in members if m.started is not None]
        started = min(starts, default=None)
        if batch.run is not None and batch.run.started is not None:
            started = batch.run.started
        wall = batch.run.wall_seconds if batch.run else None
        if wall is None and ends and started is not None and status != RUNNING:
            wall = max(0, max(ends) - started) / 1000
        labels = {m.label for m in members}
        label = batch.run.label if batch.run else ""
        hardware: dict[str, Any] = {
            name: str(first.get(name) or "") for name in ("machine", "gpu", "host_cpu")
        }
        record = RunRecord(
            run=batch_id,
            operation=batch.operation,
            study=self._study(batch_id, batch.operation, first, batch.run or members[0]),
            status=status,
            reason=reason,
            label=label or (labels.pop() if len(labels) == 1 else ""),
            result={"batch": True, "method": batch.method}
            | _search_settings(members)
            | _importance(batch, stored),
            flags=batch.run.shown_flags if batch.run and batch.run.operation != "+" else {},
            started=started,
            wall_seconds=wall,
            **hardware,
        )
        if stored is not None:
            record = self._with_removed(record, stored, batch, max(starts, default=0))
        project = self._project_tag(batch.run or members[0])
        return self._put(record, {BATCH_KEY: batch.key, PROJECT: project})

    def _with_removed(
        self, record: RunRecord, stored: StoredRun, batch: Batch, last_start: int
    ) -> RunRecord:
        """Return the batch's record, with what MLflow has from runs that were deleted in Guild since.

        Args:
            record: The batch as Guild has it.
            stored: The batch in MLflow.
            batch: Its trials.
            last_start: When the last of these began [ms since the epoch].
        """
        before = stored.record
        ended = (before.started or 0) + 1000 * (before.wall_seconds or 0)
        # Guild removes a batch as it finishes: one with a later trial was restarted, and has come to its end.
        was_continued = batch.run is None and before.status != FINISHED and last_start > ended
        complete = batch.run is not None and self.index.trials(before.run) <= set(batch.trials)
        if complete or before.status == RUNNING or before.reported_by or DIGEST not in stored.tags:
            return record
        started = min(filter(None, (before.started, record.started)), default=None)
        ends = [r.started + 1000 * (r.wall_seconds or 0) for r in (before, record) if r.started]
        return replace(
            before if batch.run is None and not was_continued else record,
            study=record.study,  # that of its trials
            # The importance is that of the last end, of more trials.
            result={**(record.result or {}), **(before.result or {}), **_importance(batch, stored)},
            started=started,
            wall_seconds=(max(ends) - started) / 1000 if ends and started else None,
        )

    def _send_run(self, run: GuildRun, batch: str, parent: str) -> None:
        tags = {"operation": run.operation, "batch": batch, "label": run.label}
        tags[PROJECT] = self._project_tag(run)
        if parent:
            tags["mlflow.parentRunId"] = parent
        if run.search:
            tags["search"] = run.search
        if run.parents:
            own = (read_json(run.directory / "journal" / "parents.json") or {}).get("parents", [])
            tags["parents"] = ",".join(dict.fromkeys([*own, *run.parents]))
        if self._publish(run.id, run.where, tags, run.stamp):
            return
        if run.damaged:
            names = ", ".join(run.damaged)
            text = f"{run.where}: Guild's attribute {names} cannot be read: not sent"
            self._add_problem(run.id, UserError(text))
            return
        known = self.index.get(run.id)
        status, reason = run.end()
        if known and not known.deleted and known.record.versions:
            # It is from a journal that was removed since, and had more than Guild has, but perhaps not the end.
            if known.status == RUNNING != status:
                self._count_sent(run.id, run.operation, status)
                self.store.tag(known.id, {"reason": reason})
                ended = int(1000 * (run.wall_seconds or 0)) + (run.started or 0)
                self.store.end(known, status, ended)
            return
        # Scalars are read only after the end of a run, since points cannot be removed from MLflow. Guild writes
        # new files in each session, and what an earlier one computed is not the run's result.
        files = scalars.event_files(run.directory, run.started or 0) if status != RUNNING else []
        if status == KILLED and reason == GONE and not files:
            reason = "process gone before it recorded anything"
        search = tags.pop("search", "")
        record = RunRecord(
            run=run.id,
            operation=run.operation,
            study=self._study(run.id, run.operation, {}, run),
            status=status,
            reason=reason,
            batch=batch,
            label=run.label,
            result={"search": json.loads(search)} if search else None,
            seed=run.flags.get("seed") if isinstance(run.flags.get("seed"), int) else None,
            flags=run.shown_flags,
            machine=self._machine(run),
            commit=run.commit,
            dirty=run.dirty,
            started=run.started,
            wall_seconds=run.wall_seconds,
            parents=tuple(run.parents),
        )
        new = known is None or known.status != status
        unchanged = {name: tags[name] for name in ("mlflow.parentRunId", PROJECT) if name in tags}
        points: dict[str, list[Point]] = {}
        objective = self._objective(run)
        if files:
            # Unchanged files are not read again.
            inputs = f"{digest(record)} {scalars.stamp(files, run.directory)} "
            unchanged[SCALARS] = f"{inputs}{objective}"[:500]
            stored = self.index.live(run.id)
            if _is_sent(stored, status, unchanged):
                return
            if kept := self._kept_result(run, objective):
                unchanged[SCALARS] = f"{inputs}kept"
                tag = stored.tags.get(SCALARS, "") if stored is not None else ""
                if stored is not None and tag.startswith(inputs) and stored.record.result == kept:
                    unchanged[SCALARS] = tag
                if _is_sent(stored, status, unchanged):
                    return
                objective = None
            points = scalars.points(run.directory, files, _name_of(objective, kept))
            record = _with_scalars(record, points, objective)
            record = replace(record, result=kept or record.result)
        if not run.is_kept:  # removed while others were sent: its row stays as it is
            return
        sent = self.report.sent
        mlflow_id = self._put(record, unchanged, points)
        if self.report.sent > sent and status == FINISHED and objective is not None:
            self._add_hint(record, objective, list(points))
        log = output_path(run.directory)
        # The log is sent only once: a later shell may lack the environment variables with the secrets to hide.
        # A row with metrics is replaced by a new one.
        new = new or known is None or known.id != mlflow_id
        if mlflow_id and new and status in (FAILED, KILLED) and inside(run.directory, log):
            tail = run.hide.text(last_lines(log))
            self.store.client.log_text(mlflow_id, f"{tail}\n", "log_tail.txt")

    def _add_hint(self, record: RunRecord, objective: Objective, logged: list[str]) -> None:
        """Note that a run has logged no value of its objective, once per operation."""
        if scalars.find(objective.scalar, logged) is not None:
            return
        if not logged and objective is self.project.objective:
            return  # an operation that computes no numbers, such as one that prepares data
        names = f"it logged {', '.join(logged[:8])}" if logged else "it logged no scalar"
        verb = "minimize" if objective.goal == "min" else "maximize"
        why = f"{names}; declare `objective: {{{verb}: NAME}}` in {GUILD_FILE}"
        if objective.scalar in record.flags:
            why = (
                "it is the name of a flag too, and Guild by default takes no printed scalar with such a name; "
                "rename one of both"
            )
        hint = f"{record.operation} finished but logged no {objective.scalar}, which is its objective: {why}"
        if hint not in self.report.hints:
            self.report.hints.append(hint)

    def _put(self, record: RunRecord, tags: dict[str, str], points: Curves | None = None) -> str:
        """Add or update a run without journal, with all its points; return its MLflow id."""
        tags = {**tags, STAMP: "guild"}
        stored = self.index.get(record.run)
        if stored is None:
            id = self.store.write(record, tags, points)
            self._count_sent(record.run, record.operation, record.status)
            return id
        if stored.deleted:
            self.report.deleted += 1
            return ""
        record = with_marks(_still_hidden(record, stored.record), stored.record)
        new_tags = {**tags, DIGEST: digest(record)}
        changed = any(stored.tags.get(name) != value for name, value in new_tags.items())
        if changed or stored.status != record.status:
            id = stored.id
            # Replaced by a new row: the experiment of a row cannot be changed, nor can its flags and points; rows from
            # a CSV or from an interrupted write are incomplete.
            replace_row = stored.tags.get(DIGEST) == INCOMPLETE or bool(stored.record.reported_by)
            replace_row = replace_row or bool(record.metrics) or bool(stored.last)
            replace_row = replace_row or params_of(record) != params_of(stored.record)
            if replace_row or stored.record.study != record.study:
                addition = Addition(record, tags, replaces=stored, points=points or {})
                ((_, id),) = self.store.write_all([addition])
                self.index.leave_out(stored)
            else:
                self.store.update(stored, record, tags)
            self._count_sent(record.run, record.operation, record.status)
            return id
        return stored.id

    def _publish(self, run_id: str, where: str, tags: dict[str, str], known: str = "") -> bool:
        """Send a run with a journal, unless it has not changed since its end.

        Returns False for a run that died before its journal recorded the start.

        Args:
            run_id: The run.
            where: Its directory.
            tags: Tags with facts that are not in the journal.
            known: Cached stamp. It is valid for a run that finished or failed, whose files change only in a new
                session; a run that seems killed or lost may still be alive.
        """
        stored, replaced = self.index.get(run_id), None
        ended = stored is not None and stored.status in (FINISHED, FAILED)
        stamp = known if known and ended else file_stamps.stamp_of(where)
        if not file_stamps.has_journal(stamp):
            return False
        if stored is not None and stored.deleted:
            self.report.deleted += 1
            return True
        if stored is None or DIGEST in stored.tags:
            if last_session(Path(where)) is None:
                sessions = Path(where) / "journal" / journal.SESSIONS
                if damage := damage_of(sessions):
                    self._add_problem(run_id, UserError(f"{sessions}: {damage.text()}"))
                return False
            if stored is not None:  # imported from a record; the journal has more
                tags = tags | mark_tags(stored.record)
            replaced, stored = stored, None
        if stored is not None:
            tags = {n: still_hidden(v, stored.tags.get(n, "")) for n, v in tags.items()}
        if stored is not None and stored.status != RUNNING:
            # Rows of earlier versions have no project tag; that alone is no reason to send a run again.
            missing = {PROJECT: tags.get(PROJECT, "")}
            same = all(
                stored.tags.get(name, missing.get(name, "")) == value
                for name, value in tags.items()
            )
            sent_stamp = stored.tags.get(STAMP, "")
            unchanged = same and sent_stamp == stamp and not self.index.lacks_points(stored)
            if unchanged or file_stamps.is_older(stamp, sent_stamp):
                return True
        fresh = stored is None and status_of(Path(where)).status != RUNNING
        sent_tags = tags | ({STAMP: stamp} if fresh else {})
        try:
            published = self._send_journal(
                Path(where), sent_tags, fresh, replaced.id if replaced is not None else ""
            )
        except UserError as error:
            # The new row may have been written all the same, as without one of the files.
            if replaced is not None and not isinstance(error, MlflowError):
                RunIndex(self.store).remove_duplicates()
            raise
        if not published.mlflow_run_id:
            self.report.deleted += 1
            return True
        if replaced is not None:  # last: a kill before it leaves both rows, and all marks
            self.index.forget(replaced)
        if published.journal:
            self.report.problems.append(f"{run_id[:8]}: {published.journal}")
        final = published.status.status
        if final != RUNNING and not fresh:
            self.store.tag(published.mlflow_run_id, {STAMP: stamp})
        operation = tags.get("operation", "")
        if stored is None or published.points or stored.status != final:
            self._count_sent(run_id, operation, final)
        return True

    def _send_journal(
        self, directory: Path, tags: dict[str, str], fresh: bool, replaces: str
    ) -> Published:
        """Publish a run; a new one that has ended is written in a single step, without the row that it replaces."""
        send = functools.partial(
            publish, directory, self.store.uri, tags, patience=self._patience, replaces=replaces
        )
        if fresh:
            with suppress(RunExists):
                return send(client=self.store.new_run_client([replaces] if replaces else ()))
        return send(client=self.store.client)

    def _count_sent(self, run_id: str, operation: str, status: str) -> None:
        self.report.sent += 1
        self.report_line(f"{run_id[:8]}  {operation}  {status}")

    def _study(self, run_id: str, operation: str, facts: dict[str, Any], run: GuildRun) -> str:
        if recorded := str(facts.get("study") or ""):
            return recorded
        if run.where and not self._is_own(run):
            return self.home.name(run)
        before = self._before(run_id, operation)
        if before is not None and before.study in self._studies():
            return before.study
        return self._study_of(operation) or "unassigned"

    def _is_own(self, run: GuildRun) -> bool:
        return self._copied or self.home.is_own(run)

    def _project_tag(self, run: GuildRun) -> str:
        return self.project.name if self._copied else self.home.tag(run)

    def _before(self, run_id: str, operation: str) -> RunRecord | None:
        """Return what is recorded of a run whose operation is no longer declared, as after a rename."""
        if operation in self.operations:
            return None
        stored = self.index.live(run_id)
        committed = record_files.committed(run_id, self._paths())
        return committed or (stored.record if stored is not None else None)

    def _kept_result(self, run: GuildRun, objective: Objective | None) -> dict[str, Any] | None:
        """Return the result that a finished run keeps, whatever objective is declared by now; None without one.

        It is that of its record. Without a record it is that in MLflow, if its operation is no longer declared and so
        has no objective.
        """
        if not self._is_own(run):
            return None
        before = record_files.committed(run.id, self._paths())
        if before is None and objective is None:
            before = self._before(run.id, run.operation)
        if before is None or before.reported_by or before.started != run.started:
            return None
        return before.result if before.status == FINISHED else None

    def _objective(self, run: GuildRun) -> Objective | None:
        """Return the objective of a run's operation, else of its search, else of the project."""
        declared = self.operations.get(run.operation) if self._is_own(run) else None
        if declared is not None and declared.objective is not None:
            return declared.objective
        searched = run.objective or {}
        if isinstance(name := searched.get("name"), str):
            return Objective(name, "min" if searched.get("goal") == "min" else "max")
        return self.project.objective if self._is_own(run) else None

    def _machine(self, run: GuildRun) -> str:
        from runcatalog.record.provenance.machine import machine_name

        host = str(run.attr("host") or "")
        return machine_name(self.project.root, host) if host else ""


_SUMMARY = 4  # scalars in the summary of a run without an objective


def _with_scalars(
    record: RunRecord, points: dict[str, list[Point]], objective: Objective | None
) -> RunRecord:
    """Return the record with Guild's scalars, and with the objective's value if the run has finished."""
    result = dict(record.result or {})
    name = scalars.find(objective.scalar, list(points)) if objective is not None else None
    if objective is not None and name is not None and record.status == FINISHED:
        at, value = scalars.chosen(points[name], objective.value)
        entry: dict[str, Any] = {
            "name": name,
            "value": value,
            "kind": "mean",
            "goal": objective.goal,
        }
        if at:
            entry |= {"at": at, "axis": "step"}
        result["objective"] = entry
    elif points and record.status == FINISHED:
        # Counters of the machine, logged by Guild's plugins, are not results.
        names = [name for name in points if not name.startswith("sys/")][:_SUMMARY]
        values = (f"{name} {markdown.number(points[name][-1][1])}" for name in names)
        if shown := ", ".join(values):
            result["summary"] = shown
    return replace(record, result=result or None).with_points(points)


def _is_sent(stored: StoredRun | None, status: str, tags: dict[str, str]) -> bool:
    """Return whether MLflow has a run with a status and tags."""
    if stored is None or stored.status != status:
        return False
    return all(stored.tags.get(name) == value for name, value in tags.items())


def _name_of(objective: Objective | None, result: dict[str, Any] | None) -> str:
    """Return the scalar of an objective, else of that in a result; "" without both."""
    kept = (result or {}).get("objective")
    name = kept.get("name") if isinstance(kept, dict) else ""
    return objective.scalar if objective is not None else str(name or "")


def _still_hidden(record: RunRecord, before: RunRecord) -> RunRecord:
    """Return the record with the secrets hidden that were hidden when it was first sent."""
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


def _search_settings(members: list[GuildRun]) -> dict[str, Any]:
    """Return the optimised metric and the space of a search, as noted in its trials."""
    objective = next((m.objective for m in members if m.objective), None)
    space = next((m.space for m in members if m.space), None)
    settings = {"optimised": objective, "space": space}
    return {name: value for name, value in settings.items() if value}


def _importance(batch: Batch, stored: StoredRun | None) -> dict[str, Any]:
    """Return the importance of a search's parameters, from the run or else from its record in MLflow."""
    importance = batch.run.importance if batch.run else None
    if importance is None and stored is not None:
        importance = (stored.record.result or {}).get("importance")
    return {"importance": importance} if importance else {}
