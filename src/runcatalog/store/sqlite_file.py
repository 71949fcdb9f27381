"""An MLflow database in SQLite: its file, and the time to wait for another writer."""

from __future__ import annotations

from pathlib import Path

BUSY = 20.0  # s to wait for a writer, as MLflow does


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI; None for any other URI and for a database in memory."""
    if not uri.startswith("sqlite:///") or "?" in uri:
        return None
    name = uri.removeprefix("sqlite:///")
    return Path(name) if name and not name.startswith((":", "file:")) else None
