"""Commands and databases that tests find prepared: a start takes milliseconds where an import takes seconds.

`start` starts a server that has loaded the large packages (torch, MLflow, Guild, …; nothing of this project) and makes
a folder with `python`, `guild`, `catalog` and `mlflow`. Each of these lets the server fork a process, which runs
what the real command runs, with the caller's arguments, environment, folder and standard files. The caller waits for
the fork, passes signals on and ends as the fork ends. The real commands lie in the virtual environment: a test of
imports, of the interpreter or of a start uses those.
"""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent
FOLDER = (
    "PREPARED_COMMANDS"  # environment variable that names the folder to all processes of a session
)
COMMANDS = ("python", "guild", "catalog", "mlflow")
PATIENCE = 240.0  # s to wait for the end of what was killed, on a busy machine


def serve(python: Path, *packages: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a server for an interpreter.

    Args:
        python: The interpreter.
        packages: "library" for the packages of the library alone.

    Returns:
        The server, which ends with its standard input, and its folder, which it removes then.
    """
    short = len(tempfile.gettempdir()) < 80  # the path of a socket has 107 characters at most
    folder = Path(tempfile.mkdtemp(prefix="prepared-", dir=None if short else "/tmp"))
    (folder / "bin").mkdir()
    launch = [str(python), "-IS", str(HERE / "launch.py"), str(folder / "socket"), str(python)]
    for name in COMMANDS:
        command = [*launch, *([] if name == "python" else [str(python.with_name(name))])]
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        path.chmod(0o755)
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    settings["HF_HUB_OFFLINE"] = "1"  # read at the import
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    server = subprocess.Popen(
        [python, HERE / "server.py", folder, *packages], stdin=subprocess.PIPE, env=kept | settings,
        cwd=folder,
    )  # fmt: skip
    while not (folder / "socket").exists():
        if server.poll() is not None:
            raise RuntimeError("the server of prepared commands ended")
        time.sleep(0.01)
    return server, folder


def start() -> subprocess.Popen[bytes] | None:
    """Start the server of this session; None where another process of the session has done so."""
    if FOLDER in os.environ:
        return None
    server, folder = serve(Path(sys.executable))
    os.environ[FOLDER] = str(folder)
    return server


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server and its forks."""
    server.stdin.close()
    server.wait(PATIENCE)


def folder() -> Path:
    """Return the folder of the prepared commands, to come first on a PATH."""
    return Path(os.environ[FOLDER]) / "bin"


def python() -> str:
    """Return the prepared Python, to stand where ``sys.executable`` stands."""
    return str(folder() / "python")


class Process(subprocess.Popen):
    """A command that has ended when its fork has; a fork outlives a caller that is killed by a moment."""

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        until = time.monotonic() + PATIENCE
        while (folder().parent / f"forked-for-{self.pid}").exists():
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, PATIENCE)
            time.sleep(0.005)
        return code


def kill_all(top: subprocess.Popen, folder: Path) -> None:
    """Kill a process and all that it has started, forks too, at once, as when a machine goes down.

    Args:
        top: The process.
        folder: Folder of the server of its prepared commands.
    """
    stopped: list[psutil.Process] = []
    while new := [each for each in _started_by(top.pid, folder) if each not in stopped]:
        for each in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()  # nothing sees another one end
        stopped += new
    for each in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    top.wait(PATIENCE)
    _, alive = psutil.wait_procs(stopped, PATIENCE)
    assert not alive
    _settle(folder, [each.pid for each in stopped])


def _settle(folder: Path, pids: list[int]) -> None:
    """Wait until no fork is left of callers that were killed, nor one that they had asked for shortly before."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / "socket"))
        server.shutdown(socket.SHUT_WR)
        server.recv(1)  # its end: requests are taken in turn
    until = time.monotonic() + PATIENCE
    while any((folder / f"forked-for-{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "a fork outlives its caller"
        time.sleep(0.005)


def _started_by(pid: int, folder: Path) -> list[psutil.Process]:
    """Return a process with its children, their forks and so on."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        found.append(process)
        for child in process.children():
            found += _started_by(child.pid, folder)
    if fork := fork_of(pid, folder):
        found += _started_by(fork, folder)
    return found


def fork_of(pid: int, folder: Path) -> int | None:
    """Return the process id of the fork of a prepared command; None while there is none.

    Args:
        pid: Process id of the command.
        folder: Folder of the server.
    """
    with contextlib.suppress(FileNotFoundError):
        return int((folder / f"forked-for-{pid}").read_text() or 0) or None
    return None


def cpu_seconds(worker: str) -> float:
    """Return the CPU time of the forks that a test process has caused and that have ended."""
    path = Path(os.environ.get(FOLDER, "")) / f"cpu-{worker}"
    return float(path.read_text() or 0) if path.exists() else 0.0
