"""Sends a run's journal to MLflow, as often as wanted: what is there already is not added again.

A point's key in MLflow is (run, name, time, step, value), and all of these come from the journal.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from record import journal
from record.ends import RUNNING
from record.errors import UserError
from record.mlflow_client import (
    MlflowError,
    connect,
    experiment_id,
    one_line_errors,
    shown,
    tracking_uri,
)
from record.redact import Redactor, allowed
from record.status import Status, last_session, status_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH = 1000  # points in one request; MLflow takes no more
_TAG_LENGTH = 7900  # characters; MLflow cuts a tag at 8000
_LOG_LINES = 20


class Published(NamedTuple):
    """What MLflow holds after :func:`publish`.

    Attributes:
        mlflow_run_id: The run's id in MLflow; empty if someone deleted it there.
        status: The run's status.
        points: Number of points that were sent now.
    """

    mlflow_run_id: str
    status: Status
    points: int


def publish(
    run_dir: str | os.PathLike[str],
    tracking_uri: str | None = None,
    extra_tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> Published:
    """Sends what MLflow does not hold yet of one run.

    Args:
        run_dir: The run's directory; it may be copied from another machine.
        tracking_uri: Server or database; see :func:`record.mlflow_client.tracking_uri`.
        extra_tags: Tags that the journal does not know, for example ``batch``.
        parent: ``run_id`` of the batch that the run is a trial of, if that is in MLflow.

    Raises:
        UserError: There is no journal.
        MlflowError: MLflow did not take everything.
    """
    return Publisher(run_dir, tracking_uri).send(extra_tags or {}, parent)


class Publisher:
    """The connection of one run to MLflow.

    Args:
        run_dir: The run's directory.
        uri: Server or database; see :func:`record.mlflow_client.tracking_uri`.
    """

    def __init__(self, run_dir: str | os.PathLike[str], uri: str | None = None) -> None:
        self.directory = Path(run_dir)
        self.uri = tracking_uri(uri)
        self._journal = self.directory / "journal"
        self._client: MlflowClient | None = None
        self._hide = Redactor.of_run(self.directory)

    def send(
        self, extra_tags: Mapping[str, str] | None = None, parent: str | None = None
    ) -> Published:
        """Sends what is missing; see :func:`publish`."""
        facts = journal.read_json(self._journal / "run.json")
        if facts is None or last_session(self.directory) is None:
            raise UserError(f"{self.directory}: no run there (journal/run.json cannot be read)")
        with self._alone(), one_line_errors(self.uri):
            return self._send(facts, dict(extra_tags or {}), parent)

    def _send(self, facts: dict[str, Any], extra: dict[str, str], parent: str | None) -> Published:
        state = self._state()
        status = status_of(self.directory)  # before the points: an end that is told is complete
        result = journal.read_json(self.directory / "result.json") or {}
        label = self._hide.text(_guild_attribute(self.directory, "label"))
        client = self._connected()
        run = self._find(client, state, facts, label)
        if run is None or run.info.lifecycle_stage == "deleted":
            return Published("", status, 0)
        run_id = run.info.run_id
        if state.get("run") != run_id:
            state.clear()
            state["run"] = run_id
        result = self._hide.value(result)
        tags = {**_tags(self.directory, facts, result, status, label), **extra}
        tags = {name: self._hide.text(value) for name, value in tags.items()}
        if parent:
            tags |= _parent_tag(client, run.info.experiment_id, parent)
        self._send_facts(client, run, facts, tags)
        points = self._send_points(client, run_id, state)
        if status.status != RUNNING:
            self._send_files(client, run_id, state, status)
        self._send_status(client, run, status, label or facts["operation"])
        return Published(run_id, status, points)

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def _find(
        self, client: MlflowClient, state: dict[str, Any], facts: dict[str, Any], label: str
    ) -> Run | None:
        """Returns the run in MLflow: the known one, one with the same run_id tag, or a new one."""
        from mlflow.entities import ViewType

        if state.get("run"):
            known = _get_run(client, state["run"])
            if known is not None and known.data.tags.get("run_id") == facts["id"]:
                return known
        experiment = experiment_id(client, self.uri, facts["study"])
        query = f"tags.run_id = '{facts['id']}'"
        found = client.search_runs([experiment], query, ViewType.ALL, max_results=1)
        if found:
            return found[0]
        given = facts.get("mlflow_run_id")  # `mlflow run` made one
        if given:
            run = _get_run(client, given)
            # The trials of a batch inherit the variable: the first of them takes the run.
            if run is not None and run.data.tags.get("run_id", facts["id"]) == facts["id"]:
                client.set_tag(given, "run_id", facts["id"])
                return run
        return client.create_run(
            experiment,
            start_time=facts["started"],
            tags={"run_id": facts["id"]},
            run_name=label or facts["operation"],
        )

    def _send_facts(
        self, client: MlflowClient, run: Run, facts: dict[str, Any], tags: dict[str, str]
    ) -> None:
        from mlflow.entities import Param, RunTag

        flags = {name: self._hide.flag(name, value) for name, value in facts["flags"].items()}
        params = {name: _param(value) for name, value in flags.items()}
        # MLflow never changes a param: a flag that a continuation changed is told in a tag.
        changed = {
            name: value
            for name, value in params.items()
            if run.data.params.get(name, value) != value
        }
        if changed:
            tags["changed_flags"] = json.dumps(changed, sort_keys=True)
        new_params = [Param(*item) for item in params.items() if item[0] not in run.data.params]
        new_tags = [
            RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value
        ]
        for group in _groups(new_params, 100):
            client.log_batch(run.info.run_id, params=group)
        for group in _groups(new_tags, 100):
            client.log_batch(run.info.run_id, tags=group)

    def _send_points(self, client: MlflowClient, run_id: str, state: dict[str, Any]) -> int:
        from mlflow.entities import Metric

        path, sent = self._journal / "metrics.jsonl", 0
        offset = state.get("offset", 0)
        if path.exists() and offset > path.stat().st_size:  # another journal than the one sent
            offset = 0
        batch: list[Metric] = []
        for line, end in journal.read_lines(path, offset):
            points = [
                Metric(point.name, point.value, point.time, point.step)
                for point in journal.points_of(line)
            ]
            if batch and len(batch) + len(points) > BATCH:
                sent += self._send_batch(client, run_id, batch, state, offset)
                batch = []
            batch, offset = batch + points, end
        return sent + self._send_batch(client, run_id, batch, state, offset)

    def _send_batch(
        self, client: MlflowClient, run_id: str, batch: list[Any], state: dict[str, Any], end: int
    ) -> int:
        if batch:
            for group in _groups(batch, BATCH):  # a single line may hold more
                client.log_batch(run_id, metrics=group)
            state["offset"] = end
            self._keep(state)
        return len(batch)

    def _send_files(
        self, client: MlflowClient, run_id: str, state: dict[str, Any], status: Status
    ) -> None:
        """Uploads result.json, what is in artifacts/, and the end of a failed run's output."""
        files = [path for path in (self.directory / "artifacts").rglob("*") if path.is_file()]
        output = self.directory / ".guild" / "output"
        known = state.setdefault("files", {})
        for path in [self.directory / "result.json", *sorted(files)]:
            if not path.exists():
                continue
            name = path.relative_to(self.directory).as_posix()
            stamp = [path.stat().st_size, path.stat().st_mtime_ns]
            if known.get(name) != stamp:
                folder = os.path.dirname(name.removeprefix("artifacts/"))
                clean = self._hide.file(path)
                if clean is None:
                    client.log_artifact(run_id, str(path), folder or None)
                else:
                    client.log_text(run_id, clean, os.path.join(folder, path.name))
                known[name] = stamp
                self._keep(state)
        if status.status != "FINISHED" and output.exists():
            text = self._hide.text(output.read_text(errors="replace"))
            lines = text.splitlines()[-_LOG_LINES:]
            if lines and known.get("log_tail.txt") != lines:
                client.log_text(run_id, "\n".join(lines) + "\n", "log_tail.txt")
                known["log_tail.txt"] = lines
                self._keep(state)

    def _send_status(self, client: MlflowClient, run: Run, status: Status, name: str) -> None:
        info = run.info
        if status.status == RUNNING:
            if info.status != RUNNING:
                client.update_run(info.run_id, status=RUNNING)
        elif (info.status, info.end_time) != (status.status, status.ended):
            client.set_terminated(info.run_id, status.status, status.ended)
        if info.run_name != name:
            client.update_run(info.run_id, name=name)

    def _state(self) -> dict[str, Any]:
        content = journal.read_json(self._journal / "mlflow.json") or {}
        state = content.get(shown(self.uri))
        return state if isinstance(state, dict) else {}

    def _keep(self, state: dict[str, Any]) -> None:
        path = self._journal / "mlflow.json"
        content = journal.read_json(path) or {}
        content[shown(self.uri)] = state
        with contextlib.suppress(PermissionError):  # someone else's journal: all is sent again
            journal.write_json(path, content, durable=False)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lets one process at a time send a run, so that MLflow never gets two runs for one."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(journal.locked(self._journal / "mlflow.lock", timeout=60))
            except PermissionError:
                pass
            except TimeoutError as error:
                raise MlflowError(f"{self.directory}: another process is sending it") from error
            yield


