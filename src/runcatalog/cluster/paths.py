"""Paths of a run on two machines: placeholders stand for them on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping

RUN, HOME, PROJECT, SUBMITTED, PYTHON = (
    f"\x01{n}\x01" for n in ("run", "home", "project", "submitted", "python")
)


def with_placeholders(text: str, paths: Mapping[str, str]) -> str:
    """Return a text with placeholders for the paths of this machine.

    Args:
        text: A word of a command, or the value of a variable.
        paths: {path: placeholder}.
    """
    for path in sorted(paths, key=len, reverse=True):
        # Not the end of another path: /mnt/lab is not in /lab.
        text = re.sub(rf"(?<![\w.~-]){re.escape(path)}(?=$|[/:,;'\" ])", paths[path], text)
    return text


def with_paths(text: str, paths: Mapping[str, str]) -> str:
    """Return a text with the paths of this machine for placeholders.

    Args:
        text: See :func:`with_placeholders`.
        paths: {placeholder: path}.
    """
    for placeholder, path in paths.items():
        text = text.replace(placeholder, path)
    return text


class Output:
    """What a run prints, in pieces, with the paths of this machine for those of the run's machine."""

    def __init__(self) -> None:
        self._pending = b""  # the end of the last piece, with which a path may begin
        self._paths: Mapping[bytes, bytes] = {}

    def take(self, piece: bytes, paths: Mapping[bytes, bytes]) -> bytes:
        """Return a piece with other paths; its end waits for the next one where a path may begin there.

        Args:
            piece: What has been printed since the last one.
            paths: {path there: path here}.
        """
        self._pending += piece
        self._paths = paths
        longest = max(map(len, paths), default=0)
        starts = range(max(0, len(self._pending) - longest + 1), len(self._pending))
        cut = (i for i in starts if _begins(self._pending[i:], paths))
        return self._taken(next(cut, len(self._pending)))

    def rest(self) -> bytes:
        """Return what still waits, after the last piece."""
        return self._taken(len(self._pending))

    def _taken(self, end: int) -> bytes:
        """Return the pending text with other paths for those that begin before a position, and keep the rest."""
        text, paths, parts, at = self._pending, self._paths, [], 0
        known = b"|".join(map(re.escape, sorted(paths, key=len, reverse=True)))
        for match in re.finditer(known, text) if known else ():
            if match.start() >= end:
                break
            parts += [text[at : match.start()], paths[match[0]]]
            at = match.end()
        end = max(end, at)
        self._pending = text[end:]
        return b"".join([*parts, text[at:end]])


def _begins(text: bytes, paths: Mapping[bytes, bytes]) -> bool:
    """Return whether a text is the beginning of a path, not a whole one."""
    return any(len(text) < len(path) and path.startswith(text) for path in paths)
