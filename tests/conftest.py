"""Settings of all tests."""

import os
import sys

# Before numpy or torch is imported: several test processes share the cores, and each would start a thread per core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What one process has compiled, the next ones read.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from collections import Counter

import pytest
from hypothesis import settings

import prepared
from prepared import database

# A machine that is busy is slow, not wrong; pytest's own timeout ends what hangs.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


# Folders whose files take minutes come first, so that no process is left with one of them in the end.
SLOW = ("journeys", "textgames", "faults", "lifecycle", "record", "search")
# On a fresh machine it compiles what other files then find; two at once would both compile it, for 20 s.
FIRST = "test_skill_agents.py"


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(SLOW)}
    items.sort(
        key=lambda item: (item.path.name != FIRST, ranks.get(item.path.parent.name, len(SLOW)))
    )


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")


def cpu_seconds() -> float:
    """Return the CPU time, user and system, of this process, its ended children and their prepared forks."""
    return sum(os.times()[:4]) + prepared.cpu_seconds(WORKER)


class CostOfFiles:
    """Note the CPU time of every test; show the ten slowest files at the end."""

    def __init__(self) -> None:
        self._last = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        now = cpu_seconds()
        report.cpu, self._last = now - self._last, now
        return report

    def pytest_terminal_summary(self, terminalreporter) -> None:
        seconds, cpu = Counter(), Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if hasattr(report, "cpu"):
                    file = report.nodeid.partition("::")[0]
                    seconds[file] += report.duration
                    cpu[file] += report.cpu
        if len(seconds) < 2:
            return
        terminalreporter.section("slowest files")
        terminalreporter.line(f"{'seconds':>8} {'of CPU':>8}")
        shown = None if os.environ.get("ALL_FILES") else 10
        for file, total in seconds.most_common(shown):
            terminalreporter.line(f"{total:8.1f} {cpu[file]:8.1f}  {file}")
        terminalreporter.line(f"{sum(seconds.values()):8.1f} {sum(cpu.values()):8.1f}  all files")


def pytest_configure(config) -> None:
    server = prepared.start()
    if server:
        config.add_cleanup(lambda: prepared.stop(server))
    database.install(prepared.folder().parent)
    config.pluginmanager.register(CostOfFiles())
