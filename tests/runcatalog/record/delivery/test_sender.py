"""The process that sends a run to MLflow beside the training."""

import os
import time
from pathlib import Path

import pytest

from runcatalog.record.delivery.sender import start_sender

AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not schedule by session")
def test_the_sender_has_the_lowest_priority_beside_other_sessions(tmp_path, monkeypatch):
    monkeypatch.delenv("RECORD_MLFLOW", raising=False)
    (tmp_path / "journal").mkdir()
    sender = start_sender(tmp_path, tmp_path)
    group = Path(f"/proc/{sender.pid}/autogroup")
    try:
        end = time.monotonic() + 60
        while not group.read_text().endswith("nice 19\n") and time.monotonic() < end:
            time.sleep(0.05)
        assert group.read_text().endswith("nice 19\n")
        assert group.read_text().split()[0] != AUTOGROUP.read_text().split()[0]
        assert os.sched_getscheduler(sender.pid) == os.SCHED_IDLE
    finally:
        sender.kill()
        sender.wait()
