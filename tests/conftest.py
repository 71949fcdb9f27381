"""Settings of all tests, their order, and what they cost."""

import os

# Before numpy or torch is imported: several test processes share the cores, and each would start a thread per core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

import prepared
from prepared import database

# A machine that is busy is slow, not wrong; pytest's own timeout ends what hangs.
# A commit passes always or never; HYPOTHESIS_PROFILE=random looks further.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
COSTS = "seconds of files"  # entry of pytest's cache
UNKNOWN = 10.0  # s, of a file that was not run yet
JOURNEY = 100.0


def pytest_configure(config) -> None:
    # What one process has compiled, the others read.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    server = prepared.start()
    if server:
        config.add_cleanup(lambda: prepared.stop(server))
        config.add_cleanup(lambda: os.environ.pop(prepared.FOLDER))
    if config.getoption("tx", None):
        # Test processes are forks too: the imports would take each of them ten seconds.
        python = f"popen//python={shlex.quote(prepared.python())}"
        config.option.tx = [python if each == "popen" else each for each in config.option.tx]
    if sys.executable == prepared.python():
        sys.executable = str(Path(sys.prefix) / "bin/python")  # which tests of an interpreter start
    database.install(prepared.folder().parent)
    config.pluginmanager.register(CostOfFiles(config))


def pytest_xdist_auto_num_workers() -> int:
    """Return two more than there are cores: many tests wait for processes."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(config, items) -> None:
    """Put the files that took longest last time first, so that no process is left with one of them in the end."""
    costs = known_costs(config)

    def seconds(item) -> float:
        file = item.nodeid.partition("::")[0]
        return costs.get(file, JOURNEY if "/journeys/" in file else UNKNOWN)

    items.sort(key=seconds, reverse=True)


def known_costs(config) -> dict[str, float]:
    """Return the seconds that files took when they were last run here."""
    return config.cache.get(COSTS, {}) if hasattr(config, "cache") else {}


def cpu_seconds() -> float:
    """Return the CPU time, user and system, of this process, its ended children and their prepared forks."""
    return sum(os.times()[:4]) + prepared.cpu_seconds(WORKER)


class CostOfFiles:
    """Note the CPU time of every test; show the slowest files at the end: ten, or all with ``ALL_FILES=1``."""

    def __init__(self, config) -> None:
        self._config = config
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
        shown = None if os.environ.get("ALL_FILES") else 10
        terminalreporter.section("slowest files")
        terminalreporter.line(f"{'seconds':>8} {'of CPU':>8}")
        for file, total in seconds.most_common(shown):
            terminalreporter.line(f"{total:8.1f} {cpu[file]:8.1f}  {file}")
        terminalreporter.line(f"{seconds.total():8.1f} {cpu.total():8.1f}  all files")
        if hasattr(self._config, "cache"):
            now = {file: round(total, 1) for file, total in seconds.items()}
            self._config.cache.set(COSTS, known_costs(self._config) | now)
