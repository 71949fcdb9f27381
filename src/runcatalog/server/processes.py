"""Start, stop and look at a group's server: PostgreSQL, and MLflow on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import psutil

from runcatalog.record.errors import UserError
from runcatalog.record.journal import files
from runcatalog.record.output.console import last_line
from runcatalog.server import postgresql
from runcatalog.server.app import LOCK
from runcatalog.server.folder import Folder, Settings, read_credentials, read_secret

HOST = "127.0.0.1"
_WAIT = 600.0  # s for a start: MLflow's tables are made by all its migrations
_LOCK_WAIT = 600.0
_END = 30.0  # s for an orderly end


def address(settings: Settings) -> str:
    """Return the server's address on this machine."""
    return f"http://{HOST}:{settings.port}"


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Let no other command start, stop or replace the server meanwhile.

    Raises:
        UserError: Another command has not ended for ten minutes.
    """
    try:
        with files.locked(folder.lock, timeout=_LOCK_WAIT):
            yield
    except TimeoutError:
        raise UserError(f"another command is at work on {folder.path}") from None


def start(folder: Folder, settings: Settings) -> str:
    """Start the server; return a line with its address.

    Raises:
        UserError: It does not start, or runs with other settings; the message is the reason.
    """
    folder.create()
    with locked(folder):
        if (pid := running(folder)) is not None:
            kept = folder.settings()
            line = f"runs already: {address(kept)} (process {pid})"
            if settings != kept:
                raise UserError(f"{line}; `catalog server stop` first: options count at a start")
            return line
        return launch(folder, settings)


def launch(folder: Folder, settings: Settings) -> str:
    """Start a server that does not run; for a command that has locked the folder."""
    stop_mlflow(folder)
    _check_port(settings.port)
    folder.keep(settings)
    postgresql.start(folder)
    with folder.log.open("wb") as log:
        process = subprocess.Popen(
            _command(folder, settings), env=environment(folder), cwd=folder.path,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    _keep_state(folder, process.pid)
    until = time.monotonic() + _WAIT
    while not answers(settings):
        if process.poll() is not None or time.monotonic() > until:
            stop_mlflow(folder)
            postgresql.stop(folder)
            raise UserError(
                f"MLflow did not start: {last_line(folder.log) or 'no message'} ({folder.log})"
            )
        time.sleep(0.1)
    return f"{address(settings)} (process {process.pid}, folder {folder.path})"


def stop(folder: Folder) -> bool:
    """Stop MLflow and the database; return whether one of them ran.

    Raises:
        UserError: There is no server, or one does not end.
    """
    if not folder.lock.exists():
        raise UserError(f"no server in {folder.path}; --folder names another")
    with locked(folder):
        return stop_mlflow(folder) | postgresql.stop(folder)


def stop_mlflow(folder: Folder) -> bool:
    """Stop MLflow alone; return whether it ran.

    Raises:
        UserError: A process does not end.
    """
    pid, left = running(folder), set(_processes(folder))
    if pid is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            left |= {top, *top.children(recursive=True)}
            top.terminate()
    ran, patience = bool(left), _END if pid is not None else 0  # s
    until = time.monotonic() + 2 * _END
    while left:
        for process in psutil.wait_procs(left, patience)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, _END)
        left, patience = set(_processes(folder)), 0  # one may have been started meanwhile
        if left and time.monotonic() > until:
            raise UserError(f"MLflow (process {min(each.pid for each in left)}) does not end")
    folder.state.unlink(missing_ok=True)
    return ran


def _processes(folder: Folder) -> list[psutil.Process]:
    """Return the processes of MLflow's server, by their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(LOCK) == _lock_of_tables(folder):
                found.append(process)
    return found


def _lock_of_tables(folder: Folder) -> str:
    return str(folder.path / "tables.lock")


def running(folder: Folder) -> int | None:
    """Return the process id of MLflow's server; None if it does not run."""
    state = files.read_json(folder.state) or {}
    with contextlib.suppress(psutil.Error, KeyError, TypeError, ValueError):
        process = psutil.Process(state["pid"])
        alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        if alive and abs(process.create_time() - state["started"]) < 0.01:
            return process.pid
    return None


def status(folder: Folder) -> list[str]:
    """Return lines: whether MLflow and the database run, and where."""
    if not folder.exists:
        return [f"no server in {folder.path}"]
    settings, pid = folder.settings(), running(folder)
    if pid is None:
        lines = [f"MLflow does not run; folder {folder.path}"]
    else:
        word = "answers" if answers(settings) else "does not answer"
        lines = [
            f"MLflow (process {pid}, {settings.workers} workers) {word} at {address(settings)}"
        ]
    return [*lines, f"PostgreSQL {'runs' if postgresql.is_running(folder) else 'does not run'}"]


def run(folder: Folder, settings: Settings) -> None:
    """Start the server, stay until it ends or a signal comes, then stop the database too.

    Raises:
        UserError: MLflow ended by itself.
    """
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: ended.append(number))
    print(start(folder, settings), flush=True)
    while not ended:
        time.sleep(0.5)
        if running(folder) is None:
            with locked(folder):  # another command may be about to start it again
                if running(folder) is None:
                    break
    stop(folder)
    if not ended:
        raise UserError(f"MLflow ended: {last_line(folder.log) or 'no message'} ({folder.log})")


def answers(settings: Settings) -> bool:
    """Return whether a server answers at the address."""
    try:
        opened = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opened.open(f"{address(settings)}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _command(folder: Folder, settings: Settings) -> list[str]:
    url = postgresql.url(folder)
    words = ["-m", "mlflow", "server", "--app-name", "catalog-server", "--host", HOST]
    words += ["--port", str(settings.port), "--workers", str(settings.workers)]
    words += ["--backend-store-uri", url, "--registry-store-uri", url]
    words += ["--artifacts-destination", folder.artifacts.as_uri(), "--serve-artifacts"]
    # On a busy machine a process takes longer than the default of 5 s to say that it is alive, and would be replaced.
    words += ["--uvicorn-opts", "--log-level warning --timeout-worker-healthcheck 120"]
    if settings.host:
        local = f"localhost,localhost:*,{HOST},{HOST}:*"
        words += ["--allowed-hosts", f"{settings.host},{settings.host}:*,{local}"]
        words += ["--cors-allowed-origins", f"https://{settings.host}"]
    return [sys.executable, *words]


def environment(folder: Folder) -> dict[str, str]:
    """Return the environment of MLflow's processes, with the secrets that MLflow reads there."""
    own = ("MLFLOW_", "PYTHONPATH", "PG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    name, password = read_credentials(folder.credentials)
    config = folder.path / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = {postgresql.url(folder).replace('%', '%%')}\n"
        "authorization_function = runcatalog.server.authorization:authorize\n"
    )
    return kept | {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_AUTH_ADMIN_USERNAME": name,
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": read_secret(folder.session_key),
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",  # a route without a rule is refused
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes that judge texts
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        LOCK: _lock_of_tables(folder),
        "PGPASSFILE": str(folder.pgpass),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }


def _keep_state(folder: Folder, pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        files.write_json(folder.state, {"pid": pid, "started": psutil.Process(pid).create_time()})


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {HOST}: {error.strerror}; name another with --port"
            ) from None
