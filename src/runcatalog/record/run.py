"""A run: start, log, checkpoint and finish."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record import journal
from runcatalog.record.config import (
    REFUSED,
    Config,
    changed_flags,
    check_same_flags,
    flags_of,
    without_effect,
)
from runcatalog.record.digest import weights_digest
from runcatalog.record.errors import NumericalError, OwnershipLost, RunFailed, UserError
from runcatalog.record.evaluation import EvaluationSet, evaluation_set
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import locked, plain, read_json, write_json
from runcatalog.record.journal.lines import Damage, append_line, read_lines, repair
from runcatalog.record.journal.metrics import (
    MetricsFile,
    changes_since,
    checked_step,
    checked_value,
    metrics_digest_of,
    read_points,
)
from runcatalog.record.lifecycle import session, signals, status
from runcatalog.record.lifecycle.crash import CrashReport
from runcatalog.record.lifecycle.ownership import LOCK, LOCK_TIMEOUT
from runcatalog.record.output import messages, outcome
from runcatalog.record.output.console import OutputCopy
from runcatalog.record.output.progress import ProgressLine
from runcatalog.record.provenance import environment, git, patch, redact
from runcatalog.record.training.loop import is_due
from runcatalog.record.training.seeds import Seeds

if TYPE_CHECKING:
    from types import TracebackType

    from runcatalog.record.delivery.tensorboard import EventFile
    from runcatalog.record.training.checkpoint import Checkpoint

HEARTBEAT = 30.0  # s between heartbeats; see status.LOST_AFTER
_START_TIMEOUT = 60.0  # s to wait for another process that starts, saves or ends the run
_BEAT_TIMEOUT = 1.0  # s; a heartbeat may be left out
# Size of a file that is deleted when the disk is full, so that the end can be written
_RESERVE_BYTES = 1 << 17


def start(config: Config, *, study: str = "") -> Run:
    """Start a run, or continue the run in its directory.

    The directory is $RUN_DIR (Guild), else ``config.resume``, else ``runs/<8 hex>`` in the project.
    With ``RECORD=off`` the run has the same interface and records nothing.

    Args:
        config: The script's flags.
        study: Name of the study, which is MLflow's experiment; by default see `environment.default_study`.

    Returns:
        The run, to be used as a context manager; the journal is opened on entering.

    Raises:
        UserError: The directory cannot be written, or contains a run that is still running or was started with other
            flags.
    """
    study = study or environment.default_study(environment.project_root())
    if os.environ.get("RECORD", "").lower() in ("off", "0", "no"):
        return DisabledRun(config, study)
    return Run(config, study)


class Run:
    """A recorded run; see :func:`start`.

    Attributes:
        config: The script's flags.
        study: Name of the study.
        id: 32 hex digits; Guild's run id under Guild.
        directory: The run's directory, with all of its files.
        seeds: The run's random streams.
        resumed: Whether the directory already contained a run.
    """

    _evaluation: EvaluationSet | None = None

    def __init__(self, config: Config, study: str) -> None:
        self.config = config
        self.study = study
        self.seeds = Seeds(config.seed)
        self.directory, self.id = session.locate(config)
        self.resumed = (self.directory / "journal" / "run.json").exists()
        self._journal = self.directory / "journal"
        self._reserve = self._journal / "reserve"
        self._session: session.Session | None = None
        self._started = 0  # of the run, milliseconds since the epoch
        self._progress: dict[str, Any] = {}
        self._progress_line = ProgressLine()
        self._written_progress = 0.0
        self._weights, self._finished = "", False
        self._signals = signals.Signals()
        self._stop_beating = threading.Event()
        self._output: OutputCopy | None = None
        self._hide = redact.Redactor.for_run(self.directory)
        self._crash: CrashReport | None = None
        self._metrics: MetricsFile | None = None
        self._tfevents: EventFile | None = None
        self._sender: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Run:
        try:
            self._signals.install()
            self._open()
        except BaseException as error:
            if self._session is None:
                self._signals.restore()
            else:
                with contextlib.suppress(OSError):
                    self.__exit__(type(error), error, error.__traceback__)
            if not isinstance(error, OSError):
                raise
            where = getattr(error, "filename", None) or self.directory
            raise UserError(f"cannot record in {where}: {error.strerror or error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is None or os.getpid() != self._session.pid:
            return  # a forked worker, which must not end its parent's run
        self._signals.ignore()
        try:
            if error is None and not self._finished:
                self._end(signals.End(signals.FAILED, signals.NO_RESULT), None)
            elif error is not None:
                self._end_with(error)
        finally:
            self._close(failed=error is not None)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append metrics to the journal, without waiting for MLflow; any thread may call it.

        The first value of a (name, step) counts: values that a resumed run recomputes are not written. The first time
        that a run which was not resumed logs another value for one, an event says so. Another one says that metrics
        came after :meth:`finish`, whose digest is of all metrics: they are not written.

        Args:
            metrics: Values by name (letters, digits, ``_ - . / :`` and spaces); names that begin with ``time/`` are for
                wall-clock metrics, which digests leave out.
            step: Integer from 0 to 2**63 - 1; the update in most studies.

        Raises:
            ValueError: MLflow would reject a name or the step, or a value is no number; nothing is written.
            RunFailed: The journal cannot be written, or this process is a forked worker.
            OwnershipLost: Another process has continued the run, or its directory was deleted.
        """
        now = self._clock.now()
        assert self._metrics is not None
        assert self._tfevents is not None
        with self._signals.deferred():
            if self._finished:
                names = ", ".join(map(str, metrics))
                self.event(f"step {step}: {names} came after run.finish and is not recorded")
                return
            values = {
                self._hide.name(name): checked_value(name, value) for name, value in metrics.items()
            }
            different = self._metrics.mismatches
            try:
                self._check_ownership()
                new = self._metrics.append(now, step, values)
            except OSError as error:
                raise RunFailed(signals.cannot_write("journal/metrics.jsonl", error)) from error
            if new:
                self._tfevents.append(now, int(step), new)
        if not different and self._metrics.mismatches and not self.resumed:
            names = ", ".join(sorted(self._metrics.differing))
            self.event(f"step {step}: another value than before of {names}; the first one counts")

    def progress(self, done: float, total: float, unit: str) -> None:
        """Report the progress: in ``journal/progress.json``, and in the last line of a terminal or a log.

        Args:
            done: Completed units.
            total: All units.
            unit: Name of a unit, for example "update".
        """
        self._progress = {"done": done, "total": total, "unit": unit}
        self._progress_line.show(done, total, unit)
        if time.monotonic() - self._written_progress > 5.0 or done >= total:
            # Errors of a full disk are ignored here; the next write of data reports them.
            with self._signals.deferred(), contextlib.suppress(OSError):
                self._beat()
                assert self._tfevents is not None
                self._tfevents.flush()

    def event(self, text: str) -> None:
        """Print a message and write it to the journal; on a full disk it is lost, and the run continues."""
        line = {"t": self._clock.now(), "text": self._hide.text(text)}
        _print(text)
        with self._signals.deferred(), contextlib.suppress(OSError), self._owned():
            append_line(self._journal / journal.EVENTS, line)

    def checkpoint_due(self, update: int, interval: int, total: int = 0) -> bool:
        """Return whether to write a checkpoint after an update: periodically, or because SIGUSR1 has arrived.

        Args:
            update, interval, total: See :func:`runcatalog.record.is_due`; with interval 0 none is ever due.
        """
        self._signals.can_checkpoint = interval > 0
        return is_due(update, interval, total) or (interval > 0 and self._signals.warned)

    def checkpoint(
        self,
        step: int,
        tensors: Mapping[str, Any],
        state: Mapping[str, Any],
        keep: int | None = 3,
    ) -> Path:
        """Write a checkpoint atomically, and sync the points before it, so that both survive a kill.

        A run that was warned by SIGUSR1 ends after it.

        Args:
            step: Step to continue from.
            tensors: Weights by name.
            state: Further state that a bit-equal continuation needs; see
                :func:`runcatalog.record.training.checkpoint.save_checkpoint`.
            keep: Number of newest checkpoints to keep; None keeps all.

        Returns:
            The checkpoint's folder.

        Raises:
            RunFailed: The disk is full; older checkpoints are unchanged.
            OwnershipLost: Another process has continued the run, or its directory was deleted.
            Killed: The run was warned.
        """
        from runcatalog.record.training.checkpoint import save_checkpoint

        folder = self.directory / "checkpoints"
        with self._signals.deferred():
            self._check_ownership()
            assert self._metrics is not None
            assert self._tfevents is not None
            try:
                self._metrics.sync()
                self._tfevents.flush()
                saved = save_checkpoint(
                    folder,
                    step,
                    tensors,
                    state,
                    keep=keep,
                    run_id=self.id,
                    metrics=self._metrics.written,
                    commit=self._owned,
                )
            except OwnershipLost:
                raise
            except Exception as error:
                self._check_ownership()  # a later session deletes unfinished checkpoints
                if signals.is_disk_full(error):
                    raise RunFailed(signals.cannot_write(f"checkpoint {step}", error)) from error
                raise
        self._signals.end_if_warned()
        return saved

    def restore(self) -> Checkpoint | None:
        """Return the newest checkpoint of a resumed run that can be loaded, or None; newer ones are put aside.

        Raises:
            TorchMissing: Only torch can load the newest checkpoint.
            OwnershipLost: Another process has continued the run, or its directory was deleted.
        """
        if not self.resumed:
            return None
        from runcatalog.record.training.checkpoint import newest_checkpoint

        return newest_checkpoint(self.directory / "checkpoints", self._skip_checkpoint)

    def _skip_checkpoint(self, path: Path, error: UserError) -> None:
        from runcatalog.record.training.checkpoint import TorchMissing, put_aside

        if isinstance(error, TorchMissing):
            raise error
        with self._signals.deferred(), self._owned():
            aside = put_aside(path)
        self.event(f"{error}; not used, and now named {aside.name}")

    def add_parent(self, run_id: str) -> None:
        """Record the run whose checkpoint or result this run starts from (``Checkpoint.run_id``)."""
        path = self._journal / "parents.json"
        with self._signals.deferred(), self._owned():
            parents = (read_json(path) or {}).get("parents", [])
            if run_id and run_id not in parents:
                write_json(path, {"parents": [*parents, run_id]})

    def artifact(self, name: str | os.PathLike[str]) -> Path:
        """Return the path for a file that is also sent to MLflow, such as a figure or video.

        Args:
            name: Name in ``artifacts/``, possibly with folders; or the absolute path of an existing file, which is
                copied there.

        Raises:
            ValueError: The name leads out of ``artifacts/``, from where alone files are sent.
        """
        if self._session is not None:
            self._session.ownership.check()  # a forked worker may write files
        folder = self.directory / "artifacts"
        path = Path(name)
        target = folder / self._hide.name(path.name if path.is_absolute() else str(path))
        if path.is_absolute() and path.is_relative_to(folder):
            target = path
        if not Path(os.path.normpath(target)).is_relative_to(os.path.normpath(folder)):
            raise ValueError(f"artifact {str(name)!r}: use a name in artifacts/, without ..")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_absolute() and path.exists() and path != target:
            shutil.copy2(path, target)
        return target

    def digest_weights(self, tensors: Mapping[str, Any]) -> str:
        """Return the digest of the final weights, and store it for the result."""
        self._weights = weights_digest(tensors)
        return self._weights

    def declare_evaluation(
        self,
        split: str,
        name: str,
        *,
        contents: Iterable[Any] | None = None,
        chosen: str = "",
    ) -> None:
        """Declare the set on which the objective is computed, which the result then holds as ``evaluation``.

        Args:
            split: ``training``, ``validation`` or ``test``.
            name: What the set contains, such as "levels of seeds 0 to 999".
            contents: The set's items, such as the rows of an array: equal sets have equal digests. Needed for a test
                set, so that the catalog can count how often it was opened.
            chosen: What was chosen by the numbers on this very set, such as "best of 5 checkpoints".

        Raises:
            ValueError: The split is unknown, the name is empty, or a test set has no contents.
        """
        self._evaluation = evaluation_set(split, name, contents, chosen)

    def _with_evaluation(self, result: Mapping[str, Any]) -> dict[str, Any]:
        declared = {"evaluation": self._evaluation.to_json()} if self._evaluation else {}
        return {**result, **declared}

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``result.json`` and end the run as FINISHED.

        Args:
            result: ``objective`` (name, value, kind, count, goal, at, axis), and optionally ``summary``,
                ``metrics``, ``env_steps``, ``task``, ``task_id``, ``variant``, ``table`` (columns and rows, for the
                template call ``details``), and ``outcomes`` (a list of :func:`level_outcomes`). The objective's value
                is also logged as the metric ``objective``, which a search optimises if the operation declares
                ``objective: {maximize: objective}``. It has at most 32 MiB as JSON: more belongs into an artifact.

        Returns:
            The content of ``result.json``, with status, digests and times.

        Raises:
            RunFailed: Points of the run are no longer in its journal.
            OwnershipLost: Another process has continued the run, or its directory was deleted.
        """
        self._check_ownership()
        assert self._metrics is not None
        objective = result.get("objective") or {}
        if objective.get("value") is not None and not self._finished:
            self.log({"objective": objective["value"]}, self._step_of(objective))
        if not self._weights:
            from runcatalog.record.training.checkpoint import newest_checkpoint

            last = newest_checkpoint(self.directory / "checkpoints")
            self._weights = weights_digest(last.tensors) if last else ""
        with self._signals.deferred():
            path = self._metrics.path
            self._check_ownership()
            if lost := changes_since(path, self._metrics.written):
                raise RunFailed(f"journal/{path.name} was damaged during the run: {lost}")
            written = self._end(signals.End(signals.FINISHED, ""), self._with_evaluation(result))
            self._finished = True
        return written

    def _step_of(self, objective: Mapping[str, Any]) -> int:
        """Return the step of the objective; the last one if `at` is no step, such as a fraction of an epoch."""
        assert self._metrics is not None
        try:
            return checked_step(objective.get("at"))
        except ValueError:
            return self._metrics.last_step

    def _open(self) -> None:
        self._journal.mkdir(parents=True, exist_ok=True)
        metrics = self._journal / journal.METRICS
        try:
            lock = locked(self._journal / LOCK, _START_TIMEOUT)
            with lock:
                before = status.last_session(self.directory)
                # A submitted run has a directory of its own: what still runs is an attempt that its submitter has lost.
                if (
                    before
                    and not environment.is_submitted()
                    and status.checked_status(self.directory).status == signals.RUNNING
                ):
                    raise UserError(
                        f"{self.directory}: this run is still running (process {before['pid']} on "
                        f"{before.get('host', 'an unknown host')}); stop it first"
                    )
                static = self._static_facts()
                changed = self._changed_flags(static["flags"])
                self.id, self._started = static["id"], static["started"]
                if before:
                    self._refuse_damaged_metrics(metrics)
                repair(metrics)
                # From this line on an earlier session that is still alive stops; then its metrics file is copied.
                with self._signals.deferred():
                    self._session = session.start_session(self.directory, changed)
                self._metrics = MetricsFile(metrics)
        except TimeoutError:
            raise UserError(
                f"{self._journal / LOCK}: locked by a process that starts, saves or ends this run; it may be "
                "suspended: continue or kill it"
            ) from None
        self._begin()
        self._report_damage()
        project = environment.project_root()
        if not static.get("commit") and (refused := git.refused_repository(project)):
            self.event(
                "no commit is recorded, since git refuses the repository of another user; to allow it: "
                f"git config --global --add safe.directory {shlex.quote(refused)}"
            )

    def _refuse_damaged_metrics(self, metrics: Path) -> None:
        from runcatalog.record.training.checkpoint import refuse_damaged_metrics

        hint = "start a new run"
        if hasattr(self.config, "pretrained"):
            hint += " from the checkpoint with --pretrained"
        refuse_damaged_metrics(self.directory / "checkpoints", metrics, hint)

    def _report_damage(self) -> None:
        """Report damaged lines of earlier sessions, once each."""
        path = self._journal / journal.EVENTS
        known = {_without_total(str(line.get("text"))) for line, _ in read_lines(path)}
        for name, found in self._damage().items():
            text = f"journal/{name}: {found.text()}"
            if name == journal.METRICS:
                text += "; what was computed after the last checkpoint is computed again"
            if found and _without_total(text) not in known:
                self.event(text)

    def _damage(self) -> dict[str, Damage]:
        files = {
            name: damage_of(self._journal / name) for name in (journal.SESSIONS, journal.EVENTS)
        }
        metrics, path = self._metrics, self._journal / journal.METRICS
        is_known = metrics is not None and not changes_since(path, metrics.written)
        files[journal.METRICS] = metrics.damage if metrics and is_known else damage_of(path)
        return files

    def _begin(self) -> None:
        from runcatalog.record.delivery.sender import start_sender
        from runcatalog.record.delivery.tensorboard import EventFile

        if os.environ.get("GUILD_OP"):
            signals.die_with_parent()
        for name in ("artifacts", "checkpoints"):
            (self.directory / name).mkdir(exist_ok=True)
        (self.directory / "artifacts" / "error.txt").unlink(missing_ok=True)
        outcome.write_guild_result(self.directory, "")
        (self.directory / ".guild" / "attrs" / REFUSED).unlink(missing_ok=True)
        outcome.hide_label(self.directory, self._hide.text)
        redact.keep_private(self.directory)
        # A file system may store zeros without using space
        self._reserve.write_bytes(os.urandom(_RESERVE_BYTES))
        self._crash = CrashReport(self.directory)
        copy = None if (self.directory / ".guild").is_dir() else self._journal / "output.txt"
        self._output = OutputCopy(copy, self._hide.known)
        self._output.before_write = self._progress_line.clear
        self._output.start()
        for stale in (self.directory / "checkpoints").glob(".writing-*"):
            shutil.rmtree(stale, ignore_errors=True)
        self._tfevents = EventFile(self.directory, read_points(self._journal / journal.METRICS))
        self._beat()
        self._sender = start_sender(self.directory, environment.project_root())
        self._print_start()
        threading.Thread(target=self._heartbeat, name="heartbeat", daemon=True).start()

    def _print_start(self) -> None:
        from runcatalog.record.delivery import mlflow_client

        uri = problem = ""
        if self._sender:
            try:
                uri = mlflow_client.shown(mlflow_client.tracking_uri())
            except UserError as error:  # the training needs no MLflow
                problem = f"\n{messages.not_sent(str(error))}"
        if given := environment.submitted():
            uri = given.mlflow
        uri = uri.removeprefix(f"sqlite:///{environment.project_root()}/")
        operation = os.environ.get("GUILD_OP") or environment.script(self.config)
        notes = "".join(f"\n  {line}" for line in without_effect(self.config))
        _print(messages.started(self.id, operation, self._hide.text(uri)) + problem + notes)

    def _print_end(self, end: signals.End, written: Mapping[str, Any]) -> None:
        from runcatalog.record.delivery import sender

        self._progress_line.close()
        if end.status == signals.FINISHED:
            text = messages.finished(self.id, written, self.directory)
        else:
            text = messages.interrupted(self.id, end, self._progress, self.directory)
        if self._sender and (problem := sender.problem(self.directory, self._clock.started / 1000)):
            text += f"\n{messages.not_sent(problem)}"
        _print(text)

    def _static_facts(self) -> dict[str, Any]:
        path = self._journal / "run.json"
        stored = read_json(path)
        if stored is not None:
            for name, kind in (("id", str), ("flags", dict), ("started", int)):
                if not isinstance(stored.get(name), kind):
                    raise UserError(
                        f"{path}: {name!r} is missing or invalid; it cannot be continued"
                    )
            now = environment.script(self.config)
            if (first := stored.get("script", now)) != now:  # older runs did not record it
                raise UserError(f"--resume: a run of {first}.py; {now}.py cannot continue it")
            before, given = stored["flags"], flags_of(self.config)
            # Hidden values cannot be compared in full; they are taken for equal if the visible parts match.
            same = {n for n in before.keys() & given if redact.is_hidden(given[n], before[n])}
            check_same_flags(self.config, before | {name: given[name] for name in same})
            return stored
        if path.exists():
            raise UserError(f"{path}: damaged; it cannot be continued")
        project = environment.project_root()
        facts = environment.run_facts(self.config, self.study, self.id, project)
        static = self._hide.value(facts)  # a later sender of the run may not know the secrets
        submitted = environment.submitted()
        if submitted and submitted.patch.exists():
            self.artifact(submitted.patch)
        elif static["dirty"] and not submitted:
            patch.write(project, static["commit"], self.artifact(patch.NAME))
        write_json(path, static)
        return static

    def _changed_flags(self, first: dict[str, Any]) -> dict[str, Any]:
        """Return the flags that differ from those of the run's first start, without secrets."""
        changed = changed_flags(self.config, first)
        same = {n for n in changed if redact.is_hidden(changed[n], first.get(n))}
        return self._hide.value({n: v for n, v in changed.items() if n not in same})

    @property
    def _begun(self) -> session.Session:
        """The session of this process.

        Raises:
            RuntimeError: The run was not entered.
        """
        if self._session is None:
            raise RuntimeError("the run has not begun: `with record.start(config) as run:`")
        return self._session

    @property
    def _clock(self) -> session.Clock:
        return self._begun.clock

    def _check_ownership(self) -> None:
        if os.getpid() != self._begun.pid:  # its lines would have the numbers of the run's own
            raise RunFailed(
                "a forked worker cannot record metrics, checkpoints or results: return them to the run's process"
            )
        self._begun.ownership.check()

    def _owned(self, timeout: float = LOCK_TIMEOUT) -> contextlib.AbstractContextManager[None]:
        return self._begun.ownership.locked(timeout)

    def _end_with(self, error: BaseException) -> None:
        end, hide = signals.end_from_exception(error), self._hide.text
        if self._finished and end.status == signals.KILLED:
            return  # the result was complete before the signal
        if self._finished and isinstance(error, SystemExit) and not error.code:
            return
        if isinstance(error, OwnershipLost):
            return
        late = "after the end of the training: " if self._finished else ""
        reason = hide(f"{late}{end.reason}")
        if given := environment.submitted():  # where its files are in the end
            reason = reason.replace(str(self.directory), given.directory)
        end = signals.End(end.status, reason)
        extra: dict[str, Any] = {}
        if isinstance(error, NumericalError):
            extra["failed_at"] = {"update": error.update, "tensor": error.tensor_name}
        with self._owned():
            if signals.is_disk_full(error):
                self._reserve.unlink(missing_ok=True)
            if end.status == signals.FAILED:
                text = hide("".join(traceback.format_exception(error)))
                with contextlib.suppress(OSError):
                    path = self.directory / "artifacts" / "error.txt"
                    path.write_text(text, encoding="utf-8", errors="replace")
            self._write_end(end, None, extra)

    def _end(self, end: signals.End, result: dict[str, Any] | None) -> dict[str, Any]:
        with self._owned():
            return self._write_end(end, result)

    def _write_end(
        self, end: signals.End, result: dict[str, Any] | None, extra: Mapping[str, Any] = {}
    ) -> dict[str, Any]:
        try:
            if self._metrics is not None:
                self._metrics.sync()
        except OSError:
            if end.status == signals.FINISHED:
                raise
        if lost := sum(found.lost for found in self._damage().values()):
            extra = {"damaged_lines": lost, **extra}
        metrics = metrics_digest_of(self.directory)
        written = {
            "status": end.status,
            "reason": end.reason,
            "result": result,
            "digest": {"weights": self._weights, "metrics": metrics},
            "session": self._begun.number,
            "started": self._started,
            "ended": self._clock.now(),
            "wall_seconds": round(self._begun.earlier_seconds + self._clock.seconds(), 3),
            "env_steps": (result or {}).get("env_steps"),
            "resume_mismatch": self._metrics.mismatches if self._metrics else 0,
            "progress": self._progress,
            **extra,
        }
        content = self._hide.value(plain(written))
        path = self.directory / "result.json"
        before = read_json(path) or {}
        same = all(before.get(name) == content[name] for name in ("status", "digest", "result"))
        if same and end.status == signals.FINISHED and "wall_seconds" in before:
            # A finished run was started again and had nothing left to do: its duration is that of the work.
            written["wall_seconds"] = content["wall_seconds"] = before["wall_seconds"]
        try:
            write_json(path, content)
        except OSError as error:
            if not signals.is_disk_full(error):
                raise
            self._reserve.unlink(missing_ok=True)
            write_json(path, content)
        self._hide_in_artifacts()
        line = outcome.summary_line(
            content["result"], content["reason"], killed=end.status == signals.KILLED
        )
        outcome.write_guild_result(self.directory, line)
        self._print_end(end, content)
        return written

    def _hide_in_artifacts(self) -> None:
        """Remove secrets from the text files that are published."""
        folder = self.directory / "artifacts"
        # On a full disk the sender hides the secrets that it knows
        with contextlib.suppress(OSError):
            for path in folder.rglob("*"):
                regular = path.is_file() and not path.is_symlink() and path != folder / patch.NAME
                if regular and (clean := self._hide.file(path, known=True)) is not None:
                    path.write_bytes(clean)

    def _close(self, failed: bool = False) -> None:
        self._stop_beating.set()
        self._progress_line.close()
        # Secrets must also be removed from the traceback that Python prints last, which Guild stores.
        if self._output and not (failed and (self.directory / ".guild").is_dir()):
            self._output.close()
        if self._session is None or not self._session.ownership.is_lost:
            self._reserve.unlink(missing_ok=True)
        for opened in (self._crash, self._tfevents, self._metrics):
            if opened is not None:
                opened.close()
        if self._sender and self._sender.stdin:
            self._sender.stdin.close()  # signals the end to the sender; no need to wait for it
        self._signals.restore()

    def _beat(self) -> None:
        self._written_progress = time.monotonic()
        # Other machines compare "t" with their clocks; "seconds" is right even if this machine's clock is changed.
        beat = {"t": int(time.time() * 1000), "seconds": round(self._clock.seconds(), 3)}
        beat |= {"session": self._begun.number, **self._progress}
        with self._owned(_BEAT_TIMEOUT):
            write_json(self._journal / "progress.json", plain(beat), durable=False)

    def _heartbeat(self) -> None:
        while not self._stop_beating.wait(HEARTBEAT):
            try:
                self._beat()
            except OwnershipLost:  # the training finds it out at its next write
                return
            except OSError:  # a full disk; space may become free
                continue


