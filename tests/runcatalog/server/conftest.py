"""A group's server on this machine, with two users."""

import base64
import json
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import prepared
from mlflow_server import free_port
from runcatalog.record.errors import UserError
from runcatalog.server import postgresql
from runcatalog.server.folder import Folder, read_credentials

RECORD = """
import sys
from pathlib import Path
from runcatalog import record
with record.start(record.Config(), study="toy") as run:
    for step in range(1, int(sys.argv[1]) + 1):
        run.log({"loss": 1 / step, "odd": float("nan") if step % 2 else 1e300}, step)
    (run.directory / "artifacts").mkdir(exist_ok=True)
    (run.directory / "artifacts" / "note.txt").write_text("by hand")
    run.finish({"objective": {"name": "loss", "value": 1 / step, "goal": "min", "at": step}})
"""


class Group:
    """A server and the requests of its users.

    Attributes:
        folder: Its files.
        uri: Its address.
    """

    def __init__(self, shell_in, root: Path) -> None:
        self._shell_in, self.root = shell_in, root
        self.folder = Folder(root / "server")
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._shell = shell_in(root / "admin")

    def catalog(self, line: str, *, code: int = 0) -> str:
        """Type `catalog server …`; return what it printed."""
        words = line.split()
        words.insert(1, f"--folder {self.folder.path}")
        return self._shell.inside(f"server {' '.join(words)}", code=code)

    def new_user(self, name: str, *experiments: str) -> tuple[str, str]:
        """Add a user; return name and password."""
        path = self.root / f"{name}.credentials"
        self.catalog(f"user add {name} {' '.join(experiments)} --credentials {path}")
        return read_credentials(path)

    def new_password(self, name: str) -> tuple[str, str]:
        """Give a user a new password."""
        path = self.root / f"{name}-{len(list(self.root.iterdir()))}.credentials"
        self.catalog(f"user password {name} --credentials {path}")
        return read_credentials(path)

    def project(self, name: str, user: tuple[str, str]):
        """Return a shell in a separate project, whose MLflow is the server, as a user."""
        shell = self._shell_in(self.root / name)
        shell.env |= {"PROJECT_DIR": str(shell.root), "MLFLOW_TRACKING_URI": self.uri}
        shell.env |= {"MLFLOW_TRACKING_USERNAME": user[0], "MLFLOW_TRACKING_PASSWORD": user[1]}
        return shell

    def record(self, shell, name: str, steps: int = 5) -> Path:
        """Record a run without delivery; return its directory."""
        script = self.root / "record.py"
        script.write_text(RECORD)
        directory = shell.root / "runs" / name
        shell(f"{prepared.python()} {script} {steps}", RUN_DIR=str(directory), RECORD_MLFLOW="off")
        return directory

    def ask(self, user, method: str, route: str, content=None) -> tuple[int, object]:
        """Ask the server; return status and answer.

        Args:
            user: (name, password), None for no credentials.
            method: HTTP's method.
            route: Path, or what follows /api/2.0/mlflow/.
            content: Body, as JSON.
        """
        url = self.uri + (route if route.startswith("/") else f"/api/2.0/mlflow/{route}")
        headers = {"Content-Type": "application/json"}
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode("utf-8", "replace")

    def rows(self, query: str, *values) -> list[tuple]:
        """Return rows of the server's database."""
        with postgresql.connect(self.folder) as connection:
            return connection.execute(query, values).fetchall()


@pytest.fixture(scope="module")
def group(shell_in):
    """A server with two processes, which is started once for all tests of a module."""
    try:
        import flask_wtf  # noqa: F401
        import psycopg  # noqa: F401

        postgresql.program("initdb")
    except (ImportError, UserError) as error:
        pytest.skip(f"needs PostgreSQL and the extra [server]: {error}")
    # Not in pytest's folder, which the account of PostgreSQL may not enter.
    root = Path(tempfile.mkdtemp(prefix="server-"))
    root.chmod(0o711)
    group = Group(shell_in, root)
    try:
        group.catalog(f"start --port {group.port} --workers 2 --host-name mlflow.lab")
        yield group
    finally:
        group.catalog("stop")
        shutil.rmtree(root)
