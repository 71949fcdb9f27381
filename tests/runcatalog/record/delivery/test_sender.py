"""The process that sends a run to MLflow during the training."""

import os
import shutil
from pathlib import Path

import pytest

from runcatalog.record import journal
from runcatalog.record.delivery.sender import start_sender
from runcatalog.record.lifecycle.status import status_of

AUTOGROUP = Path("/proc/self/autogroup")


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
