"""MLflow's client with this project's settings: few messages, short timeouts, no telemetry."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import sqlite3
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import locked
from runcatalog.record.provenance.environment import project_root
from runcatalog.record.provenance.redact import USER_INFO

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # by default 7, with minutes of waiting in between
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # s; by default 120
    "PGCONNECT_TIMEOUT": "10",  # s; by default without end
    "GIT_PYTHON_REFRESH": "quiet",
}


# Codes of MLflow's errors that the next run would get too.
_SERVER_CODES = {
    "CUSTOMER_UNAUTHORIZED",
    "ENDPOINT_NOT_FOUND",
    "REQUEST_LIMIT_EXCEEDED",
    "TEMPORARILY_UNAVAILABLE",
    "UNAUTHENTICATED",
}
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_NOT_LITERAL = re.compile(r"\?|%[0-9A-Fa-f]{2}")  # in an address
_ARTIFACTS = "mlartifacts"  # folder beside a database
BUSY = 20.0  # s to wait for a writer of an SQLite database, as MLflow does
_CONNECTING = 5.0  # s to wait for a server to take a connection
_MAKING = 600.0  # s to wait for the process that makes a new database


class MlflowError(UserError):
    """MLflow cannot be used; the message is a line that names the server."""


class MlflowInternalError(MlflowError):
    """MLflow answered with an internal error: either it cannot be used, or it cannot take what was sent."""


def tracking_uri(given: str | None = None) -> str:
    """Return the tracking URI: ``given``, else $MLFLOW_TRACKING_URI, else SQLite in the project.

    A relative SQLite path is relative to the project's directory, not to a run's.

    Raises:
        MlflowError: The directory's name has characters with which the URI would be that of another file.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        root = project_root()
        if found := _NOT_LITERAL.search(str(root)):
            raise MlflowError(
                f"{root}: MLflow reads {found[0]!r} in a folder's name as another character; rename it, or "
                "set MLFLOW_TRACKING_URI to a database elsewhere"
            )
        uri = f"sqlite:///{root / uri.removeprefix('sqlite:///')}"
    return uri


def shown(uri: str) -> str:
    """Return a tracking URI with its password hidden."""
    uri = USER_INFO.sub(_without_password, uri)
    # Before a socket's address there is no name of a host.
    return re.sub(r"://([^/@:]*):[^/@]*@", r"://\1:***@", uri)


def _without_password(match: re.Match[str]) -> str:
    user, colon, _ = match["user"].partition(":")
    return f"{match['scheme']}://{user}:***@" if colon else match[0]


