"""The files of a server, without one that runs."""

import os
import stat

import pytest

from runcatalog.record.errors import UserError
from runcatalog.server.folder import (
    Folder,
    Settings,
    credentials_text,
    read_credentials,
    read_secret,
    write_secret,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A new server's folder, of an ordinary user."""
    monkeypatch.setattr(os, "geteuid", os.getuid)
    folder = Folder(tmp_path / "server")
    folder.account = ""
    folder.create()
    return folder


def test_secrets_are_created_once_and_readable_by_their_owner_alone(folder):
    secrets = (folder.pgpass, folder.session_key, folder.credentials)
    before = [path.read_text() for path in secrets]
    folder.create()
    assert [path.read_text() for path in secrets] == before
    assert len(set(before)) == 3
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.password("mlflow") != folder.password("postgres")
    for path in secrets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for mode in (0o640, 0o604, 0o620):
            path.chmod(mode)
            with pytest.raises(UserError, match="chmod 600"):
                folder.check_secrets()
        path.chmod(0o600)


def test_a_secret_is_not_overwritten(tmp_path):
    path = tmp_path / "secret"
    write_secret(path, "first")
    with pytest.raises(UserError, match="not overwritten"):
        write_secret(path, "second")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="not overwritten"):
        write_secret(tmp_path / "link", "third")
    assert read_secret(path) == "first"


def test_credentials_are_mlflows(tmp_path, monkeypatch):

    (tmp_path / ".mlflow").mkdir()
    path = tmp_path / ".mlflow" / "credentials"
    write_secret(path, credentials_text("ada", "a-password_with%signs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    assert read_credentials(path) == ("ada", "a-password_with%signs")
    path.write_text("[mlflow]\n")
    with pytest.raises(UserError, match="no name and password"):
        read_credentials(path)


def test_files_of_others_are_not_taken_for_a_server(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    folder = Folder(tmp_path)
    folder.account = ""
    with pytest.raises(UserError, match="other files"):
        folder.create()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_settings_stay_and_damaged_ones_are_named(folder):
    settings = Settings(5001, 3, "mlflow.lab")
    folder.keep(settings)
    assert folder.settings() == settings
    (folder.path / "settings.json").write_text('{"colour": 1}')
    with pytest.raises(UserError, match="damaged"):
        folder.settings()
