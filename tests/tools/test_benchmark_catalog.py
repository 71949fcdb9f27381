"""The numbers of runs of the benchmarks with synthetic runs, which are made in blocks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "flag", "value", "message"),
    [
        ("catalog", "--sizes", "100,150", "'150' is no multiple of 100"),
        ("catalog", "--sizes", "300,100", "'300,100' does not ascend"),
        ("site", "--count", "0", "'0' is no multiple of 100"),
    ],
)
def test_a_number_of_runs_that_cannot_be_made_is_refused(script, flag, value, message):
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", flag, value, "--dry-run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"argument {flag}: {message}")
