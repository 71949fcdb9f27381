"""Checkouts of earlier commits, next to the project's own working tree."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from runcatalog.model.errors import CatalogError


def full_id(root: Path, commit: str) -> str:
    """Return all 40 digits of a commit.

    Raises:
        CatalogError: The project is not in a git repository, git refuses it, or it lacks the commit.
    """
    full = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if full.returncode:
        why = full.stderr.partition("\n")[0].removeprefix("fatal: ")
        lacking = "not in this repository (a shallow clone gets it with `git fetch --unshallow`)"
        raise CatalogError(
            f"commit {commit[:12]}: {why}" if why else f"commit {commit[:12]} is {lacking}"
        )
    return full.stdout.strip()


@contextlib.contextmanager
def checked_out(root: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a worktree of its own, which is removed afterwards.

    Args:
        root: The project's folder.
        commit: The commit; its first digits are enough.
        folder: Where worktrees are made.

    Yields:
        The project's folder in the worktree.

    Raises:
        CatalogError: The project is not in a git repository, the repository lacks the commit, or git cannot write
            its files.
    """
    full = full_id(root, commit)
    inside = _git(root, "rev-parse", "--show-prefix").stdout.strip()
    _remove_abandoned(root, folder)
    tree = folder / f"{full[:12]}-{os.getpid()}"  # another process may have checked it out, too
    _git(root, "worktree", "remove", "--force", str(tree))
    added = _git(root, "worktree", "add", "--detach", "--force", str(tree), full)
    if added.returncode:
        reason = added.stderr.strip().rpartition("\n")[2]
        raise CatalogError(f"git cannot check {commit[:12]} out into {tree}: {reason}")
    try:
        yield tree / inside
    finally:
        _git(root, "worktree", "remove", "--force", str(tree))


def _remove_abandoned(root: Path, folder: Path) -> None:
    """Remove the worktrees of processes that were killed."""
    for tree in folder.glob("*-*"):
        pid = tree.name.rpartition("-")[2]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            _git(root, "worktree", "remove", "--force", str(tree))


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
