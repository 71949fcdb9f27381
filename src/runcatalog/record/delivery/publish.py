"""Send a run's journal to MLflow; can be repeated, since points that MLflow already has are not added again.

The key of a point in MLflow is (run, name, time, step, value); all of these are in the journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runcatalog.record import journal
from runcatalog.record.delivery.hidden_tags import plain_names, stored_names
from runcatalog.record.delivery.mlflow_client import (
    MlflowError,
    chunks,
    connect,
    experiment_id,
    one_line_errors,
    shown,
    sqlite_path,
    tracking_uri,
)
from runcatalog.record.delivery.names import encode
from runcatalog.record.delivery.points_in_mlflow import POINTS, PointCounts, lacks
from runcatalog.record.delivery.tags import RESULT, run_tags
from runcatalog.record.digest import shortened
from runcatalog.record.errors import UserError
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import is_locked, locked, read_json, size_on_disk, write_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.journal.metrics import Point, is_metric_name, points_of
from runcatalog.record.journal.sessions import session_flags
from runcatalog.record.lifecycle import crash
from runcatalog.record.lifecycle.signals import FINISHED, RUNNING
from runcatalog.record.lifecycle.status import (
    Status,
    checked_status,
    has_other_points,
    last_session,
)
from runcatalog.record.output import console
from runcatalog.record.provenance import patch
from runcatalog.record.provenance.redact import Redactor, still_hidden
from runcatalog.record.untrusted import checked_facts, guild_attribute, inside

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# s to wait for a run's own sender, which uses only idle time of the machine
PATIENCE = 240.0
JOURNAL = "journal"  # tag: what is wrong with the journal of a run that has ended
BATCH = 1000  # points per request, MLflow's limit
_PATCH = (
    f"artifacts/{patch.NAME}"  # contains no secrets, and could not be applied after a redaction
)
_PARAM_LENGTH = 6000  # characters; MLflow cuts longer ones
_MLFLOW_ID = re.compile("[0-9a-f]{32}")


class RunIsBusy(MlflowError):
    """Another process is sending the run."""


class Published(NamedTuple):
    """State of a run in MLflow after :func:`publish`.

    Attributes:
        mlflow_run_id: The run's id in MLflow; "" if it was deleted there.
        status: The run's status.
        points: Number of points that were sent now.
        journal: What is wrong with the journal of a run that has ended, in a line; "" if nothing is.
    """

    mlflow_run_id: str
    status: Status
    points: int
    journal: str = ""


def publish(
    run_dir: str | os.PathLike[str],
    uri: str | None = None,
    extra_tags: Mapping[str, str] | None = None,
    client: MlflowClient | None = None,
    patience: float = PATIENCE,
    replaces: str = "",
) -> Published:
    """Send the data of a run that MLflow lacks.

    Args:
        run_dir: The run's directory; it may be copied from another machine.
        uri: Server or database; see :func:`runcatalog.record.delivery.mlflow_client.tracking_uri`.
        extra_tags: Tags with facts that are not in the journal, for example ``batch``.
        client: Client to use; by default a new one.
        patience: Seconds to wait for another process that is sending the run.
        replaces: MLflow id of a row of the run that the caller removes afterwards; another one is written.

    Raises:
        UserError: There is no journal, it cannot be read, or MLflow rejects it; MLflow itself works.
        RunIsBusy: Another process is sending the run.
        MlflowError: MLflow cannot be used.
    """
    return Publisher(run_dir, uri, client).send(extra_tags or {}, patience, replaces=replaces)


class Publisher:
    """Connection of a run to MLflow.

    Args:
        run_dir: The run's directory.
        uri: Server or database; see :func:`runcatalog.record.delivery.mlflow_client.tracking_uri`.
        client: Client to use; by default a new one.
        created: MLflow id of the run that `mlflow run` created for this one. Only the process that `mlflow run`
            started knows it for certain: a run directory from elsewhere may name any run.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        uri: str | None = None,
        client: MlflowClient | None = None,
        created: str = "",
    ) -> None:
        self.directory = Path(run_dir)
        self.uri = tracking_uri(uri)
        self._journal = self.directory / "journal"
        self._client = self._given = client
        self._created = created
        self._sent = PointCounts()
        self._hide = Redactor.for_run(self.directory)

    def send(
        self,
        extra_tags: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
        *,
        again: bool = True,
        replaces: str = "",
    ) -> Published:
        """Send the missing data; see :func:`publish`.

        Args:
            extra_tags, patience, replaces: See :func:`publish`.
            again: Whether a run whose end was sent is sent again. Its sender, which may come after `catalog sync`, does
                not know the run's batch, and would replace what the sync said of it.
        """
        try:
            with one_line_errors(self.uri, str(self.directory)):
                facts = checked_facts(self.directory)
                if last_session(self.directory) is None:
                    raise UserError(
                        f"{self.directory}: no run (journal/sessions.jsonl cannot be read)"
                    )
                self._connected()  # may take seconds, for which nobody else should wait
                self._await_sender(facts, patience)
                with self._locked(patience):
                    # Before the points, so that a reported end comes with all points.
                    status = checked_status(self.directory)
                    end = self._end(status)
                    if not again and end and (sent := self._state()).get("ended") == end:
                        return Published(sent["run"], status, 0)
                    return self._send(facts, status, dict(extra_tags or {}), replaces)
        except MlflowError:
            self._client = self._given  # a database that was removed is made again
            raise

    def _send(
        self, facts: dict[str, Any], status: Status, extra: dict[str, str], replaces: str
    ) -> Published:
        from mlflow.entities import RunTag

        state = self._state()
        result = read_json(self.directory / "result.json") or {}
        label = self._hide.text(str(guild_attribute(self.directory, "label") or ""))
        client = self._connected()
        name = _utf8(label or facts["operation"] or facts["id"][:8])
        run = self._find(client, state, facts, name, replaces)
        if run is None or run.info.lifecycle_stage == "deleted":
            return Published("", status, 0)
        run_id = run.info.run_id
        if state.get("run") != run_id:
            state.clear()
            state["run"] = run_id
        result = self._hide.value(result)
        # The extra ones first: marks of a replaced row are written no later than the tags that make this one complete.
        tags = {**extra, **run_tags(self.directory, facts, result, status, label), **extra}
        sent_tags = plain_names(run.data.tags)
        problem = "" if status.status == RUNNING else self._journal_problem(result)
        if problem or sent_tags.get(JOURNAL):
            tags[JOURNAL] = problem
        tags = {
            name: still_hidden(_utf8(self._without_secrets(name, value)), sent_tags.get(name, ""))
            for name, value in tags.items()
        }
        self._send_facts(client, run, facts, tags)
        points = self._send_points(client, run, state)
        if status.status != RUNNING:
            if sent_tags.get(POINTS) != self._sent.text():
                client.log_batch(run_id, tags=[RunTag(POINTS, self._sent.text())])
            self._send_files(client, run_id, state, status)
        self._send_status(client, run, status, name)
        if state.get("ended", []) != (end := self._end(status)):
            state["ended"] = end
            self._keep(state)
        self._report_strays(state)
        return Published(run_id, status, points, problem)

    def _without_secrets(self, name: str, tag: str) -> str:
        """Return a tag without secrets; JSON stays JSON, whose numbers may follow a name such as `loss_per_token`."""
        if name == RESULT:
            return tag  # the texts in it were hidden before it was written as JSON
        if tag.startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                content = json.loads(tag)
                clean = self._hide.value(content)
                return tag if clean == content else json.dumps(clean, sort_keys=True)
        return self._hide.text(tag)

    def _journal_problem(self, result: dict[str, Any]) -> str:
        """Return how the journal differs from what the run wrote; "" if it does not.

        Args:
            result: Content of ``result.json``; empty without one.
        """
        found = []
        for name in (journal.METRICS, journal.SESSIONS):
            if damage := damage_of(self._journal / name):
                found.append(f"{name}: {damage.text()}")
        if not found and has_other_points(self.directory, result):
            found.append(
                f"{journal.METRICS}: its points are not those of which result.json has the digest"
            )
        return "; ".join(found)

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def _find(
        self,
        client: MlflowClient,
        state: dict[str, Any],
        facts: dict[str, Any],
        name: str,
        replaces: str,
    ) -> Run | None:
        """Return the run in MLflow: the known one, one with the same run_id tag, or a new one; none to be replaced."""
        from mlflow.entities import ViewType

        if state.get("run") and state["run"] != replaces:
            known = _get_run(client, state["run"])
            if known is not None and known.data.tags.get("run_id") == facts["id"]:
                return known
        experiment = experiment_id(client, self.uri, facts["study"])
        query = f"tags.run_id = '{facts['id']}'"
        matches = client.search_runs([experiment], query, ViewType.ALL, max_results=2)
        for match in matches:
            if match.info.run_id != replaces:
                return match
        for created in filter(None, (self._created, facts.get("mlflow_run_id"))):
            if created == replaces:
                continue
            run = _get_run(client, created) if _MLFLOW_ID.fullmatch(str(created)) else None
            if run is not None and run.data.tags.get("run_id") == facts["id"]:
                return run
            if run is not None and created == self._created and _is_unused(run):
                client.set_tag(created, "run_id", facts["id"])
                return run
        return client.create_run(
            experiment,
            start_time=facts["started"],
            tags={"run_id": facts["id"]},
            run_name=name,
        )

    def _send_facts(
        self, client: MlflowClient, run: Run, facts: dict[str, Any], tags: dict[str, str]
    ) -> None:
        from mlflow.entities import Param, RunTag

        flags = facts["flags"] | session_flags(self.directory)
        flags = {name: self._hide.flag(name, value) for name, value in flags.items()}
        sent_params = run.data.params
        params = {
            name: still_hidden(_param(value), sent_params.get(name, ""))
            for name, value in flags.items()
        }
        # MLflow's params cannot be changed; flags that a continuation changed are stored in a tag.
        changed = {
            name: value
            for name, value in params.items()
            if run.data.params.get(name, value) != value
        }
        if changed or "changed_flags" in plain_names(run.data.tags):
            tags["changed_flags"] = json.dumps(changed, sort_keys=True)
        new_params = [Param(*item) for item in params.items() if item[0] not in run.data.params]
        new_tags = [
            RunTag(name, value)
            for name, value in stored_names(tags).items()
            if run.data.tags.get(name) != value
        ]
        for chunk in chunks(new_params, 100):
            client.log_batch(run.info.run_id, params=chunk)
        for tag_chunk in chunks(new_tags, 100):
            client.log_batch(run.info.run_id, tags=tag_chunk)

    def _send_points(self, client: MlflowClient, run: Run, state: dict[str, Any]) -> int:
        from mlflow.entities import Metric

        path, sent = self._journal / journal.METRICS, 0
        # Only synced lines are sent: lines lost by a power cut would be recomputed, and be in MLflow twice.
        safe = size_on_disk(path)
        offset = self._trusted_offset(client, run, state, safe)
        batch: list[Metric] = []
        for points, end, number in self._lines(offset, safe):
            if batch and len(batch) + len(points) > BATCH:
                sent += self._send_batch(client, run.info.run_id, batch, state, offset)
                batch = []
            batch += [Metric(point.name, point.value, point.time, point.step) for point in points]
            offset = end
            self._sent.add(points, end, number)
        return sent + self._send_batch(client, run.info.run_id, batch, state, offset)

    def _trusted_offset(
        self, client: MlflowClient, run: Run, state: dict[str, Any], safe: int
    ) -> int:
        """Return the offset up to which MLflow has all points; 0 if it has lost some, or if this cannot be said.

        Args:
            client: MLflow's client.
            run: The run, just read from MLflow.
            state: The run's state of delivery.
            safe: Size of the journal on the disk, in bytes.
        """
        offset = state.get("offset", 0)
        if self._sent.end != offset:
            self._sent = PointCounts()
            for points, end, number in self._lines(0, offset):
                self._sent.add(points, end, number)
        if not offset:
            return 0
        before = (point for points, *_ in self._lines(0, offset) for point in points)
        is_whole = offset <= safe and self._sent.end == offset  # else it is of another journal
        if is_whole and not lacks(client, run, sqlite_path(self.uri), self._sent, before):
            return offset
        # Points that MLflow has are not added again. Files may be lost with the points.
        self._sent = PointCounts()
        state.pop("files", None)
        return 0

    def _lines(self, start: int, stop: int) -> Iterator[tuple[list[Point], int, int]]:
        """Yield (points, byte offset after it, number or 0) of each line of the journal between two offsets."""
        last = self._sent.number if start else 0
        for line, after in read_lines(self._journal / journal.METRICS, start):
            if after > stop:
                return
            number = line["n"] if type(line.get("n")) is int else 0
            if not number or number > last:  # else the line is a repetition
                last = number or last
                yield self._points_of(line), after, number

    def _points_of(self, line: dict[str, Any]) -> list[Point]:
        """Return the points of a line, none of a damaged one, which `_journal_problem` reports."""
        with contextlib.suppress(ValueError):
            return [p._replace(name=_stored_name(p.name)) for p in points_of(line)]
        return []

    def _send_batch(
        self, client: MlflowClient, run_id: str, batch: list[Any], state: dict[str, Any], end: int
    ) -> int:
        if batch:
            for chunk in chunks(batch, BATCH):  # a single line may contain more
                client.log_batch(run_id, metrics=chunk)
            state["offset"] = end
            self._keep(state)
        return len(batch)

    def _send_files(
        self, client: MlflowClient, run_id: str, state: dict[str, Any], status: Status
    ) -> None:
        """Upload result.json, artifacts/, and the crash report and last output of a failed run."""
        files = [path for path in (self.directory / "artifacts").rglob("*") if path.is_file()]
        known = state.setdefault("files", {})
        for path in [self.directory / "result.json", *sorted(files)]:
            if not path.exists():
                continue
            name = path.relative_to(self.directory).as_posix()
            if not inside(self.directory, path):
                state.setdefault("strays", {}).setdefault(name, "")
                continue
            stamp = [path.stat().st_size, path.stat().st_mtime_ns]
            if known.get(name) != stamp:
                folder = os.path.dirname(name.removeprefix("artifacts/"))
                clean = None if name == _PATCH else self._hide.file(path)
                if clean is None:
                    client.log_artifact(run_id, str(path), folder or None)
                else:  # not log_text, which knows UTF-8 alone
                    with tempfile.TemporaryDirectory() as temporary:
                        copy = Path(temporary, path.name)
                        copy.write_bytes(clean)
                        client.log_artifact(run_id, str(copy), folder or None)
                known[name] = stamp
                self._keep(state)
        if status.status == FINISHED:
            return
        reports = {
            "error.txt": (crash.report_path(self.directory), crash.report),
            "log_tail.txt": (console.output_path(self.directory), console.last_lines),
        }
        for name, (path, read) in reports.items():
            text = read(path) if inside(self.directory, path) else ""
            # Sent only once: a later shell may lack the environment variables with the secrets to hide.
            text_stamp = hashlib.sha256(text.encode()).hexdigest()[:16]
            if text and known.get(name) != text_stamp:
                client.log_text(run_id, f"{self._hide.text(text)}\n", name)
                known[name] = text_stamp
                self._keep(state)

    def _report_strays(self, state: dict[str, Any]) -> None:
        """Raise UserError, once per file, for files outside of the run's directory; all others have been sent."""
        strays = state.get("strays", {})
        new = [name for name, reported in strays.items() if not reported]
        if new:
            state["strays"] = dict.fromkeys(strays, "reported")
            self._keep(state)
            names = ", ".join(new[:5])
            raise UserError(
                f"{self.directory}: {names}: leads out of the run's directory, not sent"
            )

    def _send_status(self, client: MlflowClient, run: Run, status: Status, name: str) -> None:
        info = run.info
        name = still_hidden(name, info.run_name or "")
        if status.status == RUNNING:
            if info.status != RUNNING:
                client.update_run(info.run_id, status=RUNNING)
        elif (info.status, info.end_time) != (status.status, status.ended):
            client.set_terminated(info.run_id, status.status, status.ended)
        if info.run_name != name:
            client.update_run(info.run_id, name=name)

    def _end(self, status: Status) -> list[Any]:
        """Return what distinguishes the end of a run from that of an earlier or later session; [] while it runs."""
        session = last_session(self.directory) or {}
        is_over = status.status != RUNNING
        return [session.get("session"), status.status, status.ended] if is_over else []

    def _state(self) -> dict[str, Any]:
        content = read_json(self._journal / "mlflow.json") or {}
        state = content.get(shown(self.uri))
        kinds = {"run": str, "offset": int, "files": dict, "strays": dict, "ended": list}
        if isinstance(state, dict) and all(type(v) is kinds.get(n) for n, v in state.items()):
            return state
        return {}

    def _keep(self, state: dict[str, Any]) -> None:
        path = self._journal / "mlflow.json"
        content = read_json(path) or {}
        content[shown(self.uri)] = state
        # If the journal is not writable or the disk is full, all is sent again later, which adds nothing.
        with contextlib.suppress(OSError):
            write_json(path, content, durable=False)

    def _await_sender(self, facts: dict[str, Any], patience: float) -> None:
        """Wait until the sender of a run that `mlflow run` started has said which run in MLflow that is.

        Another process that came first would make a second run.
        """
        end = time.monotonic() + patience
        while facts.get("mlflow_run_id") and not (self._created or self._state().get("run")):
            if not is_locked(self._journal / journal.SENDER_LOG):
                return
            if time.monotonic() > end:
                raise RunIsBusy(f"{self.directory}: another process is sending it")
            time.sleep(0.05)

    @contextlib.contextmanager
    def _locked(self, patience: float) -> Iterator[None]:
        """Hold the lock of a run's sender, so that two processes do not create the run twice in MLflow."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self._journal / "mlflow.lock", timeout=patience))
            except TimeoutError as error:
                raise RunIsBusy(f"{self.directory}: another process is sending it") from error
            except OSError:
                pass
            yield


def _get_run(client: MlflowClient, run_id: str) -> Run | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _is_unused(run: Run) -> bool:
    """Return whether no run uses a run of MLflow yet; the trials of a batch all inherit `mlflow run`'s variable."""
    empty = not run.data.metrics and "run_id" not in run.data.tags
    return empty and run.info.lifecycle_stage == "active"


@lru_cache(10_000)
def _stored_name(name: str) -> str:
    """Return a metric's name in MLflow, encoded if MLflow would reject it: earlier versions logged such names."""
    return name if is_metric_name(name) else encode(name)


def _param(value: Any) -> str:
    """Return a flag as text; one that MLflow would cut ends with a digest, by which two of them stay different."""
    return shortened(repr(value) if isinstance(value, float) else _utf8(str(value)), _PARAM_LENGTH)


def _utf8(text: str) -> str:
    """Return a text that a database takes: bytes of a path or argument that are no UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
