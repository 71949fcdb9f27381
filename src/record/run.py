"""A run: what a script calls to start, log, checkpoint and finish."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import ends, facts, journal, redact, status
from record.config import Config, check_same_flags, flags_of
from record.digest import metrics_digest, weights_digest
from record.errors import NumericalError, RunFailed, UserError
from record.seeds import Seeds

if TYPE_CHECKING:
    from types import TracebackType

    from record.checkpoint import Checkpoint
    from record.tfevents import EventFile

HEARTBEAT = 30.0  # s between signs of life; see status.LOST_AFTER


def start(config: Config, *, study: str) -> Run:
    """Begins a run, or continues the one that is in the directory.

    The directory is $RUN_DIR (Guild), else ``config.resume``, else ``runs/<8 hex>`` in the project.
    ``RECORD=off`` gives a run with the same interface that records nothing.

    Args:
        config: The script's flags.
        study: Name of the study; MLflow's experiment.

    Returns:
        The run, to be used as a context manager; the journal is opened on entering.

    Raises:
        UserError: The directory cannot be written, belongs to a run that is alive, or to one that
            was started with other flags.
    """
    if os.environ.get("RECORD", "").lower() in ("off", "0", "no"):
        from record.off import OffRun

        return OffRun(config, study)
    return Run(config, study)


class Run:
    """A recorded run; see :func:`start`.

    Attributes:
        config: The script's flags.
        study: Name of the study.
        id: 32 hex digits; Guild's run id under Guild.
        directory: The run's directory; everything that the run leaves is in it.
        seeds: The run's random streams.
        resumed: True if the directory already held a run.
    """

    def __init__(self, config: Config, study: str) -> None:
        self.config = config
        self.study = study
        self.seeds = Seeds(config.seed)
        self.directory, self.id = _place(config)
        self.resumed = (self.directory / "journal" / "run.json").exists()
        self._journal = self.directory / "journal"
        self._session = self._started = 0
        self._progress: dict[str, Any] = {}
        self._written_progress = 0.0
        self._weights, self._finished = "", False
        self._signals = ends.Signals()
        self._stop_beating = threading.Event()
        self._metrics: journal.MetricsFile
        self._tfevents: EventFile
        self._sender: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Run:
        try:
            self._open()
        except OSError as error:
            where = getattr(error, "filename", None) or self.directory
            raise UserError(f"cannot record in {where}: {error.strerror or error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._session or os.getpid() != self._pid:  # a forked worker unwinds: not its run
            return
        self._signals.ignore()
        try:
            if error is None and not self._finished:
                self._end(ends.End(ends.FAILED, "the script ended without a result"), None)
            elif error is not None:
                self._end_with(error)
        finally:
            self._close()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Appends metrics to the journal; never waits for MLflow.

        The first value of a (name, step) counts: what a resumed run computes again is not written.

        Args:
            metrics: Values by name (letters, digits, ``_ - . / :`` and spaces); a name beginning with
                ``time/`` reads the clock and is left out of digests.
            step: Whole number, at least 0: the update, unless the study says otherwise.
        """
        now = int(time.time() * 1000)
        with self._signals.deferred():
            values = {name: float(value) for name, value in metrics.items()}
            try:
                new = self._metrics.append(now, step, values)
            except OSError as error:
                raise RunFailed(f"cannot write {self._metrics.path}: {error.strerror}") from error
            if new:
                self._tfevents.append(now, int(step), new)

    def progress(self, done: float, total: float, unit: str) -> None:
        """Says how far the run is, for whoever looks at ``journal/progress.json``.

        Args:
            done: How much is done.
            total: How much there is to do.
            unit: Of what, for example "update".
        """
        self._progress = {"done": done, "total": total, "unit": unit}
        if time.monotonic() - self._written_progress > 5.0 or done >= total:
            with self._signals.deferred():
                self._beat()
                self._tfevents.flush()

    def event(self, text: str) -> None:
        """Prints a remark and keeps it in the journal."""
        print(text, flush=True)
        line = {"t": int(time.time() * 1000), "text": text}
        with self._signals.deferred():
            journal.append_line(self._journal / "events.jsonl", line)

    def checkpoint(
        self,
        step: int,
        tensors: Mapping[str, Any],
        state: Mapping[str, Any],
        keep: int | None = 3,
    ) -> Path:
        """Writes a checkpoint that survives a kill at any moment, and the points up to it.

        Args:
            step: Step to continue from.
            tensors: Weights by name.
            state: All else that a bit-equal continuation needs; see
                :func:`record.checkpoint.save_checkpoint`.
            keep: Number of newest checkpoints to keep; None keeps all.

        Returns:
            The checkpoint's folder.
        """
        from record.checkpoint import save_checkpoint

        folder = self.directory / "checkpoints"
        with self._signals.deferred():
            self._metrics.sync()
            self._tfevents.flush()
            return save_checkpoint(folder, step, tensors, state, keep=keep, run_id=self.id)

    def restore(self) -> Checkpoint | None:
        """Returns the newest complete checkpoint of a resumed run; None if there is none."""
        if not self.resumed:
            return None
        from record.checkpoint import newest_checkpoint

        return newest_checkpoint(self.directory / "checkpoints")

    def add_parent(self, run_id: str) -> None:
        """Notes that this run began from another one's checkpoint (``Checkpoint.run_id``)."""
        path = self._journal / "parents.json"
        parents = (journal.read_json(path) or {}).get("parents", [])
        if run_id and run_id not in parents:
            journal.write_json(path, {"parents": [*parents, run_id]})

    def artifact(self, name: str | os.PathLike[str]) -> Path:
        """Returns where to write a file that MLflow gets too (a figure, a video).

        Args:
            name: Name in ``artifacts/``, with folders if wanted; a file of the run's directory that lies
                elsewhere is copied there.
        """
        folder = self.directory / "artifacts"
        path = Path(name)
        target = folder / (path.name if path.is_absolute() else path)
        if path.is_absolute() and path.is_relative_to(folder):
            target = path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_absolute() and path.exists() and path != target:
            shutil.copy2(path, target)
        return target

    def digest_weights(self, tensors: Mapping[str, Any]) -> str:
        """Returns the digest of the final weights and keeps it for the result."""
        self._weights = weights_digest(tensors)
        return self._weights

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Writes ``result.json`` and ends the run as FINISHED.

        Args:
            result: ``objective`` (name, value, kind, count, goal, at, axis), and if wanted ``summary``,
                ``metrics``, ``env_steps``, ``task``, ``task_id``, ``variant``. The objective's value also
                becomes the metric ``objective``, which is what a search optimises.

        Returns:
            What was written, with status, digests and times.
        """
        objective = result.get("objective") or {}
        if objective.get("value") is not None:
            self.log(
                {"objective": objective["value"]}, objective.get("at") or self._metrics.last_step
            )
        if not self._weights:
            from record.checkpoint import newest_checkpoint

            last = newest_checkpoint(self.directory / "checkpoints")
            self._weights = weights_digest(last.tensors) if last else ""
        with self._signals.deferred():
            written = self._end(ends.End(ends.FINISHED, ""), dict(result))
            self._finished = True
        return written

    def _open(self) -> None:
        self._journal.mkdir(parents=True, exist_ok=True)
        with journal.locked(self._journal / "start.lock"):
            before = status.last_session(self.directory)
            if before and status.status_of(self.directory).status == ends.RUNNING:
                raise UserError(
                    f"{self.directory}: this run is still going on (process {before['pid']} on "
                    f"{before['host']}); stop it first"
                )
            static = self._static_facts()
            self.id = static["id"]
            journal.repair(self._journal / "sessions.jsonl")
            self._metrics = journal.MetricsFile(self._journal / "metrics.jsonl")
            self._pid = os.getpid()
            self._started = int(time.time() * 1000)
            session = {
                "session": before["session"] + 1 if before else 1,
                "started": self._started,
                "pid": self._pid,
                "pid_started": status.process_state(self._pid)[1],
                "boot": status.boot_id(),
                "host": socket.gethostname(),
                # Sessions before this one, up to their last sign of life.
                "earlier_seconds": _seconds_so_far(self.directory, before),
            }
            journal.append_line(self._journal / "sessions.jsonl", session)
        self._session, self._earlier = session["session"], session["earlier_seconds"]
        self._begin()

    def _begin(self) -> None:
        from record.sender import start_sender
        from record.tfevents import EventFile

        self._signals.install()
        if os.environ.get("GUILD_OP"):
            ends.die_with_parent()
        for name in ("artifacts", "checkpoints"):
            (self.directory / name).mkdir(exist_ok=True)
        (self.directory / "artifacts" / "error.txt").unlink(missing_ok=True)
        for stale in (self.directory / "checkpoints").glob(".writing-*"):
            shutil.rmtree(stale, ignore_errors=True)
        self._tfevents = EventFile(self.directory, journal.read_points(self._metrics.path))
        self._beat()
        self._sender = start_sender(self.directory, facts.project_root())
        threading.Thread(target=self._heartbeat, name="heartbeat", daemon=True).start()

    def _static_facts(self) -> dict[str, Any]:
        path = self._journal / "run.json"
        stored = journal.read_json(path)
        if stored is not None:
            check_same_flags(self.config, stored["flags"])
            return stored
        if path.exists():
            raise UserError(f"{path}: damaged; it cannot be continued")
        project = facts.project_root()
        static = {
            "id": self.id,
            "study": self.study,
            "operation": os.environ.get("GUILD_OP") or Path(sys.argv[0]).stem,
            "flags": flags_of(self.config),
            "seed": self.config.seed,
            "command": shlex.join([Path(sys.executable).name, *sys.argv]),
            "started": int(time.time() * 1000),
            "project": str(project),
            "versions": facts.versions(),
            "environment": redact.allowed(os.environ),
            "mlflow_run_id": os.environ.get("MLFLOW_RUN_ID", ""),
            **facts.machine_facts(project),
            **facts.commit_facts(project),
        }
        journal.write_json(path, static)
        return static

    def _end_with(self, error: BaseException) -> None:
        end = ends.end_of(error)
        if self._finished and end.status == ends.KILLED:
            return  # the result was complete before the signal came
        if self._finished and isinstance(error, SystemExit) and not error.code:
            return
        if end.status == ends.FAILED:
            text = "".join(traceback.format_exception(error))
            (self.directory / "artifacts" / "error.txt").write_text(text, encoding="utf-8")
        if self._finished:
            end = ends.End(end.status, f"after the end of the training: {end.reason}")
        extra: dict[str, Any] = {}
        if isinstance(error, NumericalError):
            extra["failed_at"] = {"update": error.update, "tensor": error.tensor_name}
        self._end(end, None, extra)

    def _end(
        self, end: ends.End, result: dict[str, Any] | None, extra: Mapping[str, Any] = {}
    ) -> dict[str, Any]:
        now = int(time.time() * 1000)
        self._metrics.sync()
        points = journal.read_points(self._metrics.path)
        metrics = metrics_digest((point.name, point.step, point.value) for point in points)
        written = {
            "status": end.status,
            "reason": end.reason,
            "result": result,
            "digest": {"weights": self._weights, "metrics": metrics},
            "session": self._session,
            "started": (journal.read_json(self._journal / "run.json") or {})["started"],
            "ended": now,
            "wall_seconds": round(self._earlier + (now - self._started) / 1000, 3),
            "env_steps": (result or {}).get("env_steps"),
            "resume_mismatch": self._metrics.mismatches,
            "progress": self._progress,
            **extra,
        }
        journal.write_json(self.directory / "result.json", journal.plain(written))
        return written

    def _close(self) -> None:
        self._stop_beating.set()
        self._tfevents.close()
        self._metrics.close()
        if self._sender and self._sender.stdin:
            self._sender.stdin.close()  # tells the sender, which needs no waiting for
        self._signals.restore()

    def _beat(self) -> None:
        self._written_progress = time.monotonic()
        beat = {"t": int(time.time() * 1000), **self._progress}
        journal.write_json(self._journal / "progress.json", journal.plain(beat), durable=False)

    def _heartbeat(self) -> None:
        while not self._stop_beating.wait(HEARTBEAT):
            try:
                self._beat()
            except OSError:
                return


def _place(config: Config) -> tuple[Path, str]:
    """Returns the run's directory and id."""
    resume = Path(config.resume).resolve() if config.resume else None
    guild = Path(os.environ["RUN_DIR"]).resolve() if os.environ.get("RUN_DIR") else None
    if guild and resume and guild != resume:
        raise UserError(
            f"--resume: under Guild a run is continued with `guild run --restart {resume.name[:8]}`"
        )
    directory = guild or resume
    if resume and not (resume / "journal" / "run.json").exists():
        raise UserError(f"--resume {config.resume}: no run there (journal/run.json is missing)")
    if directory is None:
        new = uuid.uuid4().hex
        return facts.project_root() / "runs" / new[:8], new
    given = os.environ.get("RUN_ID", "") if guild else ""
    return directory, given if re.fullmatch("[0-9a-f]{32}", given) else uuid.uuid4().hex


def _seconds_so_far(directory: Path, session: dict[str, Any] | None) -> float:
    if session is None:
        return 0.0
    end = status.status_of(directory).ended or session["started"]
    return session["earlier_seconds"] + max(0.0, (end - session["started"]) / 1000)
