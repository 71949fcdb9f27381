"""Runs started by another run: order, parallel slots, failures, equivalence."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from guild import guildfile

import prepared
from runcatalog.guild import child_runs, finished_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import RunFailed, UserError

SCRIPT = """
import json, os, pathlib, sys, time
folder, code, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
begun = time.time()
(folder / ".guild/attrs").mkdir(parents=True)
(folder / ".guild/LOCK").write_text(str(os.getpid()))
time.sleep(seconds)
report = {"begun": begun, "ended": time.time(), "place": os.environ.get("PLACE", "")}
(folder / "report.json").write_text(json.dumps(report))
(folder / ".guild/attrs/exit_status").write_text(str(code))
sys.exit(code)
"""


@dataclass(kw_only=True)
class Process(PlannedRun):
    """A planned run whose process sleeps, in place of Guild's."""

    home: Path
    code: int = 0
    seconds: float = 0.05

    @property
    def directory(self) -> Path:
        return self.home / self.run

    def start(self, flags, environment=None):
        self.directory.mkdir()
        words = [sys.executable, "-c", SCRIPT, self.directory, self.code, self.seconds]
        line = shlex.join(map(str, words))
        # The script is a child process of the started one, as under Guild.
        return subprocess.Popen(
            ["sh", "-c", f"{line}; exit $?"], env={"RUN_ID": self.run, **(environment or {})}
        )


def planned(tmp_path, **options):
    runs = {
        name: Process(f"m:{name}", name, name=name, flags={}, home=tmp_path, **option)
        for name, option in options.items()
    }
    return runs


def report(link):
    return json.loads((link.directory / "report.json").read_text())


def test_runs_start_after_those_they_require(tmp_path):
    runs = planned(tmp_path, a={}, b={"after": {"previous": "a"}}, c={"after": {"previous": "b"}})
    progress = []
    child_runs.run_all(runs, 3, lambda text: None, progress.append)
    assert report(runs["a"])["ended"] <= report(runs["b"])["begun"]
    assert report(runs["b"])["ended"] <= report(runs["c"])["begun"]
    assert progress[-1] == 3
    child_runs.run_all(runs, 3, pytest.fail, progress.append)  # nothing is left to be started


def test_a_failed_run_stops_the_others(tmp_path):
    runs = planned(tmp_path, a={"code": 3}, b={"seconds": 3600.0})  # longer than a test may take
    with pytest.raises(RunFailed, match="a: m:a, run a, ended with status 3"):
        child_runs.run_all(runs, 2, lambda text: None, lambda count: None)
    assert not runs["b"].finished


def test_failures_are_reported_while_others_continue_in_their_own_slots(tmp_path):
    runs = planned(tmp_path, a={"code": 3}, b={}, c={}, d={"code": 1})
    failed = []
    child_runs.run_all(
        runs, [{"PLACE": "one"}, {"PLACE": "two"}], lambda text: None, lambda count: None,
        lambda link, code: failed.append((link.name, code)),
    )  # fmt: skip
    assert sorted(failed) == [("a", 3), ("d", 1)]
    assert runs["b"].finished
    assert runs["c"].finished
    reports = sorted((report(link) for link in runs.values()), key=lambda entry: entry["begun"])
    assert {entry["place"] for entry in reports} == {"one", "two"}
    for place in ("one", "two"):
        at_place = [entry for entry in reports if entry["place"] == place]
        assert all(x["ended"] <= y["begun"] for x, y in pairwise(at_place))


def test_runs_that_require_a_failed_run_are_not_started(tmp_path, monkeypatch):
    needs = {"b": "a", "c": "b", "e": "d"}
    runs = planned(
        tmp_path, a={"code": 3}, d={}, **{n: {"after": {"previous": name}} for n, name in needs.items()}
    )  # fmt: skip
    failed, progress = [], []
    child_runs.run_all(
        runs, 2, lambda text: None, progress.append, lambda link, code: failed.append(link.name)
    )
    assert failed == ["a"]
    assert {name for name, link in runs.items() if link.finished} == {"d", "e"}
    assert not runs["b"].directory.exists()
    assert not runs["c"].directory.exists()
    assert progress[-1] == 5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": "0a', "cannot be read"),
        ('["0a"]', "{name: run id} is expected"),
        ('{"a": 7}', "the key 'a' has the value 7"),
    ],
)
def test_a_damaged_plan_is_named_and_kept(tmp_path, content, words):
    path = tmp_path / "search.json"
    path.write_text(content)
    with pytest.raises(UserError, match=f"{re.escape(str(path))}.*{re.escape(words)}"):
        child_runs.plan(path, [PlannedRun("m:a", name="a", flags={})])
    assert path.read_text() == content


