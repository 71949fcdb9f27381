"""Runs end in every way, one `catalog sync` is typed, and each row says how: docs/reliability.md."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ends_table
import prepared
from rendered import committed
from runcatalog.record.journal.files import read_json
from runcatalog.record.lifecycle.process import process_state
from runcatalog.record.lifecycle.status import last_session
from small_disk import small_cgroup, small_disk

ROOT = Path(__file__).parents[2]
GUILD_YML = """
- include: [experiments/toy/guild.yml]
"""
TOY_YML = """
- config: toy
  sourcecode: {root: ., select: [{exclude: '*'}, {include: 'src/*.py'}]}
  operation-defaults: {pip-freeze: no, output-scalars: no}
- model: toy
  extends: toy
  operations:
    train: {main: src/toy.train, flags-import: all}
    broken: {main: src/toy.broken}
"""
FOR_EVER = {"updates": 10**6, "every": 0, "pause": 0.05}
SHORT = {"updates": 3, "every": 0}
# By the case's name in the table: flags of the training. What is done to it, if anything, is below.
UNDER_GUILD = {
    "finished": SHORT,
    "exception": SHORT | {"end": "error"},
    "SIGTERM": FOR_EVER,
    "Ctrl-C": FOR_EVER,
    "guild stop": FOR_EVER,
    "SIGKILL of the training": FOR_EVER,
    "SIGKILL of guild run": FOR_EVER,
    "SIGKILL of both": FOR_EVER,
}
BY_HAND = {
    "exception by hand": SHORT | {"end": "error"},
    "gradient explosion": SHORT | {"end": "nan"},
    "no result": SHORT | {"end": "nothing"},
    "sys.exit": SHORT | {"end": "exit"},
    "crash in native code": SHORT | {"end": "crash"},
    "os._exit": SHORT | {"end": "os_exit"},
    "out of memory in numpy": SHORT | {"end": "memory"},
    "clock set back": {"updates": 10, "every": 0, "jump": -3600},
    "clock set forward": {"updates": 10, "every": 0, "jump": 3600},
    "SIGKILL by hand": FOR_EVER,
}


class Group:
    """A project with one study, a Guild home and an MLflow of its own.

    Attributes:
        root: The project's directory.
        runs: Directory of the run of each case.
        processes: Process that was started for each case: `guild run`, or the script itself.
    """

    def __init__(self, root):
        self.root, self.runs, self.processes = root, {}, {}
        (root / "src" / "toy").mkdir(parents=True)
        (root / "experiments" / "toy").mkdir(parents=True)
        (root / "guild.yml").write_text(GUILD_YML)
        (root / "experiments" / "toy" / "guild.yml").write_text(TOY_YML)
        (root / "experiments" / "toy" / "catalog.md.j2").write_text(
            '## Toy\n\n{{ table(["toy:train", "toy:broken"]) }}\n'
        )
        shutil.copy(
            ROOT / "tests/runcatalog/record/toy_training.py", root / "src" / "toy" / "train.py"
        )
        (root / "src" / "toy" / "broken.py").write_text("import nowhere\n")
        self.home = root.parent / "guild"
        self.home.mkdir()
        foreign = ("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "VIRTUAL_ENV", "CONDA_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
            "GUILD_HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{root / 'src'}{os.pathsep}{ROOT / 'src'}",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "RECORD_MLFLOW": "off",
        }

    def start(self, case, command, **env):
        """Starts a command in a terminal of its own."""
        self.processes[case] = subprocess.Popen(
            command, cwd=self.root, env=self.env | env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def under_guild(self, case, operation, flags):
        """Starts `guild run`; the run is found by its label, which is the case's name."""
        given = [f"{name}={value}" for name, value in flags.items()]
        # What is killed needs to be the real process, below the real `guild run`.
        guild = "guild" if flags is FOR_EVER else prepared.folder() / "guild"
        self.start(case, [guild, "run", operation, *given, "--label", case, "-y"])

    def by_hand(self, case, flags):
        """Starts the script."""
        self.runs[case] = self.root / "runs" / case.replace(" ", "_")
        given = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        script = self.root / "src" / "toy" / "train.py"
        python = sys.executable if flags is FOR_EVER else prepared.python()
        self.start(case, [python, str(script), *given], RUN_DIR=str(self.runs[case]))

    def find(self):
        """Finds the directories of Guild's runs."""
        for path in (self.home / "runs").glob("*/.guild/attrs/label"):
            self.runs[path.read_text().strip().strip("'\"")] = path.parents[2]

    def trains(self, case):
        """Says whether the training has logged something."""
        self.find()
        path = self.runs.get(case, self.root) / "journal" / "metrics.jsonl"
        return path.exists() and path.stat().st_size > 0

    def pid(self, case):
        """Returns the training's process."""
        return last_session(self.runs[case])["pid"]

    def catalog(self, line):
        """Types `catalog …`."""
        command = [prepared.python(), "-m", "runcatalog.cli.main", *line.split()]
        done = subprocess.run(command, cwd=self.root, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def end(group, case):
    """Does to a training what its case says."""
    guild, training = group.processes[case], group.pid(case)
    if case == "SIGTERM":
        os.kill(training, signal.SIGTERM)
    elif case == "Ctrl-C":
        os.killpg(guild.pid, signal.SIGINT)
    elif case == "guild stop":
        command = ["guild", "stop", group.runs[case].name[:8], "-y"]
        subprocess.run(command, env=group.env, cwd=group.root, check=True, capture_output=True)
    elif case in ("SIGKILL of the training", "SIGKILL by hand"):
        os.kill(training, signal.SIGKILL)
    elif case == "SIGKILL of guild run":
        guild.kill()
    elif case == "SIGKILL of both":
        guild.send_signal(signal.SIGSTOP)  # else it may see how the training ended
        os.kill(training, signal.SIGKILL)
        guild.kill()


def copy_lost(group, case, minutes, **session):
    """Makes the journal of a run that was killed on another machine, or in another boot of this one."""
    copied = group.runs[case] = group.root / "runs" / case.replace(" ", "_")
    shutil.copytree(group.runs["SIGKILL by hand"], copied)
    facts = read_json(copied / "journal" / "run.json")
    facts["id"] = hashlib.md5(case.encode()).hexdigest()
    (copied / "journal" / "run.json").write_text(json.dumps(facts))
    now = int(time.time() * 1000) - minutes * 60_000
    begun = last_session(copied) | {"started": now - 1000, **session}
    (copied / "journal" / "sessions.jsonl").write_text(json.dumps(begun) + "\n")
    progress = {"t": now, "seconds": 1.0, "session": 1}
    (copied / "journal" / "progress.json").write_text(json.dumps(progress))
    return now


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Runs that have ended in every way, and one `catalog sync`."""
    group = Group(tmp_path_factory.mktemp("ends") / "project")
    with contextlib.ExitStack() as stack:
        try:
            _end_all(group, stack)
            group.synced = group.catalog("sync")
            group.catalog("export")
            group.catalog("render")
        finally:
            for process in group.processes.values():
                process.kill()
                process.wait()
        yield group


def wait_until(condition):
    """Waits for a condition, and fails if it never comes."""
    limit = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def _end_all(group, stack):
    for case, flags in UNDER_GUILD.items():
        group.under_guild(case, "toy:train", flags)
    for case, flags in BY_HAND.items():
        group.by_hand(case, flags)
    group.under_guild("before recording", "toy:broken", {})
    with contextlib.suppress(pytest.skip.Exception):
        cgroup = stack.enter_context(small_cgroup(128))
        case = "out of memory, killed by the kernel"
        group.under_guild(case, "toy:train", SHORT | {"end": "hog", "cgroup": cgroup})
    with contextlib.suppress(pytest.skip.Exception):
        stack.enter_context(small_disk(group.root / "runs" / "disk_full", 1024))
        group.by_hand("disk full", SHORT | {"end": "full_disk"})
    lasting = [case for case, flags in (UNDER_GUILD | BY_HAND).items() if flags is FOR_EVER]
    for case in lasting:
        wait_until(lambda case=case: group.trains(case))
        end(group, case)
    for case, process in group.processes.items():
        process.wait(timeout=500)
        group.find()
        with contextlib.suppress(FileNotFoundError, TypeError):  # the training outlives guild run
            wait_until(lambda c=case: process_state(group.pid(c))[0] in ("", "Z"))
    copy_lost(group, "machine lost", 16, host=f"other-{socket.gethostname()}", boot="other")
    up = time.clock_gettime(time.CLOCK_BOOTTIME) / 60
    copy_lost(group, "machine restarted", int(up) + 10, boot="other")


def record_of(group, case):
    """Returns the exported record of a case's run."""
    facts = read_json(group.runs[case] / "journal" / "run.json") or {}
    run_id = facts.get("id", group.runs[case].name)
    (path,) = (group.root / "experiments/records/toy").glob(f"{run_id[:8]}*.json")
    return read_json(path)


def artifacts_of(group, case):
    """Returns the text files that MLflow keeps of a case's run, by name."""
    facts = read_json(group.runs[case] / "journal" / "run.json") or {}
    sent = read_json(group.runs[case] / "journal" / "mlflow.json") or {}
    assert facts
    (state,) = sent.values()
    folder = group.root / "mlartifacts" / "toy" / state["run"] / "artifacts"
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


OTHERS = (
    "before recording",
    "out of memory, killed by the kernel",
    "disk full",
    "machine lost",
    "machine restarted",
)
CASES = [*UNDER_GUILD, *BY_HAND, *OTHERS]


@pytest.mark.parametrize("case", CASES)
def test_told_in_one_sync(group, case):
    if case not in group.runs:
        pytest.skip("needs root")
    record = record_of(group, case)
    ends_table.check(case, record["status"], record["reason"])
    (row,) = [
        line
        for line in committed(group.root).splitlines()
        if f'<a id="{record["run"][:8]}">' in line
    ]
    for word in record["reason"].replace("_", " ").replace("'", " ").split():
        assert word in row.replace("\\", "").replace("_", " "), row


def test_a_failure_keeps_its_traceback_and_the_end_of_its_log(group):
    for case in ("exception", "exception by hand"):
        kept = artifacts_of(group, case)
        assert 'raise ValueError("the toy\\nbroke")' in kept["error.txt"]
        assert len(kept["log_tail.txt"].splitlines()) == 20
        assert "line 29" in kept["log_tail.txt"]
        assert "line 1\n" not in kept["log_tail.txt"]
    crash = artifacts_of(group, "crash in native code")
    assert "train.py" in crash["error.txt"]
    assert crash["log_tail.txt"].splitlines()[-1] == "line 29"
    assert "error.txt" not in artifacts_of(group, "finished")
    tails = (group.root / "mlartifacts").rglob("log_tail.txt")
    assert any("No module named 'nowhere'" in path.read_text() for path in tails)


def test_times_stay_right_when_the_clock_is_set(group):
    for case in ("clock set back", "clock set forward"):
        record = record_of(group, case)
        result = read_json(group.runs[case] / "result.json")
        assert 0 <= record["wall_seconds"] < 1800
        assert 0 <= result["ended"] - result["started"] < 1_800_000
        # What comes before the first session is no part of it
        assert record["wall_seconds"] == pytest.approx(
            (result["ended"] - result["started"]) / 1000, abs=600
        )


def test_a_second_sync_has_nothing_to_say(group):
    assert " 0 sent" in group.catalog("sync")


def test_every_row_of_the_table_has_its_test():
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    tests = [source for source in sources if "import ends_table" in source]
    for row in ends_table.rows().values():
        assert any(f'"{row.case}"' in source for source in tests), row
        assert row.how
        assert row.status in ("FINISHED", "FAILED", "KILLED")