def _print(text: str) -> None:
    """Print a text; characters that the output's encoding lacks become question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError, ValueError):  # the output's reader has gone, or it is closed
        print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _without_total(text: str) -> str:
    """Return a text about damage without the number of all lines, which grows."""
    return re.sub(r" of [\d,]+ lines?", "", text)


class DisabledRun(Run):
    """The run of ``RECORD=off``: its directory is temporary, and nothing is recorded."""

    def __init__(self, config: Config, study: str) -> None:
        self.config, self.study, self.seeds = config, study, Seeds(config.seed)
        self.id, self.resumed, self._weights = uuid.uuid4().hex, False, ""
        self._hide = redact.Redactor([os.environ])
        self._session = None

    def __enter__(self) -> DisabledRun:
        self._scratch = tempfile.TemporaryDirectory(prefix="run-")
        self.directory = Path(self._scratch.name)
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def progress(self, done: float, total: float, unit: str) -> None:
        """Do nothing."""

    def event(self, text: str) -> None:
        """Print the message."""
        _print(text)

    def checkpoint_due(self, update: int, interval: int, total: int = 0) -> bool:
        """Return whether one is due periodically."""
        return is_due(update, interval, total)

    def checkpoint(self, step: int, tensors: Any, state: Any, keep: int | None = 3) -> Path:
        """Do nothing."""
        return self.directory

    def add_parent(self, run_id: str) -> None:
        """Do nothing."""

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result, with the declared set."""
        return {"status": signals.FINISHED, "reason": "", "result": self._with_evaluation(result)}
