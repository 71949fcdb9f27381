"""Backups of a server, without one that runs."""

import contextlib
import gzip
import tarfile

import pytest

from runcatalog.record.errors import UserError
from runcatalog.server import backup, postgresql, processes
from runcatalog.server.backup import _unpack
from runcatalog.server.folder import Folder, write_secret


@pytest.mark.parametrize("name", [".", "./other", "../database.dump", "/database.dump"])
def test_another_archive_is_no_backup(tmp_path, name):
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match="is no backup of a server"):
        _unpack(path, tmp_path)


def test_a_file_that_is_no_archive_makes_no_server(tmp_path):
    path, folder = tmp_path / "guild.yml", Folder(tmp_path / "server")
    path.write_text("train: {main: train}")
    with pytest.raises(UserError, match="is no backup of a server"):
        backup.restore(folder, path)
    with pytest.raises(UserError, match="--folder names another"):
        processes.stop(folder)
    assert not folder.path.exists()


def test_damage_inside_of_a_file_is_found(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "server")
    folder.artifacts.mkdir(parents=True)
    (folder.artifacts / "weights").write_bytes(b"w" * 5000)
    for path in (folder.credentials, folder.pgpass, folder.session_key):
        write_secret(path, "secret")
    monkeypatch.setattr(backup, "_database", lambda folder: contextlib.nullcontext())
    monkeypatch.setattr(postgresql, "dump", lambda folder, path: path.write_bytes(b"dump"))
    path = tmp_path / "whole.tar"
    backup.backup(folder, path)
    content = path.read_bytes()
    packed = gzip.compress(content)
    flipped = content.replace(b"w" * 5000, b"w" * 4999 + b"x")
    for name, data in {"a": content, "b": packed}.items():
        (tmp_path / name).write_bytes(data)
        _unpack(tmp_path / name, tmp_path / f"of {name}")
        assert (tmp_path / f"of {name}/artifacts/weights").read_bytes() == b"w" * 5000
    for name, data in {
        "c": flipped,
        "d": gzip.compress(flipped),
        "e": packed[: len(packed) // 2],
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="is no backup of a server"):
            _unpack(tmp_path / name, tmp_path / f"of {name}")
