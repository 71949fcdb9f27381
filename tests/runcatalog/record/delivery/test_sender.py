"""The process that sends a run to MLflow during the training."""

import os
from pathlib import Path

import pytest

from runcatalog.record.delivery.sender import start_sender

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
