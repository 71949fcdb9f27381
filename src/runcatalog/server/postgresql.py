"""The server's own PostgreSQL: reached through a socket in its folder, with a password; no port is opened."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record.errors import UserError
from runcatalog.server.folder import Folder

if TYPE_CHECKING:
    import psycopg

NAME = "mlflow"  # of the database and of its owner
_NEW, _OLD = f"{NAME}_new", f"{NAME}_old"
_SUPERUSER = "postgres"
_DEBIAN = Path("/usr/lib/postgresql")  # each major version has a folder there
_SOCKET_BYTES = 107  # longest path of a socket, in bytes, on Linux
_SOCKET = ".s.PGSQL.5432"
# Each worker process keeps up to three pools of 15 connections.
_SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "400",
    "password_encryption": "'scram-sha-256'",
    "unix_socket_permissions": "0700",
    # Of a batch of points one index entry per point is written: more room between checkpoints saves writes.
    "max_wal_size": "'4GB'",
    "wal_compression": "on",
}
_WAIT = "120"  # s for a start or a stop


def url(folder: Folder, database: str = NAME) -> str:
    """Return the database's URL, without the password, which libpq reads from $PGPASSFILE."""
    sockets = urllib.parse.quote(str(_sockets(folder)), safe="/")
    return f"postgresql://{NAME}@/{database}?host={sockets}"


def start(folder: Folder) -> None:
    """Start the database, unless it runs; create it at need.

    Raises:
        UserError: PostgreSQL is not installed, or does not start.
    """
    if len(os.fsencode(_sockets(folder) / _SOCKET)) > _SOCKET_BYTES:
        raise UserError(f"{folder.path}: too long a path for a socket; name another with --folder")
    data = _data(folder)
    if not data.exists():
        _initialize(folder)
    if is_running(folder):
        return
    _sockets(folder).mkdir(exist_ok=True, mode=0o700)
    _give(folder, _sockets(folder))
    log = folder.database / "log.txt"
    try:
        _run(folder, "pg_ctl", "-D", data, "-l", log, "-w", "-t", _WAIT, "start")
    except UserError:
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        raise UserError(
            f"PostgreSQL did not start: {lines[-1] if lines else 'no log'} ({log})"
        ) from None
    _create(folder)


def stop(folder: Folder) -> bool:
    """Stop the database; return whether it ran."""
    if not is_running(folder):
        return False
    _run(folder, "pg_ctl", "-D", _data(folder), "-m", "fast", "-w", "-t", _WAIT, "stop")
    return True


def is_running(folder: Folder) -> bool:
    """Return whether the database's processes run."""
    if not (_data(folder) / "PG_VERSION").exists():
        return False
    return _try(folder, "pg_ctl", "-D", _data(folder), "status").returncode == 0


def connect(folder: Folder, database: str = NAME, role: str = NAME) -> psycopg.Connection[Any]:
    """Return a connection that commits each statement.

    Raises:
        UserError: The database does not answer, or its driver is missing.
    """
    try:
        import psycopg
    except ImportError as error:
        raise UserError(
            f"{error}: install runcatalog with its extra `server` (docs/server.md)"
        ) from None
    try:
        return psycopg.connect(
            host=str(_sockets(folder)), user=role, dbname=database, password=folder.password(role),
            autocommit=True, connect_timeout=10,
        )  # fmt: skip
    except psycopg.OperationalError as error:
        raise UserError(f"the database does not answer ({' '.join(str(error).split())})") from None


def dump(folder: Folder, path: Path) -> None:
    """Write the database to a new file, as of one moment; others may write meanwhile."""
    _client(folder, "pg_dump", "--format=custom", "--no-owner", f"--file={path}", NAME)


def load(folder: Folder, path: Path) -> None:
    """Read a dump into a database beside the server's own, for `swap`.

    Raises:
        UserError: The dump is damaged, or of a newer PostgreSQL.
    """
    with connect(folder, "postgres") as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {_NEW}")
        connection.execute(f"CREATE DATABASE {_NEW}")
        try:
            _client(folder, "pg_restore", "--no-owner", "--exit-on-error", f"--dbname={_NEW}", path)
        except UserError:
            connection.execute(f"DROP DATABASE {_NEW}")
            raise


