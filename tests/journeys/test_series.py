"""A continual series as typed: it is killed, goes on, and ends as one that was not killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from door import series
from door.metrics import final_matrix
from journeys.shell import Project

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
SMALL = "env-steps=6144 video=no seed=5"
TWO = "steps='series3:hnppo_pull_0 series3:hnppo_pull_left_1'"


def _operation(run: Path) -> str:
    return (run / ".guild/opref").read_text()


def _newest(project: Project, name: str) -> Path | None:
    return next((run for run in reversed(project.runs) if name in _operation(run)), None)


def _kill(process: subprocess.Popen) -> None:
    """Everything at once, as when a machine goes down."""
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        os.kill(each.pid, signal.SIGKILL)
    process.wait(60)


def _result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


@pytest.fixture
def killed(project: Project) -> Path:
    """A series that was killed in its second task and restarted."""
    known = set(project.runs)
    line = f"exec guild run series3:all {TWO} {SMALL} -y"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(line, shell=True, cwd=project.root, env=project.env, **quiet)
    second = None
    for _ in range(12_000):  # ten minutes, for a machine that is busy
        second = _newest(project, "hnppo_pull_left_1") if project.runs else None
        metrics = second / "journal/metrics.jsonl" if second else None
        if metrics and metrics.exists() and len(metrics.read_text().splitlines()) > 1:
            break
        time.sleep(0.05)
    _kill(started)
    whole = _newest(project, "series3 all")
    assert not (whole / "result.json").exists()
    assert not (second / "result.json").exists()
    project.good(f"guild run --restart {whole.name[:8]} -y")
    steps = {step.resolve().name for step in (whole / "steps").iterdir()}
    assert {run.name for run in set(project.runs) - known} == {
        whole.name,
        *steps,
    }  # none was run twice
    return whole


def test_a_killed_series_is_as_good_as_another(project, killed, monkeypatch) -> None:
    """One test: a process of the suite that has one of its own would make the series again, for a minute."""
    _it_ends_as_if_nothing_had_happened(project, killed)
    _a_task_of_another_series_is_not_run_again(project, killed, monkeypatch)
    _metrics_find_both_series_and_refuse_one_that_does_not_fit(project, killed)


def _it_ends_as_if_nothing_had_happened(project: Project, killed: Path) -> None:
    first, second = (killed / "steps/0_pull").resolve(), (killed / "steps/1_pull_left").resolve()
    before = project.runs
    project.good(f"guild run series3:hnppo_pull_left_1 {SMALL} previous={first.name} -y")
    (by_itself,) = (run for run in project.runs if run not in before)
    alone = _result(by_itself)
    assert _result(second)["digest"] == alone["digest"]
    assert _result(second)["result"]["metrics"] == alone["result"]["metrics"]
    assert alone["result"]["task_id"] == 1
    assert _result(killed)["result"]["matrix"] == final_matrix([first, by_itself]).tolist()


def _a_task_of_another_series_is_not_run_again(project, killed, monkeypatch) -> None:
    monkeypatch.setenv("GUILD_HOME", project.env["GUILD_HOME"])
    first = (killed / "steps/0_pull").resolve().name
    two = ["series3:hnppo_pull_0", "series4:hnppo_pull_left_1"]
    flags = {"steps": " ".join(two), "seed": 5, "env_steps": 6144, "video": "no"}
    assert series._choose(two[0], two, series.Config(**flags)) == series.Step(two[0], first, True)
    for changed in ({"seed": 6}, {"env_steps": 4096}, {"video": "yes"}, {"reuse": False}):
        assert not series._choose(two[0], two, series.Config(**flags | changed)).reused
    # A step of its own is run again, and so is one that has not ended well.
    assert not series._choose(two[0], two[:1], series.Config(**flags)).reused
    assert not series._choose(two[1], two, series.Config(**flags)).reused


def _metrics_find_both_series_and_refuse_one_that_does_not_fit(project, killed) -> None:
    line = f"guild run door:metrics_series3 series={killed.name} reference={killed.name} seed=5 -y"
    project.bad(line, "reference: ", "learned pull_left on from another task")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guild run series4:hnppo_lever_2 -y", ("series4:hnppo_pull_left_1",)),
        ("guild run series4:all steps='' -y", ("--steps",)),
        ("guild run series4:all steps=series4:nothing_0 -y", ("series4:nothing_0",)),
    ],
)
def test_a_mistake_gets_one_clear_line(project: Project, line: str, words: tuple[str, ...]) -> None:
    project.bad(line, *words)
