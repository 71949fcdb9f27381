"""The starts of a run, as its journal has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runcatalog.record.journal import SESSIONS
from runcatalog.record.journal.damage import is_session
from runcatalog.record.journal.lines import read_lines


def last_session(directory: Path) -> dict[str, Any] | None:
    """Return the newest entry of ``sessions.jsonl`` that is not damaged, or None."""
    session = None
    for line, _ in read_lines(directory / "journal" / SESSIONS):
        if is_session(line):
            session = line
    return session


def session_flags(directory: Path) -> dict[str, Any]:
    """Return the flags, by name, with which a run was last continued and which differ from those of its first start."""
    flags = (last_session(directory) or {}).get("flags")
    if not isinstance(flags, dict):
        return {}
    return {name: value for name, value in flags.items() if isinstance(value, str | int | float)}
