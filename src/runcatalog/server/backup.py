"""Backups of a group's server in one file, and updates of its tables to a newer MLflow."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from runcatalog.record.errors import UserError
from runcatalog.server import postgresql, processes
from runcatalog.server.folder import Folder

# Python 3.11.4 and later refuse what _unpack refuses too.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_DUMP, _CREDENTIALS, _ARTIFACTS = "database.dump", "admin.credentials", "artifacts"
# The last file of a backup, without which it is a part of one: the SHA-256 of all before it; empty in older backups.
_END = "complete"
_CHUNK = 1 << 20  # bytes


def backup(folder: Folder, path: Path) -> str:
    """Write runs, users and artifacts to a new file that only its owner can read; the server goes on.

    Raises:
        UserError: The file exists, or there is no server.
    """
    if path.exists():
        raise UserError(f"{path} exists: it is not overwritten")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}")
    _check_exists(folder)
    with _database(folder), tempfile.TemporaryDirectory(dir=folder.path) as work:
        # The database comes first: whatever artifact it names is then there to be copied.
        dump = Path(work) / _DUMP
        postgresql.dump(folder, dump)
        new = path.with_name(f".{path.name}.new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(file, "wb") as opened:
                hashed = _Hashed(opened)
                with tarfile.open(fileobj=hashed, mode="w") as archive:  # type: ignore[call-overload]
                    archive.add(dump, _DUMP)
                    archive.add(folder.credentials, _CREDENTIALS)
                    archive.add(folder.artifacts, _ARTIFACTS)
                    digest = hashed.sha256.hexdigest().encode()
                    end = tarfile.TarInfo(_END)
                    end.size = len(digest)
                    archive.addfile(end, io.BytesIO(digest))
                opened.flush()
                os.fsync(opened.fileno())
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)
    return f"{path}: {path.stat().st_size / 1e6:.1f} MB"


def restore(folder: Folder, path: Path) -> str:
    """Replace runs, users and artifacts by those of a backup, in a new folder or in a server's.

    A server that runs is stopped meanwhile. What is replaced is removed only when the backup has been read.

    Raises:
        UserError: The file is no backup, or damaged, or somebody uses the database.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if not tarfile.is_tarfile(path):  # before a new folder is made
        raise UserError(f"{path} is no backup of a server")
    folder.create()
    with processes.locked(folder):
        settings = folder.settings()
        with tempfile.TemporaryDirectory(dir=folder.path) as name, _database(folder):
            work = Path(name)
            _unpack(path, work)
            postgresql.load(folder, work / _DUMP)
            ran = processes.stop_mlflow(folder)
            try:
                postgresql.swap(folder)
            except UserError:
                if ran:
                    processes.launch(folder, settings)
                raise
            folder.artifacts.rename(work / "old")
            (work / _ARTIFACTS).rename(folder.artifacts)
            folder.artifacts.chmod(0o700)
            (work / _CREDENTIALS).chmod(0o600)
            (work / _CREDENTIALS).replace(folder.credentials)
            started = (
                processes.launch(folder, settings) if ran else "`catalog server start` starts it"
            )
    return f"restored; {started}"


def upgrade(folder: Folder, path: Path) -> str:
    """Bring the tables to the installed version of MLflow, after a backup.

    Args:
        folder: The server's folder.
        path: A new file for the backup.

    Raises:
        UserError: It fails; the backup is the state of before.
    """
    line = backup(folder, path)
    with processes.locked(folder):
        settings, ran = folder.settings(), processes.stop_mlflow(folder)
        with _database(folder):
            for words in (
                ["mlflow", "db", "upgrade"],
                ["mlflow.server.auth", "db", "upgrade", "--url"],
            ):
                done = subprocess.run(
                    [sys.executable, "-m", *words, postgresql.url(folder)], cwd=folder.path,
                    env=processes.environment(folder), capture_output=True, text=True,
                )  # fmt: skip
                if done.returncode:
                    text = (done.stderr.strip() or "no message").splitlines()[-1]
                    raise UserError(f"{' '.join(words)} failed: {text}; backup: {path}")
            started = f"; {processes.launch(folder, settings)}" if ran else ""
    return f"tables are those of the installed MLflow; backup: {line}{started}"


def _unpack(path: Path, target: Path) -> None:
    """Unpack a backup.

    Raises:
        UserError: It is none, or has links, devices or paths out of its folder.
    """
    names = (_DUMP, _CREDENTIALS, _ARTIFACTS, _END)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                parts = Path(member.name).parts
                if (
                    not (member.isfile() or member.isdir())
                    or ".." in parts
                    or not parts
                    or parts[0] not in names
                ):
                    raise UserError(f"{path} is no backup of a server: it contains {member.name}")
                archive.extract(member, target, set_attrs=False, **_FILTER)
                if member.name == _END:
                    _check_digest(archive, member)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is no backup of a server ({error})") from None
    except OSError as error:  # such as a full disk
        raise UserError(f"{path} cannot be unpacked ({error})") from None
    if not all((target / name).exists() for name in names):
        raise UserError(f"{path} is no backup of a server")


def _check_digest(archive: tarfile.TarFile, end: tarfile.TarInfo) -> None:
    """Raise tarfile.ReadError if what stands before the end of a backup is not what was written."""
    content, file = archive.extractfile(end), archive.fileobj
    assert content is not None
    assert file is not None
    if not (expected := content.read().decode("ascii", "replace")):
        return
    at, left, sha256 = file.tell(), end.offset, hashlib.sha256()
    file.seek(0)
    while left and (data := file.read(min(left, _CHUNK))):
        sha256.update(data)
        left -= len(data)
    file.seek(at)
    if sha256.hexdigest() != expected:
        raise tarfile.ReadError("it is damaged: its checksum is another one")


class _Hashed:
    """A file that is written, with the SHA-256 of what was written.

    Args:
        file: The file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


@contextlib.contextmanager
def _database(folder: Folder) -> Iterator[None]:
    """Start the database, unless it runs, and stop it again."""
    ran = postgresql.is_running(folder)
    postgresql.start(folder)
    try:
        yield
    finally:
        if not ran and processes.running(folder) is None:
            postgresql.stop(folder)


def _check_exists(folder: Folder) -> None:
    if not folder.exists:
        raise UserError(f"{folder.path} is no folder of a server; --folder names another")
    folder.check_secrets()
