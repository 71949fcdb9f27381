"""Forks the processes of an arena from one that has their packages loaded: a start takes milliseconds.

    python tests/faults/spawner.py FOLDER [MODULE ...]

What a fork runs is what `python -m record.sender …`, `mlflow server …` and so on run. ``FOLDER/pids`` holds a file
``<role>-<process number>`` per living process.
"""

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

import sitecustomize

LOADED = (
    "numpy",
    "runcatalog.record.training.checkpoint",
    "runcatalog.record.delivery.publish",
    "mlflow.tracking.client",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.artifact.local_artifact_repo",
    "mlflow.server.fastapi_app",
    "mlflow.cli",
    "uvicorn",
    "runcatalog.sync.sync",
)


def receive(connection):
    """Return the request (role, arguments, folder, environment) and the standard files."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    content = b""
    while len(content) < int(size):
        content += connection.recv(65536)
    return json.loads(content), files


def become(request, files):
    """Run the requested program in this process."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.orig_argv[1:] = request["argv"]
    sitecustomize.prepare(request["role"])
    name, *rest = request["argv"]
    if name == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = request["argv"]
        runpy.run_path(name, run_name="__main__")


def main():
    folder = Path(sys.argv[1])
    for name in (*LOADED, *sys.argv[2:]):
        importlib.import_module(name)
    (folder / "pids").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "new"))
    listener.listen(64)
    os.rename(folder / "new", folder / "spawner")
    children = {}  # file that is readable when the child is dead: (number, note, who waits)
    while True:
        ready, _, _ = select.select([listener, *children], [], [])
        for file in ready:
            if file is not listener:
                number, note, waiting = children.pop(file)
                _, status = os.waitpid(number, 0)
                os.close(file)
                note.unlink()
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    waiting.send(str(code if code >= 0 else 128 - code).encode())
                waiting.close()
                continue
            connection, _ = listener.accept()
            request, files = receive(connection)
            number = os.fork()
            if not number:
                for opened in (
                    listener,
                    connection,
                    *(waiting for _, _, waiting in children.values()),
                ):
                    opened.close()
                for child in children:
                    os.close(child)
                become(request, files)
                return
            for file in files:
                os.close(file)
            note = folder / "pids" / f"{request['role']}-{number}"
            note.touch()
            children[os.pidfd_open(number)] = (number, note, connection)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
