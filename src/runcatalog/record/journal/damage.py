"""Damaged and missing lines of the journal's files, and fields of a wrong type."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any

from runcatalog.record.journal import METRICS, SESSIONS
from runcatalog.record.journal.lines import Damage, find_damage
from runcatalog.record.journal.metrics import is_metrics


def damage_of(path: Path) -> Damage:
    """Return which lines of a JSON lines file are damaged or missing; `Damage()` for a whole or missing file.

    Args:
        path: The file; in a file with the name of the journal's metrics or sessions, fields are checked too.
    """
    return find_damage(path, _USABLE.get(path.name, bool))


def is_session(record: dict[str, Any]) -> bool:
    """Return whether a line of ``sessions.jsonl`` has the fields of a session, of the right types."""
    whole = all(type(record.get(name)) is int for name in ("session", "started", "pid"))
    optional: dict[str, type | UnionType] = {
        "offset": int,
        "earlier_seconds": int | float,
        "pid_started": int | float,
    }
    optional |= {"host": str, "boot": str, "pid_namespace": str}
    return whole and all(
        isinstance(record[name], kind) for name, kind in optional.items() if name in record
    )


_USABLE = {METRICS: is_metrics, SESSIONS: is_session}
