"""An MLflow server in a separate process, for tests."""

import contextlib
import os
import socket
import subprocess
import urllib.request

import prepared

_RESERVED = []  # sockets


def free_port():
    """Return a port that nothing listens on, and that the system gives to nobody else while this process lives."""
    reserved = socket.socket()
    # Bound so, and not listening, it lets a server listen there, which is bound in the same way.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    return reserved.getsockname()[1]


@contextlib.contextmanager
def server(project, port):
    """Run an MLflow server on a database in the project, and kill it hard."""
    uri = f"http://127.0.0.1:{port}"
    command = [
        prepared.python(),
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--backend-store-uri", f"sqlite:///{project}/server.db", "--workers", "1"]
    command += ["--artifacts-destination", str(project / "stored")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    quiet |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes that judge texts
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"} | quiet
    with (project / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        yield lambda: _answers(uri)
    finally:
        prepared.kill_all(process, prepared.folder().parent)


def _answers(uri):
    try:
        return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
    except OSError:
        return False
