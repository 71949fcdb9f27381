"""The state of a project's files: its commit, and what is not committed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Files that do not change the computation of a run: prose, figures, records, results of benchmarks, where runs may go,
# the output of a command that was kept.
NOT_CODE = (
    ":(exclude)experiments/engines.yml",
    ":(exclude)experiments/records",
    ":(exclude)benchmarks/results",
    ":(exclude,glob)**/*.md",
    ":(exclude,glob)**/*.log",
    ":(exclude,glob)**/nohup.out",
    ":(exclude,glob)**/figures/**",
)
_UNTRACKED = ["ls-files", "--others", "--exclude-standard", "-z", "--", ".", *NOT_CODE]
UNKNOWN = "unknown"  # instead of a digest of uncommitted changes


def commit_facts(project: Path) -> dict[str, str]:
    """Return the commit, and a digest of the uncommitted changes ("" without any, UNKNOWN if git does not tell).

    Only changes that can affect a run count: code and declarations, not Markdown, figures, logs or records. Both values
    are "" outside of a git repository.
    """
    commit = git(["rev-parse", "HEAD"], project).decode().strip()
    if not commit:
        return {"commit": "", "dirty": ""}
    # Without --submodule git says of a submodule only that it was changed, whatever was changed there.
    diff = ["diff", "HEAD", "--binary", "--no-ext-diff", "--submodule=diff"]
    changed = git_or_none([*diff, "--", ".", *NOT_CODE], project)
    listing = git_or_none(_UNTRACKED, project)
    if changed is None or listing is None:
        return {"commit": commit, "dirty": UNKNOWN}
    digest, new = hashlib.sha256(changed), _names(listing)
    for name in new:
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape"))
        with contextlib.suppress(OSError):
            if (project / name).stat().st_size < 1 << 20:
                digest.update((project / name).read_bytes())
    return {"commit": commit, "dirty": digest.hexdigest()[:12] if changed or new else ""}


def refused_repository(project: Path) -> str:
    """Return the folder of a repository that git refuses since it is another user's, as in many containers; else ""."""
    done = _run(["rev-parse"], project)
    refused = re.search(rb"dubious ownership in repository at '(.+)'", done.stderr if done else b"")
    return os.fsdecode(refused[1]) if refused else ""


def untracked(project: Path) -> list[str]:
    """Return the files that git neither tracks nor ignores and that can affect a run, sorted.

    Raises:
        OSError: Git fails.
    """
    return _names(git(_UNTRACKED, project, check=True))


def _names(listing: bytes) -> list[str]:
    return sorted(map(os.fsdecode, filter(None, listing.split(b"\0"))))


def git(
    arguments: Sequence[str],
    project: Path,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
    *,
    check: bool = False,
) -> bytes:
    """Return the output of a git command; b"" if it fails.

    Args:
        arguments: Arguments after ``git``.
        project: Working directory.
        environment: Environment variables in addition to this process's.
        given: Standard input.
        check: Whether a failure is an error.

    Raises:
        OSError: It fails, with `check`.
    """
    output = git_or_none(arguments, project, environment, given)
    if check and output is None:
        raise OSError(f"git {arguments[0]} failed")
    return output or b""


def git_or_none(
    arguments: Sequence[str],
    project: Path,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes | None:
    """Return the output of a git command as :func:`git`; None if it fails."""
    done = _run(arguments, project, environment, given)
    return None if done is None or done.returncode else done.stdout


def _run(
    arguments: Sequence[str],
    project: Path,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> subprocess.CompletedProcess[bytes] | None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            ["git", *arguments],
            cwd=project,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(environment or {})},
            input=given,
            capture_output=True,
            timeout=20,
        )
    return None
