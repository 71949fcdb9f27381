"""A lab on this machine, for tests: a scheduler and workers as processes, and a project whose runs may go there.

In a session of tests all of its Python processes are forks of the prepared ones.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import prepared
from mlflow_server import free_port
from runcatalog.cluster import certificates, engines, serve
from runcatalog.cluster.dask_engine import DaskEngine

HERE = Path(__file__).parents[1] / "runcatalog" / "cluster"
REAL = Path(sys.prefix) / "bin"
WORKERS = ("box1", "box2")
FOREIGN = ("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "ENGINE")


def plain_environment() -> dict[str, str]:
    """The environment without variables of Guild, MLflow and the recording, and with threads for one core."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


class Lab:
    """A project with a lab.

    Attributes:
        root: The project.
        home: Guild's home, outside of it.
        settings: Its entry of engines.yml.
    """

    def __init__(self, root: Path, workers: Sequence[str] = WORKERS) -> None:
        self.root = root
        # Not outside of a session of tests, such as in a storm of `make bench`.
        self._prepared = prepared.folder() if prepared.FOLDER in os.environ else None
        self._bin = self._prepared or REAL
        self._process = prepared.Process if self._prepared else subprocess.Popen
        shutil.copytree(HERE / "project", root, ignore=shutil.ignore_patterns("__pycache__"))
        text = (HERE / "engines.yml").read_text().replace("PORT", str(free_port()))
        (root / "experiments/engines.yml").write_text(text)
        self.home = root.with_name(f"{root.name}-home")
        self.home.mkdir()
        self.read_settings()
        for name in (certificates.SCHEDULER, *workers, self.settings.certificate):
            certificates.issue(self.settings.tls, name)
        self.processes: dict[str, subprocess.Popen] = {}
        self.env = plain_environment() | {
            "GUILD_HOME": str(self.home),
            "PATH": os.pathsep.join(map(str, (self._bin, REAL, os.environ["PATH"]))),
            "RECORD_MLFLOW": "off",
        }

    def read_settings(self) -> None:
        """Read the lab's entry of engines.yml."""
        self.settings = engines.read(self.root, "lab")

    def start(
        self, name: str, root: Path | None = None, before: Sequence[str] = (), **env: str
    ) -> None:
        """Start a process of the lab, as `catalog workers start` does.

        Args:
            name: Its name.
            root: The project's folder on its machine; by default the project.
            before: Words before the command.
            env: More environment variables.
        """
        root = root or self.root
        command = [
            *before,
            self._bin / "python",
            "-m",
            "runcatalog.cluster.serve",
            root,
            "lab",
            name,
            "1",
        ]
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = self._process(
                command, stdout=log, stderr=log, env=plain_environment() | env, cwd=root
            )

    def wait(self, condition, seconds: float = 500):
        """Wait until a condition holds; return what it returns."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                logs = "\n".join(p.read_text()[-3000:] for p in self.root.glob("*.log"))
                raise TimeoutError(f"waited in vain\n{logs}")
            time.sleep(0.05)
        return value

    def wait_for_workers(self, engine: DaskEngine, *names: str) -> list[dict]:
        """Wait until the scheduler knows these workers and no others, with free slots."""

        expected = set(names)

        def known():
            with contextlib.suppress(Exception):
                workers = engine.workers()
                if {w["name"] for w in workers if not w["running"]} == expected:
                    return workers
            return None

        return self.wait(known)

    def type(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a line in the project's folder."""
        return subprocess.run(
            line, shell=True, cwd=self.root, env=self.env | env, text=True, timeout=540,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def good(self, line: str, **env: str) -> str:
        """Run a line that has to succeed; return what it printed."""
        done = self.type(line, **env)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}"
        return done.stdout

    def background(self, line: str, **env: str) -> subprocess.Popen[str]:
        """Start a line in a separate process group."""
        return self._process(
            f"exec {line}", shell=True, cwd=self.root, env=self.env | env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def pid(self, name: str) -> int:
        """Return the process id of a process of the lab."""
        return serve.is_alive(self.settings.scratch / name)["pid"]

    def kill_all(self, started: subprocess.Popen[str]) -> None:
        """Kill a line that was started in the background, with all that it has started here."""
        if self._prepared:
            prepared.kill_all(started, self._prepared.parent)
        else:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    @property
    def runs(self) -> list[Path]:
        """Run directories, by their start."""

        def started(run: Path) -> int:
            path = run / ".guild/attrs/initialized"
            try:
                return int(path.read_text() or 0)
            except FileNotFoundError:  # not written yet, or of a batch that Guild has removed
                return 0

        return sorted((self.home / "runs").glob("*"), key=started)

    def kill(self, name: str) -> None:
        """Kill a process of the lab at once."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(120)

    def close(self) -> None:
        """End all processes."""
        for name, process in self.processes.items():
            if state := serve.is_alive(self.settings.scratch / name):
                os.kill(state["pid"], signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(120)