TOY = """
- model: toy
  operations:
    train:
      main: train
      flags-import: all
      flags: {seed: 1, lr: 0.1, threads: {type: int, default: 2}}
    further:
      main: train
      flags-import: all
      requires:
        - {name: before, operation: train, select: written, optional: yes, warn-if-empty: no}
"""
TOY_SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--lazy", type=int, default=0)
print(parser.parse_args())
open("written", "w").close()
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Return a function that runs Guild commands in a project with two operations."""
    (tmp_path / "guild.yml").write_text(TOY)
    (tmp_path / "train.py").write_text(TOY_SCRIPT)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    for name in ("PYTHONPATH", "RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    def typed(line):
        words = [prepared.python(), "-m", "guild.main_bootstrap", "run", "-y", *shlex.split(line)]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)

    return typed


def test_runs_are_equivalent_if_all_flags_that_affect_results_are_equal(toy, monkeypatch):
    toy("toy:train seed=[1,2] lr=[0.1,0.2]")
    toy("toy:train threads=7")
    toy("toy:train lazy=1")

    def equivalent(**flags):
        monkeypatch.setattr(guildfile, "_cache", {})  # as in a new process
        directories = (
            child_runs.ChildRun("toy:train", run).directory
            for run in finished_runs.equivalent_runs("toy:train", flags)
        )
        attributes = [(path / ".guild/attrs/flags").read_text() for path in directories]
        return [dict(line.split(": ") for line in text.splitlines()) for text in attributes]

    assert [flags["threads"] for flags in equivalent(seed="1")] == ["7", "2"]
    assert [flags["threads"] for flags in equivalent(seed="1", threads="2")] == ["2"]
    assert {(flags["lr"], flags["lazy"]) for flags in equivalent(seed="1")} == {("0.1", "0")}
    assert [flags["lr"] for flags in equivalent(seed=2, lr=0.2)] == ["0.2"]
    assert [flags["lazy"] for flags in equivalent(lazy=1)] == ["1"]
    assert equivalent(seed=3) == []
    assert list(finished_runs.equivalent_runs("toy:nothing", {})) == []
    # Other flags may differ: the newest run counts.
    newest = child_runs.ChildRun(
        "toy:train", finished_runs.newest_finished("toy:train", {"seed": 1})
    ).directory
    assert "lazy: 1" in (newest / ".guild/attrs/flags").read_text()
    # Runs differ by a changed default, not by a new flag.
    folder = newest.parents[2]
    (folder / "guild.yml").write_text(TOY.replace("lr: 0.1", "lr: 0.2"))
    assert [flags["lr"] for flags in equivalent(seed="2")] == ["0.2"]
    script = TOY_SCRIPT.replace(
        '"--lazy"', '"--late", type=int, default=9)\nparser.add_argument("--lazy"'
    )
    (folder / "train.py").write_text(script)
    assert [flags["lr"] for flags in equivalent(seed="2")] == ["0.2"]
    assert equivalent(seed="2", late=8) == []


def test_runs_of_an_operation_without_a_model_are_found(toy, tmp_path, monkeypatch):
    (tmp_path / "guild.yml").write_text("train: {main: train, flags-import: all}\n")
    toy("train seed=[1,2]")
    monkeypatch.setattr(guildfile, "_cache", {})
    newest = finished_runs.newest_finished("train", {"seed": 2})
    assert list(finished_runs.equivalent_runs("train", {"seed": 2})) == [newest]
    assert "seed: 2" in (tmp_path / "home" / "runs" / newest / ".guild/attrs/flags").read_text()
    assert finished_runs.newest_finished("toy:train", {}) is None


def test_equivalent_runs_require_the_same_runs(toy, tmp_path, monkeypatch):
    def ran(operation):
        return {path.parents[2].name for path in tmp_path.glob("home/runs/*/.guild/attrs/exit_status")
                if f" {operation} " in f" {(path.parents[1] / 'opref').read_text()} "}  # fmt: skip

    def equivalent(**flags):
        monkeypatch.setattr(guildfile, "_cache", {})
        return set(finished_runs.equivalent_runs("toy:further", flags))

    toy("toy:further")
    (alone,) = ran("further")
    toy("toy:train seed=[1,2]")
    one, two = ran("train")
    toy(f"toy:further before={one[:8]}")
    (after_one,) = ran("further") - {alone}
    assert equivalent(before=one) == {after_one}
    assert equivalent(before=one, seed=1) == {after_one}
    assert equivalent(before=two) == set()
    assert equivalent() == {alone}
