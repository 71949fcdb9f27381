"""Sizes and times of a run's files, by which a sync sees that there is nothing new to send."""

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


def of(where: str) -> str:
    """Return what changes when a file of a run's directory changes that its row is made of."""
    parts = []
    for name in _FILES:
        try:
            stat = os.stat(where + name)
            parts.append(f"{stat.st_size}.{stat.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


def has_journal(stamp: str) -> bool:
    """Return whether the script came as far as recording."""
    parts = _parts(stamp)
    return "-" not in (parts["/journal/run.json"], parts["/journal/sessions.jsonl"])


def is_older(stamp: str, other: str) -> bool:
    """Return whether files are an early copy of those of another stamp: sessions and points only grow."""
    return _progress(stamp) < _progress(other)


def _progress(stamp: str) -> tuple[int, int, bool]:
    parts = _parts(stamp)
    names = ("/journal/sessions.jsonl", "/journal/metrics.jsonl", "/result.json")
    sessions, points, result = (parts.get(name, "-").partition(".")[0] for name in names)
    return int(sessions.strip("-") or 0), int(points.strip("-") or 0), result not in ("", "-")


def _parts(stamp: str) -> dict[str, str]:
    return dict(zip(_FILES, stamp.split(" "), strict=False))
