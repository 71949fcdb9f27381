"""Types what a user types, in a copy of the project with a Guild home and an MLflow of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import prepared

ROOT = Path(__file__).parents[2]


class Project:
    """A copy of the project's files.

    Attributes:
        root: Where the copy is.
        env: Environment that a user would have after activating the virtual environment there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        for compiled in (ROOT / "src").rglob("__pycache__"):  # for the same sources, so valid
            if (target := root / compiled.relative_to(ROOT)).parent.is_dir():
                # Another process may be writing one: NAME.pyc.NUMBER, renamed when it is complete.
                shutil.copytree(compiled, target, ignore=shutil.ignore_patterns("*.pyc.*"))
        home = root / ".guild"
        home.mkdir()
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "OMP_"))
        }
        self.env = inherited | {
            "GUILD_HOME": str(home),
            "PYTHONPATH": str(root / "src"),
            "PATH": os.pathsep.join(
                map(str, (prepared.folder(), Path(sys.executable).parent, os.environ["PATH"]))
            ),
        }

    def type(self, line: str, timeout: float = 540, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a line as a shell would in the project's folder; stdout and stderr come together."""
        return subprocess.run(
            line, shell=True, cwd=self.root, env=self.env | env, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def good(self, line: str, timeout: float = 540, **env: str) -> str:
        """Like ``type``, for a line that has to succeed; returns what it printed."""
        done = self.type(line, timeout, **env)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}"
        assert "pkg_resources" not in done.stdout
        return done.stdout

    def bad(self, line: str, *words: str) -> str:
        """Like ``type``, for a line that has to fail with one clear line that has all ``words``."""
        done = self.type(line)
        assert done.returncode in (1, 2), f"$ {line}\nexit {done.returncode}\n{done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        last = done.stdout.strip().splitlines()
        assert any(all(word in text for word in words) for text in last), done.stdout
        return done.stdout

    def kill_when(self, line: str, reached: Callable[[], bool], seconds: float = 600) -> None:
        """Run a line until a condition holds; then kill all its processes at once, as when a machine goes down.

        The commands are the real ones: prepared ones are no children of the line's process.
        """
        path = self.env["PATH"].partition(os.pathsep)[2]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = subprocess.Popen(
            f"exec {line}", shell=True, cwd=self.root, env=self.env | {"PATH": path}, **quiet
        )
        until = time.monotonic() + seconds
        while not reached():
            assert started.poll() is None, f"$ {line}\nended by itself: {started.returncode}"
            assert time.monotonic() < until, f"$ {line}\nnot there after {seconds} s"
            time.sleep(0.05)
        top = psutil.Process(started.pid)
        for each in [*top.children(recursive=True), top]:
            os.kill(each.pid, signal.SIGKILL)
        started.wait(60)

    @property
    def runs(self) -> list[Path]:
        """Run directories, oldest first."""
        return sorted((self.root / ".guild/runs").glob("*"), key=lambda path: path.stat().st_ctime)

    def runs_of(self, operation: str) -> list[Path]:
        """Directories of an operation's runs that have begun, oldest first; the name is without its model's."""
        begun = [run for run in self.runs if (run / "journal").exists()]
        return [run for run in begun if (run / ".guild/opref").read_text().split()[-1] == operation]

    def finished(self, operation: str) -> Path:
        """Directory of an operation's newest run that has ended well."""
        found = [run for run in self.runs_of(operation) if (run / "result.json").exists()]
        return max(found, key=lambda run: (run / "result.json").stat().st_mtime)


def written(run: Path) -> dict:
    """What a run left in the end."""
    return json.loads((run / "result.json").read_text())
