"""An MLflow database in SQLite: its file, and how long to wait for another process that writes to it."""

from __future__ import annotations

from pathlib import Path

BUSY = 20.0  # s to wait for a writer, as MLflow does


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI; None for anything else, a database in memory included."""
    if not uri.startswith("sqlite:///") or "?" in uri:
        return None
    name = uri.removeprefix("sqlite:///")
    return Path(name) if name and not name.startswith((":", "file:")) else None
