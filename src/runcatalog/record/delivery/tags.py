"""MLflow tags of a run: machine, commit, versions, command, status and result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runcatalog.record.delivery.hidden_tags import LENGTH
from runcatalog.record.evaluation import declared
from runcatalog.record.journal.files import read_json
from runcatalog.record.lifecycle.status import Status, last_session, wall_seconds
from runcatalog.record.provenance.redact import allowed

RESULT = "result"  # tag
_TAGS = 4  # that a result takes, at most


def run_tags(
    directory: Path, facts: dict[str, Any], result: dict[str, Any], status: Status, label: str
) -> dict[str, str]:
    """Return the tags of a run.

    Args:
        directory: The run's directory.
        facts: Content of ``journal/run.json``.
        result: Content of ``result.json``; empty without one.
        status: Status of the run.
        label: Label given by the user.
    """
    session = last_session(directory) or {}
    if isinstance(moved := session.get("moved"), dict):  # it went on elsewhere than where it began
        facts = facts | {
            n: str(moved[n]) for n in ("machine", "host", "gpu", "host_cpu") if n in moved
        }
    current = result if result.get("session") == session.get("session") else {}
    parents = (read_json(directory / "journal" / "parents.json") or {}).get("parents", [])
    digest = current.get("digest", {})
    wall = current.get("wall_seconds")
    if wall is None and status.ended is not None:
        wall = wall_seconds(directory, session)
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
        "command": facts["command"][:LENGTH],
        "started": facts["started"],
        "reason": status.reason,
        "digest_weights": digest.get("weights", ""),
        "digest_metrics": digest.get("metrics", ""),
        "wall_seconds": "" if wall is None else f"{wall:.3f}",
        "env_steps": current.get("env_steps"),
        RESULT: _result_text(current.get("result")),
        "parents": ",".join(parents),
        "mlflow.source.name": facts["operation"],
        "mlflow.source.git.commit": facts["commit"],
    }
    if evaluation := declared(current.get("result")):
        content["split"] = evaluation.split
    if current.get("resume_mismatch"):
        content["resume_mismatch"] = current["resume_mismatch"]
    if current.get("failed_at"):
        content["failed_at"] = json.dumps(current["failed_at"], sort_keys=True)
    if not facts["commit"]:
        del content["mlflow.source.git.commit"]
    return {name: "" if value is None else str(value) for name, value in content.items()}


def _result_text(result: dict[str, Any] | None) -> str:
    """Return the result as JSON for few tags; long fields are dropped, those first that are stored elsewhere."""
    if result is None:
        return ""
    # Without outcomes, one tag is tried first: runs that fit into it are exported as before.
    tags = _TAGS if "outcomes" in result else 1
    kept: dict[str, Any] = {
        name: result[name] for name in ("objective", "evaluation") if name in result
    }
    alone = kept
    if isinstance(objective := kept.get("objective"), dict):
        alone = {**kept, "objective": _without(objective, "also")}
    attempts: tuple[tuple[dict[str, Any], int], ...] = (
        (result, 1),
        (_without(result, "metrics"), tags),
        (_without(result, "metrics", "variant"), tags),
        (_without(result, "metrics"), _TAGS),
        (_without(result, "metrics", "outcomes"), _TAGS),
        (kept, 1),
        (alone, 1),
        ({}, 1),
    )
    texts = (
        (json.dumps(fields, sort_keys=True, ensure_ascii=False), most) for fields, most in attempts
    )
    return next(text for text, most in texts if len(text) <= most * LENGTH)


def _without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
