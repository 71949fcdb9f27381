"""No trial of a sweep is lost or comes twice when workers and scheduler die: the storm of `workers.py`, small."""

import pytest

pytest.importorskip("distributed")

from faults.workers import Storm

pytestmark = pytest.mark.timeout(900)  # the lab's processes take turns with all else that runs


def test_each_trial_of_a_sweep_under_strikes_finishes_once(tmp_path):
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