def swap(folder: Folder) -> None:
    """Replace the database by the loaded one.

    Raises:
        UserError: Somebody uses it, such as a backup; nothing is replaced.
    """
    from psycopg.errors import ObjectInUse

    with connect(folder, "postgres") as connection:
        try:
            connection.execute(f"ALTER DATABASE {NAME} RENAME TO {_OLD}")
        except ObjectInUse:
            connection.execute(f"DROP DATABASE {_NEW}")
            raise UserError(
                "nothing is restored: another program uses the database, such as a backup"
            ) from None
        connection.execute(f"ALTER DATABASE {_NEW} RENAME TO {NAME}")
        connection.execute(f"DROP DATABASE {_OLD}")


def _initialize(folder: Folder) -> None:
    new, password = folder.database / "data.new", folder.database / "password.new"
    shutil.rmtree(new, ignore_errors=True)
    password.unlink(missing_ok=True)
    file = os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(folder.password(_SUPERUSER))
    _give(folder, password)
    try:
        _run(
            folder, "initdb", "-D", new, "-U", _SUPERUSER, "-A", "scram-sha-256",
            "--pwfile", password, "-E", "UTF8", "--locale=C.UTF-8", "--data-checksums",
        )  # fmt: skip
    finally:
        password.unlink()
    with (new / "postgresql.conf").open("a") as file_:
        file_.write(f"\nunix_socket_directories = '{_sockets(folder)}'\n")
        file_.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())
    new.rename(_data(folder))


def _create(folder: Folder) -> None:
    """Create the role and its database, unless they exist."""
    from psycopg import sql

    with connect(folder, "postgres", _SUPERUSER) as connection:
        roles = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [NAME]).fetchall()
        if not roles:
            text = f"CREATE ROLE {NAME} LOGIN CREATEDB PASSWORD {{}}"
            connection.execute(sql.SQL(text).format(sql.Literal(folder.password(NAME))))
        names = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
        if NAME not in names and _OLD in names:  # a restore was killed between two renames
            connection.execute(f"ALTER DATABASE {_OLD} RENAME TO {NAME}")
        elif NAME not in names:
            connection.execute(f"CREATE DATABASE {NAME} OWNER {NAME}")


def _data(folder: Folder) -> Path:
    return folder.database / "data"


def _sockets(folder: Folder) -> Path:
    return folder.database / "sockets"


def _give(folder: Folder, path: Path) -> None:
    if folder.account:
        user = pwd.getpwnam(folder.account)
        os.chown(path, user.pw_uid, user.pw_gid)


def program(name: str, version: str = "") -> str:
    """Return the path of a program of PostgreSQL, of a major version or of the newest.

    Raises:
        UserError: It is not installed.
    """
    numbers = [int(path.name) for path in _DEBIAN.glob("*") if path.name.isdecimal()]
    versions = [version] if version else sorted(numbers, reverse=True)
    found = (_DEBIAN / str(each) / "bin" / name for each in versions)
    if path := next((path for path in found if path.exists()), None):
        return str(path)
    package = f"postgresql-{version}" if version else "postgresql"
    raise UserError(f"{package} is not installed in {_DEBIAN}: apt-get install {package}")


def _program(folder: Folder, name: str) -> str:
    try:
        return program(name, (_data(folder) / "PG_VERSION").read_text().strip())
    except FileNotFoundError:
        return program(name)


def _run(folder: Folder, name: str, *words: str | Path) -> None:
    """Run a program of the database's account.

    Raises:
        UserError: It fails.
    """
    done = _try(folder, name, *words)
    if done.returncode:
        raise UserError(f"{name} failed: {_last_line(done.stderr or done.stdout)}")


def _try(folder: Folder, name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [_program(folder, name), *map(str, words)]
    other: dict[str, Any] = {}
    if folder.account:
        group = pwd.getpwnam(folder.account).pw_gid
        other = {"user": folder.account, "group": group, "extra_groups": []}
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    # A file, since the started server keeps standard output open.
    with (folder.path / "pg_ctl.log").open("w+") as log:
        code = subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **other,
        ).returncode
        log.seek(0)
        return subprocess.CompletedProcess(command, code, "", log.read())


def _client(folder: Folder, name: str, *words: str | Path) -> None:
    """Run a client of the database.

    Raises:
        UserError: It fails.
    """
    connection: Sequence[str] = ("-h", str(_sockets(folder)), "-U", NAME, "-w")
    environment = os.environ | {"PGPASSFILE": str(folder.pgpass), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [_program(folder, name), *connection, *map(str, words)], env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise UserError(f"{name} failed: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
