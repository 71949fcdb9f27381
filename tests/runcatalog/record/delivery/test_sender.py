"""The process that sends a run to MLflow during the training."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runcatalog.record import journal
from runcatalog.record.delivery.sender import start_sender
from runcatalog.record.journal.files import locked
from runcatalog.record.lifecycle.status import last_session, status_of

AUTOGROUP = Path("/proc/self/autogroup")


def open_files(process: int) -> Iterator[str]:
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(file)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not schedule by session")
def test_the_sender_gives_way_to_other_sessions_until_the_training_has_ended(
    tmp_path, monkeypatch, wait_until
):
    monkeypatch.delenv("RECORD_MLFLOW", raising=False)
    (tmp_path / "journal").mkdir()
    sender = start_sender(tmp_path, tmp_path)
    group = Path(f"/proc/{sender.pid}/autogroup")
    try:
        wait_until(lambda: group.read_text().endswith("nice 19\n"))
        assert group.read_text().split()[0] != AUTOGROUP.read_text().split()[0]
        assert os.sched_getscheduler(sender.pid) == os.SCHED_IDLE
        sender.stdin.close()
        wait_until(lambda: group.read_text().endswith("nice 0\n"))
    finally:
        sender.kill()
        sender.wait()


def test_after_the_training_a_sender_that_got_no_idle_time_goes_on_at_the_usual_priority(
    tmp_path, toy, monkeypatch, wait_until
):
    """With busy cores, and no scheduling by session as in a container, the senders of ended runs piled up."""
    (tmp_path / "guild.yml").touch()
    finished = toy.start("--updates", 1, env={"RECORD_MLFLOW": "off"})
    assert finished.communicate(timeout=500)[1] == ""
    monkeypatch.delenv("RECORD_MLFLOW", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # so that something is left
    sender = start_sender(toy.directory, tmp_path)
    try:
        wait_until(lambda: os.sched_getscheduler(sender.pid) == os.SCHED_IDLE)
        sender.stdin.close()
        wait_until(lambda: os.sched_getscheduler(sender.pid) == os.SCHED_OTHER)
        assert os.getpriority(os.PRIO_PROCESS, sender.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        log = toy.directory / "journal" / journal.SENDER_LOG
        earlier = log.read_text()
        wait_until(lambda: log.read_text() != earlier)
        assert sender.poll() is None
    finally:
        sender.kill()
        sender.wait()


def test_the_sender_of_a_session_ends_as_soon_as_the_run_is_continued(
    tmp_path, toy, monkeypatch, wait_until
):
    """One that had not begun to send took the next session for its own, and stayed until the end of the run."""

    def begin(number):
        process = toy.start("--hold", 2, env={"RECORD_MLFLOW": "off"})
        wait_until(lambda: (last_session(toy.directory) or {}).get("session") == number)
        return process

    first = begin(1)
    monkeypatch.delenv("RECORD_MLFLOW", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # so that something is left
    sender = start_sender(toy.directory, tmp_path)
    try:
        os.kill(sender.pid, signal.SIGSTOP)
        first.kill()
        first.wait()
        second = begin(2)
        os.kill(sender.pid, signal.SIGCONT)
        assert sender.wait(500) == 0
        assert second.poll() is None
    finally:
        sender.kill()
        sender.wait()


def test_the_database_for_which_others_wait_is_made_at_the_usual_priority(
    tmp_path, monkeypatch, wait_until
):
    """At idle priority a machine with busy cores never made it, and `catalog sync` gave up after ten minutes."""
    for name in ("RECORD_MLFLOW", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "journal").mkdir()
    (tmp_path / "guild.yml").touch()
    lock = tmp_path / "mlflow.db.lock"
    with locked(lock):
        sender = start_sender(tmp_path, tmp_path)
        try:
            wait_until(lambda: str(lock) in set(open_files(sender.pid)))
            assert os.sched_getscheduler(sender.pid) == os.SCHED_OTHER
        except BaseException:
            sender.kill()
            raise
    try:
        wait_until(lambda: os.sched_getscheduler(sender.pid) == os.SCHED_IDLE)
        assert (tmp_path / "mlflow.db").stat().st_size
    finally:
        sender.kill()
        sender.wait()


def test_a_project_whose_folder_mlflow_cannot_name_is_trained_in_all_the_same(
    tmp_path, toy, wait_until
):
    project = tmp_path / "a%20b"
    project.mkdir()
    (project / "guild.yml").touch()
    toy_process = toy.start(
        "--updates", 3, "--every", 0, env={"PROJECT_DIR": str(project), "RECORD_MLFLOW": ""}
    )
    output, errors = toy_process.communicate(timeout=500)
    assert (toy_process.returncode, errors) == (0, "")
    assert "not sent yet: " in output
    assert "MLflow reads '%20'" in output
    assert status_of(toy.directory).status == "FINISHED"
    log = toy.directory / "journal" / journal.SENDER_LOG
    wait_until(lambda: "MLflow reads '%20'" in log.read_text())
    assert "Traceback" not in log.read_text()
    shutil.rmtree(toy.directory)  # which ends its sender
