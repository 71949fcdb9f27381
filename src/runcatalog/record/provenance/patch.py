"""The difference between a run's code and its commit, as a patch for `git apply`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from runcatalog.record.provenance.git import NOT_CODE, git, untracked
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

_CHANGED_SUBMODULE = re.compile(rb"^\+Subproject commit [0-9a-f]+-dirty$", re.MULTILINE)
# Files in which values stand without quotes.
_CONFIG_SUFFIXES = {".yml", ".yaml", ".ini", ".cfg", ".conf", ".properties", ".sh", ".bash", ".zsh"}


def write(project: Path, commit: str, path: Path) -> None:
    """Write the uncommitted changes, including new text files, to ``path``.

    Changes are as in `git.commit_facts`. Files that look like secrets, by name or content, and binary or large
    new files, and changes inside of a submodule, are left out; the patch's first lines name them. If git fails, nothing
    is written.

    Args:
        project: The project's directory.
        commit: The commit to which the patch applies.
        path: The file to write.
    """
    hide, left_out = Redactor([os.environ]), dict[str, str]()
    # Without some of the changes, a patch would seem to be whole. ValueError: a line break in the project's path.
    with contextlib.suppress(OSError, ValueError):
        new = []
        for name in untracked(project):
            if reason := _reason_left_out(project / name):
                left_out[name] = reason
            else:
                new.append(name)
        parts, size = [], 0
        for name, part in _changes(project, new):
            is_config = Path(name).suffix.lower() in _CONFIG_SUFFIXES
            secret = hide.contains_secret(
                part.decode("utf-8", "surrogateescape"), is_config=is_config
            )
            reason = _looks_secret(name) or (
                "contains text that looks like a secret" if secret else ""
            )
            if _CHANGED_SUBMODULE.search(part):
                left_out[name] = "changes in a submodule"
            if reason:
                left_out[name] = reason
            elif size + len(part) > MAX_BYTES:
                left_out[name] = "the patch would be too large"
            else:
                parts.append(part)
                size += len(part)
        head = [
            f"Changes after commit {commit}; `git apply` in the repository's root applies them."
        ]
        head += [f"Left out: {hide.known(name)!r} ({reason})" for name, reason in left_out.items()]
        text = "".join(f"# {line}\n" for line in head)
        path.write_bytes(text.encode("utf-8", "replace") + b"".join(parts))


def _changes(project: Path, new: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, patch) of every changed, removed or new file.

    Raises:
        OSError: Git fails.
    """
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        index, objects = Path(folder) / "index", Path(folder) / "objects"
        objects.mkdir()
        asked = ["rev-parse", "--git-path", "index", "--git-path", "objects"]
        lines = git(asked, project, check=True).decode().splitlines()
        known_index, known_objects = (os.path.join(project, line) for line in lines)
        shutil.copyfile(known_index, index)
        # New files are added to a copy of the index, so that nothing is written to the repository.
        separate = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": known_objects,
        }
        if new:
            add = ["--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-"]
            given = "\0".join(new).encode("utf-8", "surrogateescape")
            git([*add, "--pathspec-file-nul"], project, separate, given, check=True)
        # The form that `git apply` accepts, independent of the user's configuration.
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--no-relative"]
        plain += ["--binary", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"]
        plain += ["--unified=3", "--submodule=short"]
        text = git(["diff", *plain, "HEAD", "--", ".", *NOT_CODE], project, separate, check=True)
    for part in re.split(rb"^(?=diff --git )", text, flags=re.MULTILINE):
        if part:
            # Without renames both names are equal: "a/NAME b/NAME", in quotes if necessary.
            names = part.partition(b"\n")[0].removeprefix(b"diff --git ").decode("utf-8", "replace")
            yield names[len(names) // 2 + 1 :].strip('"').removeprefix("b/"), part


def _reason_left_out(path: Path) -> str:
    """Return the reason for leaving out a new file; "" to include it."""
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
