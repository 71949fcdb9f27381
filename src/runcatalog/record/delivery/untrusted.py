"""Run directories may come from anywhere: what is in one is checked before anything is made of it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from runcatalog.record import journal
from runcatalog.record.errors import UserError

_TEXTS = ("study", "operation", "command", "commit", "dirty", "machine", "host", "gpu", "host_cpu")
_LONGEST = 4000  # characters; a longer one is none of these
_ATTRIBUTE_BYTES = 1 << 20
_WHOLE = 1 << 63  # what a database holds as a whole number


def checked_facts(directory: Path) -> dict[str, Any]:
    """Returns the facts of a run, `journal/run.json`.

    Raises:
        UserError: There are none, or they are not what record writes.
    """
    where = directory / "journal" / "run.json"
    if not inside(directory, where):
        raise UserError(f"{where}: leads out of the run's directory: refused")
    try:
        size = where.stat().st_size
    except OSError:
        raise UserError(f"{directory}: no run there (journal/run.json cannot be read)") from None
    if size > journal.MAX_BYTES:
        raise UserError(f"{where}: {size} bytes; at most {journal.MAX_BYTES} are read")
    facts = journal.read_json(where)
    if facts is None:
        raise UserError(f"{directory}: no run there (journal/run.json cannot be read)")
    wrong = _wrong_field(facts)
    if wrong:
        raise UserError(f"{where}: {wrong!r} is missing or not what a run has there: refused")
    return facts


def guild_attribute(directory: Path, name: str) -> Any:
    """Returns an attribute that Guild keeps of a run; None without it, or if it is not what Guild writes.

    Guild writes YAML. A few lines with aliases of aliases would unfold to gigabytes; they are not read.
    """
    path = directory / ".guild" / "attrs" / name
    try:
        with path.open("rb") as file:
            raw = file.read(_ATTRIBUTE_BYTES + 1)
    except OSError:
        return None
    shown = raw.decode("utf-8", "replace").strip()
    if not shown or len(raw) > _ATTRIBUTE_BYTES:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", shown):
        return int(shown)
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        if shown.count("&") > 8 and any(
            isinstance(event, yaml.AliasEvent) for event in yaml.parse(shown, loader)
        ):
            return None
        return yaml.load(shown, loader)
    return None


def inside(directory: Path, path: Path) -> bool:
    """Whether a path that may be a link stays in the run's directory."""
    return path.resolve().is_relative_to(directory.resolve())


def _wrong_field(facts: dict[str, Any]) -> str:
    if not isinstance(facts.get("id"), str) or not re.fullmatch("[0-9a-f]{8,32}", facts["id"]):
        return "id"
    for name in _TEXTS:
        value = facts.get(name, None if name in ("study", "operation") else "")
        if not isinstance(value, str) or len(value) > _LONGEST:
            return name
    if not facts["study"].strip() or "/" in facts["study"] or "\0" in facts["study"]:
        return "study"
    for name in ("flags", "versions", "environment"):
        if not isinstance(facts.get(name, None if name == "flags" else {}), dict):
            return name
    for name in ("started", "seed"):
        value = facts.get(name)
        if type(value) is not int or not -_WHOLE <= value < _WHOLE:
            return name
    return ""
