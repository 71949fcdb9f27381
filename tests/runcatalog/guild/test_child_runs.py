"""Runs that a run starts itself: their order, their places, and what becomes of the others when one fails."""

import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from guild import guildfile

from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import RunFailed

SCRIPT = """
import json, os, pathlib, sys, time
folder, code, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
begun = time.time()
time.sleep(seconds)
told = {"begun": begun, "ended": time.time(), "place": os.environ.get("PLACE", "")}
(folder / "told.json").write_text(json.dumps(told))
(folder / ".guild/attrs").mkdir(parents=True)
(folder / ".guild/attrs/exit_status").write_text(str(code))
sys.exit(code)
"""


@dataclass(kw_only=True)
class Process(PlannedRun):
    """A link whose run is a process that sleeps, in place of Guild's."""

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
        # The script is a child of what is started, as Guild's is.
        return subprocess.Popen(["sh", "-c", f"{line}; exit $?"], env=dict(environment or {}))


def links(tmp_path, **of):
    made = {
        name: Process(f"m:{name}", name, name=name, flags={}, home=tmp_path, **how)
        for name, how in of.items()
    }
    return made


def told(link):
    return json.loads((link.directory / "told.json").read_text())


def test_each_run_comes_after_those_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.02)
    made = links(tmp_path, a={}, b={"after": {"previous": "a"}}, c={"after": {"previous": "b"}})
    seen = []
    child_runs.run_all(made, 3, lambda text: None, seen.append)
    assert told(made["a"])["ended"] <= told(made["b"])["begun"]
    assert told(made["b"])["ended"] <= told(made["c"])["begun"]
    assert seen[-1] == 3
    child_runs.run_all(made, 3, pytest.fail, seen.append)  # nothing is left to be started


def test_a_run_that_fails_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.02)
    made = links(tmp_path, a={"code": 3}, b={"seconds": 60.0})
    begun = time.monotonic()
    with pytest.raises(RunFailed, match="a: m:a, run a, ended with status 3"):
        child_runs.run_all(made, 2, lambda text: None, lambda count: None)
    assert time.monotonic() - begun < 50
    assert not made["b"].finished


def test_or_is_told_of_while_they_go_on_each_at_a_place_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.02)
    made = links(tmp_path, a={"code": 3}, b={}, c={}, d={"code": 1})
    failed = []
    child_runs.run_all(
        made, [{"PLACE": "one"}, {"PLACE": "two"}], lambda text: None, lambda count: None,
        lambda link, code: failed.append((link.name, code)),
    )  # fmt: skip
    assert sorted(failed) == [("a", 3), ("d", 1)]
    assert made["b"].finished
    assert made["c"].finished
    runs = sorted((told(link) for link in made.values()), key=lambda each: each["begun"])
    assert {each["place"] for each in runs} == {"one", "two"}
    for place in ("one", "two"):
        of = [each for each in runs if each["place"] == place]
        assert all(x["ended"] <= y["begun"] for x, y in pairwise(of))


def test_what_needs_a_run_that_failed_is_never_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.02)
    needs = {"b": "a", "c": "b", "e": "d"}
    made = links(
        tmp_path, a={"code": 3}, d={}, **{n: {"after": {"previous": of}} for n, of in needs.items()}
    )  # fmt: skip
    failed, seen = [], []
    child_runs.run_all(
        made, 2, lambda text: None, seen.append, lambda link, code: failed.append(link.name)
    )
    assert failed == ["a"]
    assert {name for name, link in made.items() if link.finished} == {"d", "e"}
    assert not made["b"].directory.exists()
    assert not made["c"].directory.exists()
    assert seen[-1] == 5


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
        - {name: before, operation: train, select: made, optional: yes, warn-if-empty: no}
"""
TOY_SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--lazy", type=int, default=0)
print(parser.parse_args())
open("made", "w").close()
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A project with an operation whose defaults are its own, its folder, and how one types there."""
    (tmp_path / "guild.yml").write_text(TOY)
    (tmp_path / "train.py").write_text(TOY_SCRIPT)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    for name in ("PYTHONPATH", "RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    def typed(line):
        words = [sys.executable, "-m", "guild.main_bootstrap", "run", "-y", *shlex.split(line)]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)

    return typed


def test_a_run_stands_for_another_if_all_flags_on_which_results_depend_are_the_same(
    toy, monkeypatch
):
    toy("toy:train seed=[1,2] lr=[0.1,0.2]")
    toy("toy:train threads=7")
    toy("toy:train lazy=1")

    def found(**flags):
        monkeypatch.setattr(guildfile, "_cache", {})  # as in a new process
        of = (
            child_runs.ChildRun("toy:train", run).directory
            for run in child_runs.equivalent_runs("toy:train", flags)
        )
        attributes = [(path / ".guild/attrs/flags").read_text() for path in of]
        return [dict(line.split(": ") for line in text.splitlines()) for text in attributes]

    assert [each["threads"] for each in found(seed="1")] == ["7", "2"]
    assert [each["threads"] for each in found(seed="1", threads="2")] == ["2"]
    assert {(each["lr"], each["lazy"]) for each in found(seed="1")} == {("0.1", "0")}
    assert [each["lr"] for each in found(seed=2, lr=0.2)] == ["0.2"]
    assert [each["lazy"] for each in found(lazy=1)] == ["1"]
    assert found(seed=3) == []
    assert list(child_runs.equivalent_runs("toy:nothing", {})) == []
    # Whatever the others: the newest.
    newest = child_runs.ChildRun(
        "toy:train", child_runs.newest_finished("toy:train", {"seed": 1})
    ).directory
    assert "lazy: 1" in (newest / ".guild/attrs/flags").read_text()
    # A default that has changed since is another flag; one that has come since is not.
    folder = newest.parents[2]
    (folder / "guild.yml").write_text(TOY.replace("lr: 0.1", "lr: 0.2"))
    assert [each["lr"] for each in found(seed="2")] == ["0.2"]
    script = TOY_SCRIPT.replace(
        '"--lazy"', '"--late", type=int, default=9)\nparser.add_argument("--lazy"'
    )
    (folder / "train.py").write_text(script)
    assert [each["lr"] for each in found(seed="2")] == ["0.2"]
    assert found(seed="2", late=8) == []


def test_a_run_that_took_another_is_that_which_takes_the_same_one(toy, tmp_path, monkeypatch):
    def ran(operation):
        return {path.parents[2].name for path in tmp_path.glob("home/runs/*/.guild/attrs/exit_status")
                if f" {operation} " in f" {(path.parents[1] / 'opref').read_text()} "}  # fmt: skip

    def found(**flags):
        monkeypatch.setattr(guildfile, "_cache", {})
        return set(child_runs.equivalent_runs("toy:further", flags))

    toy("toy:further")
    (alone,) = ran("further")
    toy("toy:train seed=[1,2]")
    one, two = ran("train")
    toy(f"toy:further before={one[:8]}")
    (after_one,) = ran("further") - {alone}
    assert found(before=one) == {after_one}
    assert found(before=one, seed=1) == {after_one}
    assert found(before=two) == set()
    assert found() == {alone}
