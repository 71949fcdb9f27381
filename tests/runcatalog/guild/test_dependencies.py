"""Only usable runs satisfy a requirement; a missing one is named in the error; refused flags leave no trace."""

import json
import re
from pathlib import Path

import pytest

import ends_table
from runcatalog.guild.runs import GuildRun
from runcatalog.record.lifecycle.signals import GONE
from runcatalog.record.lifecycle.status import status_of

GUILD_YML = """
- model: study
  operations:
    make: {main: make, flags-import: all}
    use:
      main: use
      requires: {name: weights, operation: 'study:make', select: checkpoints, target-type: link}
"""
MAKE = """
import argparse, sys
from dataclasses import dataclass
from runcatalog import record

@dataclass(frozen=True)
class Config(record.Config):
    '''Writes a checkpoint.'''
    steps: int = record.option(1, "number of checkpoints", low=0)

def main(config):
    with record.start(config) as run:
        for step in range(config.steps):
            run.checkpoint(step, {}, {"step": step})
        run.finish({"objective": {"name": "score", "value": 1.0}})

if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser())
"""


@pytest.fixture
def study(shell):
    (shell.root / "guild.yml").write_text(GUILD_YML)
    (shell.root / "make.py").write_text(MAKE)
    (shell.root / "use.py").write_text("import os; print('linked', os.listdir('checkpoints'))")
    shell.env["RECORD_MLFLOW"] = "off"
    return shell


def run_ids(shell):
    """Return the ids of all runs of the Guild home."""
    return {path.name for path in home(shell).iterdir()}


def home(shell):
    """Return the folder of the runs."""
    return Path(shell.env["GUILD_HOME"]) / "runs"


def test_a_required_run_that_is_missing_is_named_with_its_command(study):
    output = study("guild run study:use -y", code=1)
    assert "needs a run of study:make; to make one: guild run study:make -y" in output
    (run,) = run_ids(study)
    end = GuildRun(run, str(home(study) / run)).end()
    assert end == ("FAILED", "never started: needs a run of study:make")
    ends_table.check("never started", *end)
    study.inside("sync")
    row = study.inside("row latest")
    assert "| never started: needs a run of study:make |" in row
    assert "weights=null" not in row
    study(re.search("guild run study:make -y", output)[0])
    assert "linked ['00000000']" in study(f"guild run --restart {run} -y")
    assert GuildRun(run, str(home(study) / run)).end()[0] == "FINISHED"


def test_a_run_without_the_selected_files_is_not_taken(study):
    study("guild run study:make -y")
    (usable,) = run_ids(study)
    study("guild run study:make steps=0 -y")
    (empty,) = run_ids(study) - {usable}
    output = study("guild run study:use -y")
    assert f"Using run {usable}" in output
    assert "linked ['00000000']" in output
    marked = study("guild mark -y 1 -Fo study:make")  # of the newest, which cannot be used
    assert marked is not None
    assert f"Using run {usable}" in study("guild run study:use -y")
    for run in (usable,):
        study(f"guild runs rm -y {run}")
    output = study("guild run study:use -y", code=1)
    need = f"needs a run of study:make with checkpoints in its folder; run {empty[:8]} has none"
    assert f"{need}; to make one: guild run study:make -y" in output
    assert empty in run_ids(study)


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("select: steps", "steps"),
        (r"select: [policies, journal/x, 'result\.json']", "policies, journal/x or result.json"),
        ("select-max: 'step_([0-9]+)'", "step_([0-9]+)"),
        ("target-type: link", "files"),
    ],
)
def test_what_the_runs_lack_is_named(study, select, words):
    """A file or folder that the operation selects; without a selection any file that the run wrote."""
    (study.root / "guild.yml").write_text(GUILD_YML.replace("select: checkpoints", select))
    (study.root / "make.py").write_text("import argparse\n")
    study("guild run study:make -y")
    (run,) = run_ids(study)
    output = study("guild run study:use -y", code=1)
    assert f"needs a run of study:make with {words} in its folder; run {run[:8]} has none" in output


USE = """
import os, sys
sys.exit("the checkpoint is broken" if os.environ.get("BROKEN") else 0)
"""


