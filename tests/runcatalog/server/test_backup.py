"""Backups of a server, without one that runs."""

import tarfile

import pytest

from runcatalog.record.errors import UserError
from runcatalog.server.backup import _unpack


@pytest.mark.parametrize("name", [".", "./other", "../database.dump", "/database.dump"])
def test_another_archive_is_no_backup(tmp_path, name):
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match="is no backup of a server"):
        _unpack(path, tmp_path)
