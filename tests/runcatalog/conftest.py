"""Artificial records, and a small project with one study."""

import io
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import prepared
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord

HERE = Path(__file__).parent
FOREIGN = ("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "VIRTUAL_ENV", "CONDA_")


@pytest.fixture(scope="session")
def make():
    """Return a function that creates a record: `make(1, value=0.93, lr=5e-3)`."""

    def run(number: int, *, value: float | None = None, **fields) -> RunRecord:
        known = set(RunRecord.__dataclass_fields__)
        flags = {k.replace("_", "-"): v for k, v in fields.items() if k not in known}
        given = {k: v for k, v in fields.items() if k in known}
        objective = {
            "name": "opening_rate",
            "value": value,
            "kind": "rate",
            "count": 100,
            "goal": "max",
            "at": 360,
            "axis": "update",
        }
        base = {
            "run": f"{number:08x}" * 4,
            "operation": "toy:train",
            "study": "toy",
            "status": "FINISHED",
            "started": number,
            "result": None if value is None else {"objective": objective},
            "flags": flags,
        }
        return RunRecord(**(base | given))

    return run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The toy project, without any run."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    root = tmp_path / "project"
    shutil.copytree(HERE / "toy", root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PROJECT_DIR", str(root))
    return Project(root)


class Shell:
    """Types commands in a folder.

    Attributes:
        root: The folder.
        env: The environment.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self.env = kept | {
            "GUILD_HOME": str(home),
            "PATH": os.pathsep.join(
                map(str, (prepared.folder(), Path(sys.executable).parent, os.environ["PATH"]))
            ),
            "PYTHONPATH": f"{root / 'src'}{os.pathsep}{HERE.parents[1] / 'src'}",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }

    def __call__(self, line: str, *, code: int | None = 0, **env: str) -> str:
        """Run a line; return what it printed. `code` is the exit status expected."""
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.root,
            env=self.env | env,
            text=True,
            timeout=540,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert code is None or done.returncode == code, f"$ {line}\n{done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def catalog(self, line: str, *, code: int = 0) -> str:
        """Run `catalog …` in a separate process."""
        return self(f"{prepared.python()} -m runcatalog.cli.main {line}", code=code)

    def inside(self, line: str, *, code: int = 0) -> str:
        """Run `catalog …` in this process, which has imported MLflow already."""
        from runcatalog.cli import main

        output = io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(output),
            redirect_stderr(output),
        ):
            patch.chdir(self.root)
            patch.setattr(sys, "executable", prepared.python())
            for name in [n for n in os.environ if n.startswith(FOREIGN)]:
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as caught:
                main.main(shlex.split(line))
        assert caught.value.code == code, f"$ catalog {line}\n{output.getvalue()}"
        return output.getvalue()

    def new_mlflow(self, path: Path) -> None:
        """Goes on with another, empty MLflow."""
        self.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}"


@pytest.fixture(scope="session")
def shell_in():
    """Return a function that gives a shell in the toy project of a folder, copied there at need."""

    def make(folder: Path) -> Shell:
        root = folder / "project"
        if not root.exists():
            shutil.copytree(HERE / "toy", root, ignore=shutil.ignore_patterns("__pycache__"))
        return Shell(root, folder / "guild")

    return make


@pytest.fixture
def shell(shell_in, tmp_path: Path) -> Shell:
    """A shell in the toy project, with a separate Guild home."""
    return shell_in(tmp_path)


@pytest.fixture(scope="session")
def wait_until():
    """Return a function that waits for a condition, and fails after a time limit."""

    def wait(condition, seconds=500):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    return wait