def _tags(
    directory: Path, facts: dict[str, Any], result: dict[str, Any], status: Status, label: str
) -> dict[str, str]:
    session = last_session(directory) or {}
    current = result if result.get("session") == session.get("session") else {}
    parents = (journal.read_json(directory / "journal" / "parents.json") or {}).get("parents", [])
    digest = current.get("digest", {})
    wall = current.get("wall_seconds")
    if wall is None and status.ended is not None:
        wall = session["earlier_seconds"] + max(0, status.ended - session["started"]) / 1000
    content = {
        "run_id": facts["id"],
        "operation": facts["operation"],
        "label": label,
        "study": facts["study"],
        "machine": facts["machine"],
        "host": facts["host"],
        "gpu": facts["gpu"],
        "host_cpu": facts["host_cpu"],
        "commit": facts["commit"],
        "dirty": facts["dirty"],
        "seed": facts["seed"],
        "versions": json.dumps(facts["versions"], sort_keys=True),
        "environment": json.dumps(allowed(facts.get("environment", {})), sort_keys=True),
        "command": facts["command"],
        "started": facts["started"],
        "reason": status.reason,
        "digest_weights": digest.get("weights", ""),
        "digest_metrics": digest.get("metrics", ""),
        "wall_seconds": "" if wall is None else f"{wall:.3f}",
        "env_steps": current.get("env_steps"),
        "result": _short_result(current.get("result")),
        "parents": ",".join(parents),
        "mlflow.source.name": facts["operation"],
        "mlflow.source.git.commit": facts["commit"],
    }
    if current.get("resume_mismatch"):
        content["resume_mismatch"] = current["resume_mismatch"]
    if current.get("failed_at"):
        content["failed_at"] = json.dumps(current["failed_at"], sort_keys=True)
    if not facts["commit"]:
        del content["mlflow.source.git.commit"]
    return {name: "" if value is None else str(value) for name, value in content.items()}


def _short_result(result: dict[str, Any] | None) -> str:
    """Returns the result as JSON that fits in a tag; what is long and also elsewhere is left out."""
    if result is None:
        return ""
    for dropped in ((), ("metrics",), ("metrics", "variant")):
        kept = {name: value for name, value in result.items() if name not in dropped}
        text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
        if len(text) <= _TAG_LENGTH:
            return text
    return json.dumps({"objective": result.get("objective")})[:_TAG_LENGTH]


def _parent_tag(client: MlflowClient, experiment: str, parent: str) -> dict[str, str]:
    found = client.search_runs([experiment], f"tags.run_id = '{parent}'", max_results=1)
    return {"mlflow.parentRunId": found[0].info.run_id} if found else {}


def _get_run(client: MlflowClient, run_id: str) -> Run | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _guild_attribute(directory: Path, name: str) -> str:
    """Returns an attribute that Guild keeps of the run; empty without Guild."""
    try:
        text = (directory / ".guild" / "attrs" / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    with contextlib.suppress(Exception):  # Guild writes YAML; a plain label is its own YAML
        import yaml

        text = str(yaml.safe_load(text) or "")
    return text


def _param(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _groups(items: list[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
