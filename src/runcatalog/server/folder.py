"""The folder of a group's server: settings, secrets, database, artifacts."""

from __future__ import annotations

import configparser
import io
import os
import pwd
import re
import secrets
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import read_json, write_json

ADMIN = "admin"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_ACCOUNT = "postgres"  # runs PostgreSQL, which refuses to run as root


@dataclass(frozen=True)
class Settings:
    """Settings of a server; they stay for its next start.

    Attributes:
        port: Port on the loopback interface.
        workers: Processes that answer requests.
        host: Name under which a reverse proxy serves it, "" without one.
    """

    port: int = 5000
    workers: int = min(8, max(2, os.cpu_count() or 2))
    host: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise UserError(f"--port must be between 1 and 65535, not {self.port}")
        if not 1 <= self.workers <= 64:
            raise UserError(f"--workers must be between 1 and 64, not {self.workers}")
        if self.host and not _HOST.fullmatch(self.host):
            raise UserError(f"--host-name {self.host!r} is no name of a host, such as mlflow.lab")


class Folder:
    """The files of a server.

    Args:
        path: The folder; it need not exist.

    Attributes:
        account: The account that PostgreSQL runs under; "" for the user's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.account = _ACCOUNT if os.geteuid() == 0 else ""
        self.database = self.path / "database"
        self.artifacts = self.path / "artifacts"
        self.log = self.path / "mlflow.log"
        self.state = self.path / "mlflow.json"
        self.lock = self.path / "lock"
        self.pgpass = self.path / "pgpass"
        self.credentials = self.path / "admin.credentials"
        self.session_key = self.path / "session.key"
        self._settings = self.path / "settings.json"

    @property
    def exists(self) -> bool:
        """Whether a server was started there."""
        return self.credentials.exists()

    def create(self) -> None:
        """Make the folder and its secrets; those that exist stay.

        Raises:
            UserError: There are other files in it, or PostgreSQL's account is missing or cannot enter it.
        """
        if self.account and _user(self.account) is None:
            raise UserError(
                f"PostgreSQL does not run as root, and there is no account {self.account}: "
                "start the server as an ordinary user"
            )
        if self.path.is_dir() and not self.lock.exists() and any(self.path.iterdir()):
            raise UserError(
                f"{self.path} has other files: --folder names a new or a server's own folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o711 if self.account else 0o700)
        self.lock.touch(mode=0o600)
        self.artifacts.mkdir(exist_ok=True, mode=0o700)
        self.database.mkdir(exist_ok=True, mode=0o700)
        if self.account:
            user = _user(self.account)
            assert user is not None
            os.chown(self.database, user.pw_uid, user.pw_gid)
            closed = [p for p in self.path.parents if not p.stat().st_mode & stat.S_IXOTH]
            if closed:
                raise UserError(
                    f"the account {self.account} cannot enter {closed[-1]}: name another place with --folder"
                )
        if not self.pgpass.exists():
            lines = [
                f"*:*:*:{name}:{secrets.token_urlsafe(24)}\n" for name in ("postgres", "mlflow")
            ]
            write_secret(self.pgpass, "".join(lines))
        if not self.session_key.exists():
            write_secret(self.session_key, secrets.token_urlsafe(32))
        if not self.credentials.exists():
            write_secret(self.credentials, credentials_text(ADMIN, secrets.token_urlsafe(24)))
        self.check_secrets()

    def check_secrets(self) -> None:
        """Check that nobody else can read a secret.

        Raises:
            UserError: Somebody can, or one is missing.
        """
        for path in (self.pgpass, self.session_key, self.credentials):
            read_secret(path)

    def password(self, role: str) -> str:
        """Return the password of a role of the database."""
        entries = [line.split(":") for line in read_secret(self.pgpass).splitlines()]
        passwords = {entry[3]: entry[4] for entry in entries if len(entry) == 5}
        if role not in passwords:
            raise UserError(f"{self.pgpass}: no line for {role}")
        return passwords[role]

    def settings(self) -> Settings:
        """Return the settings of the last start.

        Raises:
            UserError: The file is damaged.
        """
        if not self._settings.exists():
            return Settings()
        try:
            return Settings(**(read_json(self._settings) or {}))
        except TypeError:
            raise UserError(
                f"{self._settings}: damaged; remove it and give the options again"
            ) from None

    def keep(self, settings: Settings) -> None:
        """Keep settings for the next start."""
        write_json(self._settings, asdict(settings))


def default_folder() -> Path:
    """Return where the server's files are unless --folder says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/runcatalog-server")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "runcatalog-server"


def write_secret(path: Path, text: str) -> None:
    """Write a new file that only its owner can read.

    Raises:
        UserError: The file exists.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists: it is not overwritten") from None
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def read_secret(path: Path) -> str:
    """Return the text of a file that only its owner can read.

    Raises:
        UserError: Others can read or change it, or it cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode, owner = os.fstat(file.fileno()).st_mode, os.fstat(file.fileno()).st_uid
            text = file.read()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; `catalog server start` makes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    if mode & 0o077 or owner != os.geteuid():
        raise UserError(f"{path} is a secret that others can read or change: chmod 600 {path}")
    return text


def credentials_text(name: str, password: str) -> str:
    """Return a file of credentials as MLflow's client reads it from ~/.mlflow/credentials."""
    return f"[mlflow]\nmlflow_tracking_username = {name}\nmlflow_tracking_password = {password}\n"


def read_credentials(path: Path) -> tuple[str, str]:
    """Return name and password from such a file.

    Raises:
        UserError: Others can read it, or it is damaged.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_file(io.StringIO(read_secret(path)))
        section = parser["mlflow"]
        return section["mlflow_tracking_username"], section["mlflow_tracking_password"]
    except (configparser.Error, KeyError):
        raise UserError(f"{path}: no name and password in it") from None


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