def connect(uri: str) -> MlflowClient:
    """Return a client; a new SQLite database appears under its name when it is complete.

    Raises:
        MlflowError: The server or database cannot be used.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with one_line_errors(uri), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        if not _kind(uri) and uri != "databricks":  # MLflow's only address of one word
            raise MlflowError(
                f"MLFLOW_TRACKING_URI: {uri!r} is no address of MLflow; sqlite:///mlflow.db or http://HOST:PORT"
            )
        path = sqlite_path(uri)
        if path is not None:
            _make_database(path)
            _follow_move(path)
        elif _kind(uri) in _PORTS:
            _check_server(uri)
        return MlflowClient(uri, registry_uri=uri)


def is_missing_database(uri: str) -> bool:
    """Return whether an address is of an SQLite database that does not exist yet."""
    path = sqlite_path(uri)
    return path is not None and not _has_content(path)


def _check_server(uri: str) -> None:
    """Connect to a server or database once and close the connection, since MLflow would try again for minutes.

    Raises:
        MlflowError: Nobody answers there.
    """
    address, kind = urllib.parse.urlsplit(shown(uri)), _kind(uri)  # a password may have slashes
    engine = None
    if not kind.startswith("http"):
        import sqlalchemy

        engine = sqlalchemy.create_engine(uri)
    by_proxy = kind in urllib.request.getproxies()
    # The query of a database's address may name another host, or a socket.
    if address.hostname and not by_proxy and not (engine and address.query):
        try:
            port = address.port or _PORTS[kind]
            socket.create_connection((address.hostname, port), timeout=_CONNECTING).close()
        except (OSError, ValueError) as error:  # ValueError: no number as a port
            text = f"{address.hostname}: {getattr(error, 'strerror', None) or error}"
            raise MlflowError(f"MLflow at {shown(uri)} did not answer ({text})") from None
    if engine is not None:
        engine.connect().close()
        engine.dispose()


def _kind(uri: str) -> str:
    """Return the scheme of an address, without the driver of a database."""
    return urllib.parse.urlsplit(uri).scheme.partition("+")[0]


def _make_database(path: Path) -> None:
    """Make a database unless it exists; if several processes need it, one makes it and the others wait.

    Raises:
        MlflowError: Its folder does not exist, it is no file that may be read, or another process has been making it
            for too long.
    """
    # MLflow would try again for minutes. A descriptor that is opened and closed here would end SQLite's locks.
    if path.is_dir() or (path.exists() and not os.access(path, os.R_OK)):
        raise MlflowError(f"MLflow's database {path}: a file that may be read is expected")
    # The usual case, which waits for nobody: opening a database takes seconds
    if _has_content(path):
        return
    from mlflow import MlflowClient

    if not path.parent.is_dir():
        raise MlflowError(f"MLflow's database {path}: there is no folder {path.parent}")
    try:
        with locked(path.with_name(f"{path.name}.lock"), timeout=_MAKING):
            if not _has_content(path):
                # MLflow makes its tables in many steps; a kill in between leaves a database that never opens.
                new = path.with_name(f"{path.name}.new")
                new.unlink(missing_ok=True)
                is_copy = _copy_empty(new)
                MlflowClient(f"sqlite:///{new}", registry_uri=f"sqlite:///{new}")
                if not is_copy:
                    _keep_empty(new)
                new.replace(path)
    except TimeoutError:
        raise MlflowError(f"{path}: another process has been making it for ten minutes") from None


def _follow_move(path: Path) -> None:
    """Let runs have their artifacts beside a database that was moved or copied: MLflow stores the old folder's path."""
    own = path.parent / _ARTIFACTS
    with (
        contextlib.suppress(sqlite3.Error),  # connecting says what is wrong
        contextlib.closing(sqlite3.connect(path, timeout=BUSY)) as database,
        database,
    ):
        query = (
            "SELECT name, artifact_location FROM experiments WHERE artifact_location LIKE 'file:%'"
        )
        for name, location in database.execute(query).fetchall():
            before = Path(urllib.request.url2pathname(urllib.parse.urlsplit(location).path))
            is_ours = before.parts[-2:] == (_ARTIFACTS, name) and before != own / name
            if is_ours and ((own / name).is_dir() or not before.exists()):
                now = (own / name).as_uri()
                database.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?",
                    (now, location),
                )
                database.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE instr(artifact_uri, ?) = 1",
                    (now, len(location) + 1, f"{location}/"),
                )


def _empty_database() -> Path:
    """Return where the user's empty database of this version of MLflow is kept; its migrations take seconds."""
    import mlflow

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "runcatalog" / f"mlflow-{mlflow.__version__}.db"


def _copy_empty(new: Path) -> bool:
    """Copy the empty database that is kept; return whether there is an undamaged one."""
    try:
        shutil.copyfile(_empty_database(), new)
        with contextlib.closing(sqlite3.connect(new)) as database:
            (answer,) = database.execute("PRAGMA integrity_check").fetchone()
            (tables,) = database.execute(
                "SELECT COUNT(*) FROM sqlite_master WHERE name = 'alembic_version'"
            ).fetchone()
    except (OSError, RuntimeError, sqlite3.Error):  # RuntimeError: the user has no home
        answer, tables = "", 0
    if answer == "ok" and tables:
        return True
    new.unlink(missing_ok=True)
    return False


