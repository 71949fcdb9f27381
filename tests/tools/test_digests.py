"""tools/digests.py, which compares small runs of versions."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_unknown_version_ends_the_tool_before_the_runs_of_another():
    done = subprocess.run(
        [sys.executable, "tools/digests.py", "HEAD", "nosuch", "--runs", "skill"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "nosuch: a commit or the name of a branch is expected"
    assert "HEAD: skill" not in done.stderr
