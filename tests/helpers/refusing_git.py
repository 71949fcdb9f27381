"""A git that fails in one of its commands, as one does that runs out of memory or time."""

import os
import shutil
from pathlib import Path

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str) -> None:
    """Put a git on PATH that fails in a command and otherwise is the real one."""
    folder.mkdir()
    script = folder / "git"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" {command} "*) exit 128;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