def _keep_empty(made: Path) -> None:
    """Keep a copy of a new database, without the default experiment, which MLflow adds where it is missing."""
    with contextlib.suppress(OSError, RuntimeError, sqlite3.Error):
        kept = _empty_database()
        kept.parent.mkdir(parents=True, exist_ok=True)
        copy = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copyfile(made, copy)
        with contextlib.closing(sqlite3.connect(copy)) as database, database:
            # Its artifacts are in this process's folder
            database.execute("DELETE FROM experiments")
        copy.replace(kept)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of at most `size`, such as a request's limit."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Return the id of an experiment; create the experiment if it is missing."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        with contextlib.suppress(MlflowException):  # another process restored it in between
            client.restore_experiment(experiment.experiment_id)
    if experiment is not None:
        return experiment.experiment_id
    root = _artifact_root(uri)
    location = (root / name).as_uri() if root else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:  # another process created it in between
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return experiment.experiment_id


def is_damage(text: str) -> bool:
    """Return whether an error of SQLite says that the file is damaged."""
    return "malformed" in text or "file is not a database" in text


@contextlib.contextmanager
def one_line_errors(uri: str, run: str = "") -> Iterator[None]:
    """Convert the exceptions of MLflow, its database and the network to errors of one line.

    Args:
        uri: Server or database.
        run: The run that is sent, if only one is.

    Raises:
        MlflowError: MLflow cannot be used.
        UserError: MLflow rejects the run, or the run cannot be read; MLflow itself works.
    """
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise MlflowError(f"MLflow cannot be used: {error}{_advice(error)}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {shown(_first_line(error))[:300]}"
        code = getattr(error, "error_code", "")
        database = sqlite_path(uri) or shown(uri)
        again = "move it away, then `catalog sync && catalog import` make a new one from the runs and the records"
        # MLflow says so of a later version too
        is_other_version = "out-of-date database schema" in text
        answered = f"MLflow at {shown(uri)} did not answer ({text})"
        if is_damage(text):
            answered = f"{database} is damaged ({text}): {again}"
        elif is_other_version:
            answered = (
                f"{database} is of another version of MLflow: upgrade an earlier one with `mlflow db upgrade "
                f"{shown(uri)}`, or {again}"
            )
        elif "failed with error code 401" in text:
            answered = (
                f"MLflow at {shown(uri)} refuses the user or the password, which it takes from "
                f"MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or from ~/.mlflow/credentials ({text})"
            )
        elif "disk is full" in text:
            answered = f"{database} cannot be written, its disk is full ({text})"
        if is_other_version or _is_of_server(error):
            raise MlflowError(answered) from error
        if run and (code == "INTERNAL_ERROR" and error.__cause__ is None):
            raise MlflowInternalError(f"{run}: MLflow at {shown(uri)} failed ({text})") from error
        if code == "INVALID_PARAMETER_VALUE":
            raise UserError(f"MLflow rejects it: {shown(_first_line(error))[:300]}") from error
        if run:
            raise UserError(f"{run}: cannot be sent to MLflow ({text})") from error
        raise MlflowError(answered) from error


def _is_of_server(error: BaseException) -> bool:
    """Return whether the server, its network or its database is at fault, and not what was sent."""
    each: BaseException | None = error
    while each is not None:
        kind = type(each)
        if getattr(each, "error_code", "") in _SERVER_CODES:
            return True
        # sqlite3, SQLAlchemy and psycopg each have an OperationalError: locked, full, gone.
        if any(base.__name__ == "OperationalError" for base in kind.__mro__):
            return True
        if kind is sqlite3.DatabaseError or isinstance(each, ConnectionError | TimeoutError):
            return True
        if kind.__module__.partition(".")[0] in ("requests", "urllib3"):
            return "too many 500 error responses" not in str(each)
        each = each.__cause__ or each.__context__
    return False


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")


def _advice(error: ModuleNotFoundError) -> str:
    drivers = {
        "psycopg": "psycopg[binary]",
        "psycopg2": "psycopg2-binary",
        "MySQLdb": "mysqlclient",
        "pymysql": "pymysql",
    }
    package = drivers.get(error.name or "")
    return f"; the driver of the database is missing: pip install '{package}'" if package else ""


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI; None for any other URI and for a database in memory."""
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    is_file = uri.startswith("sqlite:///") and name and not name.startswith((":", "file:"))
    return Path(name) if is_file else None


def _artifact_root(uri: str) -> Path | None:
    path: Any = sqlite_path(uri)
    return path.parent / _ARTIFACTS if path else None
