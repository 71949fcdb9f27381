"""Render benchmarks/README.md from all result files."""

import sys
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._report import render  # noqa: E402

if __name__ == "__main__":
    print(render())
