"""Types what a user types, in a copy of the project with a Guild home and an MLflow of its own."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import prepared

ROOT = Path(__file__).parents[2]


class Project:
    """A copy of the project's files.

    Args:
        root: Where the copy is made.
        records: The studies whose committed records it has, without the generated pages; None: all, with the pages.

    Attributes:
        root: Where the copy is.
        env: Environment that a user would have after activating the virtual environment there.
    """

    def __init__(self, root: Path, records: Collection[str] | None = None) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (records is None or _is_of(name, records)) and (ROOT / name).is_file():
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        for compiled in (ROOT / "src").rglob("__pycache__"):  # for the same sources, so valid
            if (target := root / compiled.relative_to(ROOT)).parent.is_dir():
                # Another process may be writing one: NAME.pyc.NUMBER, renamed when it is complete.
                shutil.copytree(compiled, target, ignore=shutil.ignore_patterns("*.pyc.*"))
        (root / ".cache").mkdir()
        drawn = prepared.folder().parent / "figures"  # what one copy has drawn, the others need not
        drawn.mkdir(exist_ok=True)
        (root / ".cache/figures").symlink_to(drawn)
        self.home = root / ".guild"
        self.home.mkdir()
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "OMP_"))
        }
        self.env = inherited | {
            "GUILD_HOME": str(self.home),
            "PYTHONPATH": str(root / "src"),
            "PATH": os.pathsep.join(
                map(str, (prepared.folder(), Path(sys.executable).parent, os.environ["PATH"]))
            ),
        }
        self._read_flags()

    def _read_flags(self) -> None:
        """Let Guild read the flags of all scripts, which takes seconds; take over what it has read in another copy."""
        done = prepared.folder().parent / "flags"
        ours = self.home / "cache/import-flags"
        with (done.with_suffix(".lock")).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                self.good("guild ops")
                new = done.with_suffix(".new")
                shutil.copytree(ours, new)
                (new / "root").write_text(str(self.root))
                new.rename(done)
                return
        ours.mkdir(parents=True)
        root = (done / "root").read_text()
        for script in (self.root / "src").rglob("*.py"):
            name = script.relative_to(self.root)
            read = done / _digest(f"{root}/{name}")
            if read.exists():
                content = read.read_text().replace(root, str(self.root))
                (ours / _digest(str(script))).write_text(content)

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
        """Run a line until a condition holds; then kill all its processes at once, as when a machine goes down."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = subprocess.Popen(f"exec {line}", shell=True, cwd=self.root, env=self.env, **quiet)
        until = time.monotonic() + seconds
        while not reached():
            assert started.poll() is None, f"$ {line}\nended by itself: {started.returncode}"
            assert time.monotonic() < until, f"$ {line}\nnot there after {seconds} s"
            time.sleep(0.05)
        prepared.kill_all(started, Path(self.env["PATH"].partition(os.pathsep)[0]).parent)

    @property
    def runs(self) -> list[Path]:
        """Run directories, oldest first."""
        changed = {}
        for path in (self.root / ".guild/runs").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # Guild removes a batch that has ended
                changed[path] = path.stat().st_ctime_ns
        return sorted(changed, key=changed.__getitem__)

    def runs_of(self, operation: str) -> list[Path]:
        """Directories of an operation's runs that have begun, oldest first; the name is without its model's."""
        begun = [run for run in self.runs if (run / "journal").exists()]
        return [run for run in begun if (run / ".guild/opref").read_text().split()[-1] == operation]

    def finished(self, operation: str) -> Path:
        """Directory of an operation's newest run that has ended well."""
        found = [run for run in self.runs_of(operation) if (run / "result.json").exists()]
        return max(found, key=lambda run: (run / "result.json").stat().st_mtime)


def _is_of(name: str, records: Collection[str]) -> bool:
    """Return whether a copy with the records of some studies has a file; the pages have rows of all studies."""
    if name.startswith("experiments/records/"):
        return name.split("/")[2] in records
    return not name.startswith(("catalog/", "runs_catalog.md"))


def _digest(path: str) -> str:
    """Return the name that Guild gives to the flags that it has read of a script."""
    return hashlib.md5(path.encode()).hexdigest()


def written(run: Path) -> dict:
    """What a run left in the end."""
    return json.loads((run / "result.json").read_text())
