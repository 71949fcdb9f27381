"""A session that is no longer the newest, or whose directory was deleted, stops and writes nothing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from runcatalog import record
from runcatalog.record.errors import OwnershipLost, RunFailed
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import locked, read_json, write_json
from runcatalog.record.journal.lines import append_line, read_lines
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle import session
from runcatalog.record.lifecycle.status import status_of


def age_heartbeat(directory, minutes):
    path = directory / "journal" / "progress.json"
    beat = read_json(path)
    write_json(path, beat | {"t": beat["t"] - minutes * 60_000})


def other_namespace(directory):
    """Return a command whose processes see no other processes; without root, forge the run's namespace."""
    command = ["unshare", "--pid", "--fork"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    path = directory / "journal" / "sessions.jsonl"
    ((line, _),) = read_lines(path)
    path.unlink()
    append_line(path, line | {"pid_namespace": "pid:[1]"})
    return ["env"]


def content(directory):
    """Return the bytes of all files of a run except those of the process's output."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.name != "output.txt"}


def test_a_suspended_training_that_was_continued_elsewhere_writes_nothing(toy, wait_until):
    toy.python = sys.executable
    first = toy.start("--updates", 150, "--every", 0, "--pause", 0.1)
    wait_until(lambda: toy.lines() > 20)  # long before its end, which it would not be woken from
    wait_until(lambda: _suspended(first, toy.directory))
    age_heartbeat(toy.directory, 17)
    assert status_of(toy.directory).status == "RUNNING"  # by this machine's clock
    wrapper = other_namespace(toy.directory)
    assert toy.run("--updates", 150, "--every", 0, wrapper=wrapper) == (0, "")
    before = content(toy.directory)
    first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=240)
    assert first.returncode == 2
    assert errors.count("\n") == 1
    assert "this run was continued by another process (pid " in errors
    assert "this process stops and has written nothing more" in errors
    assert content(toy.directory) == before
    assert status_of(toy.directory).status == "FINISHED"
    assert read_json(toy.directory / "result.json")["session"] == 2
    points = Counter(p[1:3] for p in read_points(toy.directory / "journal/metrics.jsonl"))
    assert set(points.values()) == {1}
    assert len(points) == 3 * 150 + 1


def _suspended(process, directory):
    """Suspend a process, but not while it holds the lock, which no session could then get."""
    process.send_signal(signal.SIGSTOP)
    wait = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert wait.si_code == os.CLD_STOPPED
    try:
        with locked(directory / "journal" / "start.lock", timeout=0):
            return True
    except TimeoutError:
        process.send_signal(signal.SIGCONT)
        return False


@pytest.fixture
def run(project, monkeypatch):
    """A run of this process that another session continues in the test."""
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    return record.start(record.Config(), study="toy")


@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.log({"loss": 2.0}, 2),
        lambda run: run.event("half"),
        lambda run: run.progress(1, 1, "update"),
        lambda run: run.checkpoint(2, {}, {}),
        lambda run: run.add_parent("f" * 32),
        lambda run: run.artifact("figure.txt"),
        lambda run: run.finish({}),
        lambda run: sys.exit(3),
        lambda run: None,
    ],
)
def test_every_write_of_an_older_session_is_refused(run, write):
    def train():
        with run:
            run.log({"loss": 1.0}, 1)
            run.checkpoint(1, {}, {})
            session.start_session(run.directory)
            train.before = content(run.directory)
            write(run)

    with pytest.raises(OwnershipLost, match="was continued by another process"):
        train()
    assert content(run.directory) == train.before
    assert status_of(run.directory).status == "RUNNING"


def test_an_older_session_writes_no_heartbeat(run, monkeypatch):
    with contextlib.suppress(OwnershipLost), run:
        session.start_session(run.directory)
        before = content(run.directory)
        monkeypatch.setattr(run._stop_beating, "wait", lambda seconds: False)
        run._heartbeat()  # returns
        assert content(run.directory) == before
    assert run._session.ownership.is_lost


def test_no_session_begins_while_the_directory_is_owned(run):
    with run:
        with run._owned():
            code = "from runcatalog.record import run; run._START_TIMEOUT = 0.2\n"
            code += "from runcatalog import record\nfrom runcatalog.record import UserError\n"
            code += "try: record.start(record.Config(), study='toy').__enter__()\n"
            code += "except UserError as error: print(error)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert "start.lock: locked by a process that starts, saves or ends" in done.stdout
        assert len(list(read_lines(run.directory / "journal/sessions.jsonl"))) == 1
        run.finish({})


@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.log({"loss": 1.0}, 2),
        lambda run: run.checkpoint(2, {}, {}),
        lambda run: run.finish({"objective": {"name": "loss", "value": 1.0}}),
        lambda run: run.finish({}),
    ],
)
def test_a_forked_worker_that_records_is_told_so_and_damages_nothing(run, write):
    with run:
        run.log({"loss": 1.0}, 1)
        if (worker := os.fork()) == 0:
            try:
                write(run)
            except RunFailed:
                os._exit(7)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 7
        run.log({"loss": 2.0}, 2)
        assert run.finish({})["status"] == "FINISHED"
    points = read_points(run.directory / "journal" / "metrics.jsonl")
    assert [(point.step, point.value) for point in points] == [(1, 1.0), (2, 2.0)]
    assert not list((run.directory / "checkpoints").iterdir())


def test_a_lock_is_not_kept_by_a_forked_worker(tmp_path):
    with locked(tmp_path / "lock"):
        worker = os.fork()
        if not worker:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path / "lock", timeout=0):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


@pytest.mark.parametrize("every", [0, 5])
def test_a_training_whose_directory_was_deleted_stops(toy, wait_until, every):
    process = toy.start("--updates", 10**6, "--every", every, "--pause", 0.01)
    wait_until(lambda: toy.lines() > 20)
    wait_until(lambda: _deleted(toy.directory))
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert f"{toy.directory}: its directory was deleted while it ran" in errors
    assert not (toy.directory / "result.json").exists()


def _deleted(directory):
    """Delete the directory; a write in the same moment may need a second attempt."""
    shutil.rmtree(directory, ignore_errors=True)
    return not (directory / "journal").exists()


def test_garbage_after_the_own_session_stops_nothing(run):
    path = run.directory / "journal" / "sessions.jsonl"
    with run:
        run.log({"loss": 1.0}, 1)
        with path.open("ab") as file:
            file.write(
                b'{"session": 9}\nnonsense\n' + json.dumps({"started": "x"}).encode() + b"\n"
            )
        run.log({"loss": 0.5}, 2)
        written = run.finish({})
    assert status_of(run.directory).status == "FINISHED"
    assert written["damaged_lines"] == 3
    assert damage_of(path).lines == (2, 3, 4)
    path.write_bytes(b"nonsense\n")
    with pytest.raises(FileNotFoundError, match="1 of 1 line cannot be read"):
        status_of(run.directory)


def test_a_later_sessions_crash_report_is_kept(run):
    with contextlib.suppress(OwnershipLost), run:
        report = run.directory / "journal" / "crash.txt"
        report.unlink(missing_ok=True)
        report.touch()  # a later session's, still empty
        session.start_session(run.directory)
        run.log({"loss": 1.0}, 1)
    assert report.exists()
    assert (run.directory / "journal" / "reserve").exists()
