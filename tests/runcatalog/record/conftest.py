"""A separate project per test, and the toy training as a real process in it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import prepared

SCRIPT = Path(__file__).parent / "toy_training.py"
FOREIGN = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the directory of an empty project; nothing is sent to MLflow unless a test wants it."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(directory))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return directory


class Toy:
    """Starts the toy training in a run directory.

    Attributes:
        directory: The run's directory.
        script: What is started.
        python: Interpreter, if not a prepared one: a test that looks at the process needs the real one.
    """

    script = SCRIPT
    python = ""

    def __init__(self, directory, started):
        self.directory = directory
        self._started = started

    def start(self, *flags, env=None, wrapper=(), **options):
        """Start the script, through `wrapper` and the real Python if one is given; return the process."""
        python = sys.executable if wrapper else self.python or prepared.python()
        environment = os.environ | {"RUN_DIR": str(self.directory)} | (env or {})
        process = prepared.Process(
            [*wrapper, python, str(self.script), *map(str, flags)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_default_signals,
            **options,
        )
        self._started.append(process)
        return process

    def run(self, *flags, env=None, wrapper=()):
        """Run the script to its end; return (exit code, standard error)."""
        process = self.start(*flags, env=env, wrapper=wrapper)
        _, errors = process.communicate(timeout=500)
        return process.returncode, errors

    def lines(self):
        """Return how many lines the journal has."""
        path = self.directory / "journal" / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


def _default_signals():
    """Tests that run under nohup or in the background would hand on that these are ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def toys(project):
    """Return a function that gives the toy training of a name; what still runs at the end is killed."""
    started = []
    yield lambda name: Toy(project / "runs" / name, started)
    for process in started:
        process.kill()


@pytest.fixture
def toy(toys):
    """Return a toy training in a separate directory."""
    return toys("toy")
