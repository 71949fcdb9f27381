"""Validation of run directories, which may be from untrusted sources."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from runcatalog.record import journal
from runcatalog.record.errors import UserError

_TEXTS = ("study", "operation", "command", "commit", "dirty", "machine", "host", "gpu", "host_cpu")
_MAX_TEXT = 4000  # characters of such a text
_ATTRIBUTE_BYTES = 1 << 20
_INT64 = 1 << 63  # limit of integers in a database


def checked_facts(directory: Path) -> dict[str, Any]:
    """Return the facts of a run, `journal/run.json`.

    Raises:
        UserError: The file is missing, or its content is not valid.
    """
    path = directory / "journal" / "run.json"
    if not inside(directory, path):
        raise UserError(f"{path}: leads out of the run's directory: refused")
    try:
        size = path.stat().st_size
    except OSError:
        raise UserError(f"{directory}: no run (journal/run.json cannot be read)") from None
    if size > journal.MAX_BYTES:
        raise UserError(f"{path}: {size} bytes; at most {journal.MAX_BYTES} are read")
    facts = journal.read_json(path)
    if facts is None:
        raise UserError(f"{directory}: no run (journal/run.json cannot be read)")
    wrong = _wrong_field(facts)
    if wrong:
        raise UserError(f"{path}: {wrong!r} is missing or invalid: refused")
    return facts


def guild_attribute(directory: Path, name: str) -> Any:
    """Return an attribute of a Guild run; None if it is missing or not valid YAML.

    YAML with many anchors and aliases is rejected: a few nested lines would expand to gigabytes.
    """
    path = directory / ".guild" / "attrs" / name
    try:
        with path.open("rb") as file:
            raw = file.read(_ATTRIBUTE_BYTES + 1)
    except OSError:
        return None
    text = raw.decode("utf-8", "replace").strip()
    if not text or len(raw) > _ATTRIBUTE_BYTES:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        if text.count("&") > 8 and any(
            isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, loader)
        ):
            return None
        return yaml.load(text, loader)
    return None


def inside(directory: Path, path: Path) -> bool:
    """Return whether a path, with links resolved, is inside the run's directory."""
    return path.resolve().is_relative_to(directory.resolve())


def _wrong_field(facts: dict[str, Any]) -> str:
    if not isinstance(facts.get("id"), str) or not re.fullmatch("[0-9a-f]{8,32}", facts["id"]):
        return "id"
    for name in _TEXTS:
        value = facts.get(name, None if name in ("study", "operation") else "")
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            return name
    if not facts["study"].strip() or "/" in facts["study"] or "\0" in facts["study"]:
        return "study"
    for name in ("flags", "versions", "environment"):
        if not isinstance(facts.get(name, None if name == "flags" else {}), dict):
            return name
    for name in ("started", "seed"):
        value = facts.get(name)
        if type(value) is not int or not -_INT64 <= value < _INT64:
            return name
    return ""
