"""A PostgreSQL server in a separate process, for tests; where PostgreSQL and its driver are installed."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from mlflow_server import free_port

INITDB = shutil.which("initdb")
MISSING = (
    "needs PostgreSQL (initdb on the PATH) and psycopg"
    if INITDB is None or importlib.util.find_spec("psycopg") is None
    else ""
)


class PostgreSQL:
    """A new database in a temporary folder, and its server.

    Attributes:
        address: URL of the database, for SQLAlchemy and psycopg.
        process: The server; None while it does not run.
    """

    def __init__(self):
        user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        port = free_port()
        self.address = f"postgresql://{user}@127.0.0.1:{port}/postgres"
        self.process = None
        # Not in pytest's folder, which other users may not enter.
        folder = self._folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._as_user = {}
        if os.getuid() == 0:  # which PostgreSQL refuses
            shutil.chown(folder, user)
            self._as_user = {"user": user}
        data, self._log = folder / "data", folder / "log"
        settings = ["-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"]
        self._command = [_program("postgres"), "-D", data, *settings]
        command = [_program("initdb"), "-D", data, "-A", "trust", "-U", user, "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **self._as_user)

    def start(self):
        """Start the server, unless it runs, and wait until it answers."""
        if self.process is not None:
            return
        import psycopg

        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._folder, **self._as_user
            )
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"PostgreSQL ended: {self._log.read_text()}")
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.address).close()
                return

    def kill(self):
        """Kill all processes of the server; return whether it ran."""
        if self.process is None:
            return False
        server = psutil.Process(self.process.pid)
        server.suspend()  # it starts no other process meanwhile
        processes = [server, *server.children()]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(processes[1:])
        self.process = None
        return True

    def close(self):
        """Kill the server and remove the database."""
        self.kill()
        shutil.rmtree(self._folder)


def _program(name):
    return Path(INITDB).resolve().with_name(name)
