"""Log and changed files between two commits, from git."""

from __future__ import annotations

import re
from pathlib import Path

from runcatalog.record.provenance.git import NOT_CODE, git
from runcatalog.text import terminal

LINES = 12  # most lines of a log or list of files that are shown
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def between(root: Path, first: str, second: str) -> list[str]:
    """Return the log and the changed files between two commits, as lines.

    Prose, records and figures are left out: they do not change what a run computes.

    Args:
        root: Folder of the project, in its repository.
        first: Commit of A.
        second: Commit of B.
    """
    for commit in (first, second):
        if not _COMMIT.fullmatch(commit):
            return [f"{terminal.clean(commit)[:40] or 'an empty text'} is not a commit"]
        if not git(["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"], root):
            return [f"{commit[:12]} is not in this repository; `git fetch` may bring it"]
    lines = []
    for old, new, word in ((first, second, "to B"), (second, first, "only in A")):
        log = _lines(root, "log", "--oneline", "--no-decorate", f"{old}..{new}")
        if log:
            lines.append(f"{len(log)} commit{'s' * (len(log) != 1)} {word}:")
            lines += [f"  {terminal.clean(line)}" for line in _first(log)]
    stat = _lines(root, "diff", "--no-ext-diff", "--stat=100", first, second, "--", ".", *NOT_CODE)
    if not stat:
        return [*lines, "the same code: only prose, records or figures changed"]
    return [*lines, f"{stat[-1].strip()}:", *(f" {line}" for line in _first(stat[:-1]))]


def _lines(root: Path, *arguments: str) -> list[str]:
    return git(["--no-pager", *arguments], root).decode(errors="replace").splitlines()


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= LINES else [*lines[:LINES], f"  … {len(lines) - LINES} more"]