def test_a_launch_that_never_started_gets_no_record(study):
    """By itself, as a sweep or as a search; but a run that failed in its script does."""
    (study.root / "guild.yml").write_text(
        GUILD_YML.replace("main: use", "main: use\n      flags: {x: 1.0}")
    )
    (study.root / "use.py").write_text(USE)
    study("guild run study:use -y", code=1)
    (alone,) = run_ids(study)
    study("guild run study:use x=[1,2] -y", code=1)
    study("guild run study:use x=[1:2] --optimizer random --max-trials 2 -y", code=1)
    study.inside("sync")
    shown = study.inside("search 'operation=study:use' --json")
    reasons = [run["reason"] for run in json.loads(shown)]
    assert reasons.count("never started: needs a run of study:make") == 5
    assert "7 never started: not exported" in study.inside("export")
    assert not list(study.root.glob("experiments/records/**/*.json"))
    study.inside("render")
    assert not (study.root / "runs_local.md").exists()
    study("guild run study:make -y")
    study(f"guild run --restart {alone} -y", code=1, BROKEN="yes")
    study.inside("sync")
    study.inside("export")
    (path,) = study.root.glob(f"experiments/records/*/{alone[:8]}.json")
    assert '"reason": "exit status 1: the checkpoint is broken"' in path.read_text()
    study(f"guild run --restart {alone} -y")
    guild_run = GuildRun(alone, str(home(study) / alone))
    (home(study) / alone / ".guild/attrs/exit_status").unlink()  # its processes were killed
    assert guild_run.end() == ("KILLED", GONE)


def test_refused_flags_leave_no_run(study):
    output = study("guild run study:make steps=-1 -y", code=2)
    assert "--steps: -1 is not in [0, inf)" in output
    assert "0 sent" in study.inside("sync")
    study.inside("row latest", code=1)
    run = next(iter(run_ids(study)))
    study(f"guild run --restart {run} steps=1 -y")
    assert "| make | 1 |" in study.inside("sync") + study.inside("row latest")
    study("guild run study:make steps=-1 -y", code=2)
    assert "newer" not in study.inside("row latest")


def attributes(run):
    """Return the attributes of a run by name, but for its environment."""
    return {p.name: p.read_bytes() for p in (run / ".guild/attrs").iterdir() if p.name != "env"}


def test_a_restart_that_is_refused_leaves_the_run_as_it_was(study):
    study("guild run study:make steps=2 -y")
    (run,) = home(study).iterdir()
    before = attributes(run)
    for flags, message in (
        ("steps=3", "--steps: the run to continue was started with 2, not 3"),
        ("steps=-1", "--steps: -1 is not in [0, inf)"),
    ):
        assert message in study(f"guild run --restart {run.name} {flags} -y", code=2)
        assert attributes(run) == before
    assert "steps=2" in study(f"guild runs info {run.name}").replace(": ", "=")
    study(f"guild run --restart {run.name} -y")
    assert len((run / "journal/sessions.jsonl").read_text().splitlines()) == 2
    assert GuildRun(run.name, str(run)).flags["steps"] == 2


def test_a_killed_run_whose_restart_is_refused_was_killed(study):
    kill = "import os; os.kill(os.getpid(), 9) if step else None"
    (study.root / "make.py").write_text(MAKE.replace("run.checkpoint(", f"{kill}; run.checkpoint("))
    study("guild run study:make steps=2 -y", code=None)
    (run,) = home(study).iterdir()
    end = status_of(run)[:2]
    assert end == ("KILLED", "SIGKILL")
    study(f"guild run --restart {run.name} steps=3 -y", code=2)
    assert status_of(run)[:2] == end


def test_a_flag_that_may_change_is_kept_by_a_restart(study):
    may = MAKE.replace("low=0)", "low=0, resumable=True)")
    (study.root / "make.py").write_text(may)
    study("guild run study:make steps=1 -y")
    (run,) = home(study).iterdir()
    study(f"guild run --restart {run.name} steps=3 -y")
    assert GuildRun(run.name, str(run)).flags["steps"] == 3


@pytest.mark.parametrize("begin", ["12e34567", "01234567"])
def test_a_required_run_is_named_by_the_beginning_of_its_id_also_where_that_is_a_number(
    study, begin
):
    study("guild run study:make -y")
    (made,) = home(study).iterdir()
    run = made.rename(made.with_name(begin.ljust(32, "a")))
    (run / ".guild/attrs/id").write_text(run.name)
    study("guild run study:make -y")  # a newer one
    before = run_ids(study)
    study(f"guild run study:use weights={begin} -y")
    (use,) = run_ids(study) - before
    assert (home(study) / use / "checkpoints").resolve() == run / "checkpoints"
