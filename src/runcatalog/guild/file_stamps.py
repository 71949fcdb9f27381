"""Sizes and modification times of a run's files, to skip unchanged runs in a sync."""

from __future__ import annotations

import os

_FILES = (
    "/result.json",
    "/journal/run.json",
    "/journal/sessions.jsonl",
    "/journal/metrics.jsonl",
    "/journal/parents.json",
    "/.guild/attrs/exit_status",
)


def stamp_of(directory: str) -> str:
    """Return a stamp that changes whenever a file behind the run's row changes."""
    parts = []
    for name in _FILES:
        try:
            stat = os.stat(directory + name)
            parts.append(f"{stat.st_size}.{stat.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


def has_journal(stamp: str) -> bool:
    """Return whether the run has a journal with a session."""
    parts = _parts(stamp)
    return "-" not in (parts["/journal/run.json"], parts["/journal/sessions.jsonl"])


def is_older(stamp: str, other: str) -> bool:
    """Return whether a stamp belongs to an earlier state than another: sessions and points only grow."""
    return _progress(stamp) < _progress(other)


def _progress(stamp: str) -> tuple[int, int, bool]:
    parts = _parts(stamp)
    names = ("/journal/sessions.jsonl", "/journal/metrics.jsonl", "/result.json")
    sessions, points, result = (parts.get(name, "-").partition(".")[0] for name in names)
    return int(sessions.strip("-") or 0), int(points.strip("-") or 0), result not in ("", "-")


def _parts(stamp: str) -> dict[str, str]:
    return dict(zip(_FILES, stamp.split(" "), strict=False))
