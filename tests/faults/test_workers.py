"""No trial of a sweep is lost or duplicated when workers and scheduler die: a small run of `workers.py`."""

import os
import signal

import pytest

pytest.importorskip("distributed")

from faults.workers import Storm
from runcatalog.record.lifecycle.status import last_session

pytestmark = pytest.mark.timeout(900)  # the lab's processes take turns with all else that runs


def test_every_trial_of_a_sweep_under_strikes_finishes_once(tmp_path):
    strikes = ["worker", "scheduler", "worker"]
    storm = Storm(tmp_path, workers=2, seed=2)
    try:
        storm.open()
        code, output = storm.sweep(4, strikes)
        assert code == 0, output
        assert storm.problems(4) == []
        assert sorted(storm.struck.elements()) == sorted(strikes)
        moved = storm.moved()
        assert moved
        assert storm.other_digests(moved[:1]) == []
    finally:
        storm.close()


def test_a_run_of_a_suspended_worker_continues_on_another_worker_of_the_same_machine(tmp_path):
    storm = Storm(tmp_path, workers=2, seed=1)
    lab = storm.lab
    try:
        storm.open()
        flags = "updates=400 every=10 pause=0.05"
        storm.running = lab.background(f"guild run small:train {flags} -y", ENGINE="lab")
        lab.wait(lambda: any(lab.home.glob("runs/*/checkpoints/*/checkpoint.json")))
        (run,) = storm.trials()
        busy = lab.wait(lambda: [w["name"] for w in storm.engine.workers() if w["running"]])[0]
        # The process of its run continues during the next attempt.
        os.kill(lab.pid(busy), signal.SIGSTOP)
        out, _ = storm.running.communicate(timeout=400)
        assert storm.running.returncode == 0, out
        assert f"{busy} does not answer" in out
        assert last_session(run)["session"] == 2
    finally:
        storm.close()
