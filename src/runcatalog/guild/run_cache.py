"""What Guild's files say of each run, kept from one sync to the next: a run that has not changed is not read again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record import journal

if TYPE_CHECKING:
    from runcatalog.guild.runs import GuildRun

FORMAT = 3  # changes when a kept field gets another meaning
# Fields of GuildRun that are made of the files in _PARTS alone.
FIELDS = (
    *("operation", "proto_operation", "origin", "proto_origin", "label", "started"),
    *("wall_seconds", "parents", "trials", "search", "objective"),
    *("space", "method", "stamp"),
)
# A file that comes, goes or is replaced changes its folder, and a session that begins or ends is a line in the
# journal; Guild writes a label in place. What it writes in place when it starts a run again comes with a new lock.
_PARTS = ("", "/.guild", "/.guild/attrs", "/.guild/attrs/label")
_PARTS += ("/journal", "/journal/sessions.jsonl")
_SETTLED = (
    2_000_000_000  # ns; a file that changed just now may change again within its time's precision
)


class Cache:
    """The kept fields of runs.

    Args:
        path: Where they are kept; nothing is known if that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = journal.read_json(path) or {}
        known = content.get("runs") if content.get("format") == FORMAT else None
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._stamps: dict[str, str] = {}
        self._filled = 0

    def fill(self, run: GuildRun) -> bool:
        """Gives a run the fields that were kept of it; False if it was not known or has changed."""
        stamp = self._stamps[run.where] = _stamp(run.where)
        kept = self._known.get(run.where)
        if not stamp or kept is None or kept[0] != stamp:
            return False
        self._filled += 1
        run.__dict__.update(zip(FIELDS, kept[1:], strict=True))  # as cached_property does
        return True

    def keep(self, runs: Sequence[GuildRun]) -> None:
        """Keeps the fields of all runs, those of no others."""
        if self._filled == len(runs) == len(self._known):
            return
        content = {}
        for run in runs:
            stamp = self._stamps.get(run.where)
            if stamp:
                content[run.where] = [stamp, *(getattr(run, name) for name in FIELDS)]
        shown = json.dumps({"format": FORMAT, "runs": content}, separators=(",", ":"))
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # then the next sync reads all again
            temporary.write_text(shown, encoding="utf-8")
            os.replace(temporary, self._path)


def _stamp(where: str) -> str:
    """Times of what the fields are made of; "" if some of it changed just now."""
    newest, parts = 0, []
    for part in _PARTS:
        try:
            changed = os.stat(where + part).st_mtime_ns
        except OSError:
            changed = 0
        newest = max(newest, changed)
        parts.append(changed)
    return "" if newest > time.time_ns() - _SETTLED else " ".join(map(str, parts))
