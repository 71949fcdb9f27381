"""A disk that is soon full, and a cgroup that is soon out of memory; both need root."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

_MEMORY_V1 = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def small_disk(path, kilobytes):
    """Mount a disk of that size at a new directory."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk (root has it)")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def small_cgroup(megabytes):
    """Create a cgroup whose processes the kernel kills when they use more; return its directory."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers")
    parent, limit = _MEMORY_V1, "memory.limit_in_bytes"
    if version_2.exists() and "memory" in version_2.read_text():
        parent, limit = version_2.parent, "memory.max"
    path = parent / f"record-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / limit).write_text(str(megabytes << 20))
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip("no right to make a cgroup (root has it)")
    try:
        yield path
    finally:
        path.rmdir()
