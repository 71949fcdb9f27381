"""The difference between a run's code and its commit, as a patch that `git apply` takes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from runcatalog.record.provenance.environment import NOT_CODE, git, untracked
from runcatalog.record.provenance.redact import Redactor

NAME = "dirty.patch"
MAX_FILE_BYTES = 1 << 20  # of an untracked file
MAX_BYTES = 4 << 20  # of the patch

_SECRET_FOLDERS = {".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker"}
_SECRET_NAMES = (
    *("*.env", ".env.*", ".envrc", ".netrc", "_netrc", ".pgpass", ".npmrc", ".pypirc"),
    *(".git-credentials", ".htpasswd", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg"),
    *("*credential*", "*secret*", "*password*", "*passwd*", "*apikey*", "*api_key*", "*api-key*"),
    *("token", ".token", "*.token", "*_token", "*-token", "*token.txt", "*token.json"),
)


def write(project: Path, commit: str, path: Path) -> None:
    """Writes what differs from the commit, new text files included, to ``path``.

    It covers what `environment.commit_facts` counts as a change. Files that look like secrets, by
    their name or by what stands in them, are left out, and so are binary or large new files; the
    patch's first lines name them. Nothing is written if git fails.

    Args:
        project: The project's directory.
        commit: The commit that the patch applies to, from the repository's root.
        path: The file to write.
    """
    hide, left_out = Redactor([os.environ]), dict[str, str]()
    new = []
    for name in untracked(project):
        if why := _not_kept(project / name):
            left_out[name] = why
        else:
            new.append(name)
    with contextlib.suppress(OSError):
        parts, size = [], 0
        for name, part in _changes(project, new):
            secret = hide.holds_secret(part.decode("utf-8", "replace"))
            if why := _looks_secret(name) or ("holds what looks like a secret" if secret else ""):
                left_out[name] = why
            elif size + len(part) > MAX_BYTES:
                left_out[name] = "the patch would be too large"
            else:
                parts.append(part)
                size += len(part)
        head = [
            f"What differed from commit {commit}; `git apply` in the repository's root adds it."
        ]
        head += [f"Left out: {name!r} ({why})" for name, why in left_out.items()]
        text = "".join(f"# {line}\n" for line in head)
        path.write_bytes(text.encode("utf-8", "replace") + b"".join(parts))


def _changes(project: Path, new: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, patch of this file) for what was changed, removed or is new."""
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        index, objects = Path(folder) / "index", Path(folder) / "objects"
        objects.mkdir()
        known = [
            os.path.join(project, line.decode())
            for line in git(
                ["rev-parse", "--git-path", "index", "--git-path", "objects"], project
            ).splitlines()
        ]
        if len(known) != 2:
            return
        shutil.copyfile(known[0], index)
        # New files are entered in a copy of the index, and nothing is written to the repository.
        apart = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": known[1],
        }
        if new:
            add = ["--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-"]
            given = "\0".join(new).encode("utf-8", "surrogateescape")
            git([*add, "--pathspec-file-nul"], project, apart, given)
        # Whatever the user's configuration says, this is the form that `git apply` takes.
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--no-relative"]
        plain += ["--binary", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"]
        text = git(["diff", *plain, "HEAD", "--", ".", *NOT_CODE], project, apart)
    for part in re.split(rb"^(?=diff --git )", text, flags=re.MULTILINE):
        if part:
            # Without renames both names are the same: "a/NAME b/NAME", each in quotes if it has to be.
            names = part.partition(b"\n")[0].removeprefix(b"diff --git ").decode("utf-8", "replace")
            yield names[len(names) // 2 + 1 :].strip('"').removeprefix("b/"), part


def _not_kept(path: Path) -> str:
    """Returns why a new file is left out; "" if it is not."""
    if secret := _looks_secret(path.name):
        return secret
    try:
        if path.lstat().st_size > MAX_FILE_BYTES:
            return f"larger than {MAX_FILE_BYTES >> 20} MiB"
        if path.is_symlink():
            return ""
        return "binary" if b"\0" in path.read_bytes() else ""
    except OSError as error:
        return error.strerror or "cannot be read"


def _looks_secret(name: str) -> str:
    *folders, last = name.lower().split("/")
    suspect = any(fnmatch(last, pattern) for pattern in _SECRET_NAMES)
    return "named like a secret" if suspect or _SECRET_FOLDERS.intersection(folders) else ""
