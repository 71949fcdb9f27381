"""The kernel's out-of-memory kill is distinguished from a user's SIGKILL, on a real kernel."""

import os
import signal
import subprocess
import sys

import pytest

import ends_table
from runcatalog.record.journal.lines import append_line
from runcatalog.record.lifecycle import out_of_memory
from runcatalog.record.lifecycle.status import last_session, save_kill_evidence, status_of
from small_disk import small_cgroup


@pytest.fixture
def ended_in_cgroup(toys):
    """Yield (directory of a run killed by a user, of one killed by the kernel at 128 MB, status of the first)."""
    with small_cgroup(128) as cgroup:
        flags = ["--updates", 3, "--every", 0, "--cgroup", cgroup]
        killed, starved = toys("killed"), toys("starved")
        process = killed.start(*flags, "--updates", 10**6, "--pause", 0.1)
        while not killed.lines():
            assert process.poll() is None
        process.kill()
        process.communicate()
        saved = status_of(killed.directory)
        save_kill_evidence(killed.directory)
        assert starved.run(*flags, "--end", "hog")[0] == -signal.SIGKILL
        yield killed.directory, starved.directory, saved


def test_the_kernels_kill_is_distinguished_from_a_users(ended_in_cgroup, monkeypatch, tmp_path):
    killed, starved, saved = ended_in_cgroup
    ends_table.check("SIGKILL by hand", saved.status, saved.reason)
    if os.access(out_of_memory.KERNEL_LOG, os.R_OK):
        status = status_of(starved)
        ends_table.check("out of memory, killed by the kernel", status.status, status.reason)
    monkeypatch.setattr(out_of_memory, "KERNEL_LOG", tmp_path / "none")
    status = status_of(starved)
    ends_table.check("out of memory, log not readable", status.status, status.reason)
    # The cgroup's counter has grown since; the evidence saved at the end still counts.
    status = status_of(killed)
    ends_table.check("SIGKILL by hand", status.status, status.reason)
    (killed / "journal" / "traces.json").unlink()
    assert status_of(killed).reason == "out of memory (killed by the kernel)"  # the count alone


def test_a_kill_elsewhere_on_the_machine_is_no_evidence(toy, monkeypatch, tmp_path, wait_until):
    process = toy.start("--updates", 10**6, "--every", 0)
    wait_until(lambda: toy.lines() > 10)
    with small_cgroup(16) as cgroup:
        hog = "import sys, os; open(sys.argv[1], 'w').write(str(os.getpid())); bytearray(1 << 28)"
        done = subprocess.run([sys.executable, "-c", hog, str(cgroup / "cgroup.procs")])
        assert done.returncode == -signal.SIGKILL
    process.kill()
    process.communicate()
    ends_table.check("SIGKILL by hand", *status_of(toy.directory)[:2])
    monkeypatch.setattr(out_of_memory, "KERNEL_LOG", tmp_path / "none")
    ends_table.check("SIGKILL by hand", *status_of(toy.directory)[:2])  # its own cgroup lost none
    sessions = toy.directory / "journal" / "sessions.jsonl"
    begun = last_session(toy.directory)
    sessions.unlink()
    append_line(sessions, begun | {"oom_file": "/none"})
    ends_table.check("out of memory somewhere", *status_of(toy.directory)[:2])


def test_both_versions_of_cgroups_are_read(tmp_path):
    # Lines of a kernel's own files; only one version exists on a machine.
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    session = {"pid": 2**22 + 1, "oom_cgroup": 1}
    version_2 = session | {"oom_file": str(tmp_path / "memory.events")}
    version_1 = session | {"oom_file": str(tmp_path / "memory.oom_control")}
    assert out_of_memory.evidence(version_2) == out_of_memory.CGROUP
    assert out_of_memory.evidence(version_1) == out_of_memory.NONE
    assert out_of_memory.evidence(session) == out_of_memory.NONE
