"""Searches through the `guild` command, in a project of one quick script."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

import prepared
from runcatalog.guild.runs import GuildRun
from runcatalog.guild.side_by_side import stop

SOURCE = Path(__file__).parents[3] / "src"
GUILD_YML = """
- model: toy
  sourcecode: [surface.py]
  operations:
    train:
      description: Branin's function, with a region in which it fails
      main: surface
      flags-import: all
      pip-freeze: no
      objective: {maximize: score}
      label: 'x=${x}'
    plain:
      main: surface
      flags-import: all
      pip-freeze: no
    opt@gp:
      description: A search of it
      sourcecode: {root: ., select: ['src/runcatalog/*.py']}
      main: >-
        src/runcatalog.search.opt --operation toy:train
        --space 'x=uniform[-5.0:10.0]; y=[0.0:15.0]; size=[64 64, 128 128]'
      flags-import: no
      output-scalars: no
      pip-freeze: no
      flags:
        mode: good
        note: none given
        loud: yes
        sleep: 0.0
        parallel: {type: int}
        trials: 6
        seed: 3
"""
SURFACE = """
import argparse
import json
import math
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float, default=0.0)
    parser.add_argument("--y", type=float, default=0.0)
    parser.add_argument("--size", default="64 64")
    parser.add_argument("--note", default="")
    parser.add_argument("--loud", type=bool, default=False)
    parser.add_argument("--mode", choices=["good", "broken", "silent", "odd"], default="good")
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    time.sleep(a.sleep)
    if waiting := os.environ.get("WAITING_TRIAL"):
        with open("search.json") as file:
            if json.load(file)["trial"] == int(waiting):
                time.sleep(600)
    if a.y > 10:
        sys.exit("exploded")
    score = -((a.y - 0.129 * a.x**2 + 1.59 * a.x - 6) ** 2 + 9.6 * math.cos(a.x) + 10)
    if a.mode == "odd":  # the script's own objective has no value, the searched one has
        own = {"name": "rate", "value": "NaN" if a.seed == 1 else None}
        with open("result.json", "w") as file:
            json.dump({"result": {"objective": own}}, file)
    if a.mode != "silent":
        print(f"score: {math.nan if a.mode == 'broken' else score:.8f}")


if __name__ == "__main__":
    main()
"""


class Project:
    """A project folder and the Guild home that its runs go to."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.home = root / "home"  # outside of the project, whose files Guild looks through
        self.home.mkdir()
        self.root.mkdir()
        (self.root / "guild.yml").write_text(GUILD_YML)
        (self.root / "surface.py").write_text(SURFACE)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / "runcatalog", self.root / "src" / "runcatalog", ignore=ignore)
        own = ("RUN_DIR", "RUN_ID", "GUILD_OP", "PROJECT_DIR", "PYTHONPATH")
        self.environment = {k: v for k, v in os.environ.items() if k not in own}
        self.environment |= {
            "GUILD_HOME": str(self.home),
            "PYTHONWARNINGS": "ignore:pkg_resources is deprecated",
        }

    def start(self, *arguments: str, **env: str) -> subprocess.Popen:
        """Start a search, with more environment variables."""
        command = [prepared.python(), "-m", "guild.main_bootstrap", "run", *arguments, "-y"]
        return prepared.Process(
            command,
            cwd=self.root,
            env=self.environment | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=540)
        assert process.returncode == code, output
        return output

    def batch(self) -> Path:
        """Directory of the newest batch."""
        batches = (self.home / "runs").glob("*/.guild/proto")
        return max(batches, key=lambda path: path.stat().st_mtime_ns).parents[1]

    def attr(self, run: Path, name: str) -> str | None:
        path = run / ".guild" / "attrs" / name
        return path.read_text().strip() if path.exists() else None


def note(run: Path) -> dict:
    return json.loads((run / "search.json").read_text())


def trial_runs(batch: Path) -> list[Path]:
    """Directories of a batch's trials, by number."""
    runs = [path.parent for path in batch.glob("*/search.json")]
    return sorted(runs, key=lambda run: note(run)["trial"])


def notes(batch: Path) -> list[dict]:
    """The notes of a batch's trials, by number."""
    return [note(run) for run in trial_runs(batch)]


def result(batch: Path) -> dict:
    return json.loads((batch / "result.json").read_text())["result"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return Project(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def uninterrupted(project) -> Path:
    """The batch of `guild run toy:opt@gp trials=6`, run through."""
    project.run("toy:opt@gp", "trials=6")
    assert project.attr(project.batch(), "exit_status") == "0"
    return project.batch()


def test_an_operation_that_is_a_search(project, uninterrupted):
    trials = notes(uninterrupted)
    assert [t["trial"] for t in trials] == [1, 2, 3, 4, 5, 6]
    assert [t["kind"] for t in trials] == ["initial"] * 4 + ["gp"] * 2
    assert {t["batch"] for t in trials} == {uninterrupted.name}
    for trial in trials:
        assert set(trial["point"]) == {"x", "y", "size"}
        assert trial["space"]["x"] == {"low": -5.0, "high": 10.0, "log": False}
        assert trial["space"]["size"] == {"choices": ["64 64", "128 128"]}
        assert set(trial["told"]) | set(trial["told_failed"]) == set(range(1, trial["trial"]))
        if trial["kind"] == "gp":
            assert "Matern" in trial["kernel"]
            assert set(trial["hyperparameters"]["length_scale"]) == {"x", "y", "size"}
            assert trial["predicted"]["std"] > 0
    # The started run is the batch itself: one id for `guild runs` and a restart.
    assert "toy opt@gp" in (uninterrupted / ".guild" / "opref").read_text()


def test_failed_trials_are_counted(uninterrupted):
    trials = notes(uninterrupted)
    failed = [t["trial"] for t in trials if t["point"]["y"] > 10]
    summary = result(uninterrupted)
    assert failed
    assert summary["metrics"]["failed"] == len(failed)
    assert trials[-1]["told_failed"] == [number for number in failed if number < 6]
    assert f"{len(failed)} of 6 trials failed" in summary["summary"]
    assert summary["objective"]["name"] == "score"
    assert summary["objective"]["at"] not in failed


def test_a_killed_and_restarted_search_tries_the_same_points(project, uninterrupted):
    search = project.start("toy:opt@gp", "trials=6", WAITING_TRIAL="5")  # which it does not end
    wait_for(lambda: len(notes(project.batch())) == 5 and project.batch() != uninterrupted)
    batch = project.batch()
    ended = {run: project.attr(run, "stopped") for run in trial_runs(batch)[:4]}
    prepared.kill_all(search, prepared.folder().parent)
    assert not (batch / "result.json").exists()
    # Damage from a kill while Guild writes its attributes.
    attrs = trial_runs(batch)[4] / ".guild" / "attrs"
    (attrs / "flags").write_text("")
    (attrs / "op").unlink()
    output = project.run("--restart", batch.name)
    assert "trial 5 was interrupted" in output
    assert [n["point"] for n in notes(batch)] == [n["point"] for n in notes(uninterrupted)]
    assert {run: project.attr(run, "stopped") for run in trial_runs(batch)[:4]} == ended
    assert result(batch)["objective"] == result(uninterrupted)["objective"]


def test_a_stopped_search_continues_and_can_be_extended(project):
    known = {path.name for path in (project.home / "runs").glob("*")}
    search = project.start("toy:opt@gp", "trials=2", "sleep=600", "seed=1")

    def trial() -> Path | None:
        running = list((project.home / "runs").glob("*/.guild/LOCK"))
        fresh = [path.parents[1] for path in running if path.parents[1].name not in known]
        return next((run for run in fresh if (run / "search.json").exists()), None)

    wait_for(lambda: trial() is not None)
    stopped, batch = trial(), project.batch()
    pid = int((batch / ".guild" / "LOCK").read_text())
    psutil.Process(pid).terminate()  # what `guild stop` does
    search.communicate(timeout=240)
    assert project.attr(stopped, "exit_status") == "-15"
    assert project.attr(batch, "exit_status") == "-15"
    flags = stopped / ".guild" / "attrs" / "flags"
    flags.write_text(flags.read_text().replace("sleep: 600", "sleep: 0"))
    proto = batch / ".guild" / "proto" / ".guild" / "attrs" / "flags"
    proto.write_text(proto.read_text().replace("sleep: 600", "sleep: 0"))
    project.run("--restart", batch.name, "--max-trials", "3")
    assert len(notes(batch)) == 3
    assert project.attr(stopped, "exit_status") in ("0", "1")
    # With nothing missing, a restart runs nothing.
    assert "trial" not in project.run("--restart", batch.name).partition("best score")[0]
    # A trial that was deleted is replaced by a further one.
    shutil.rmtree(trial_runs(batch)[0].resolve())
    assert "search: trial 4 of 4, " in project.run("--restart", batch.name)
    assert [n["trial"] for n in notes(batch)] == [2, 3, 4]
    assert " of 4)" in result(batch)["summary"]


@pytest.fixture(scope="module")
def side_by_side(project) -> Path:
    """The batch of a search with two trials at once, an empty text and a switch."""
    project.run("toy:opt@gp", "trials=6", "parallel=2", "sleep=1.5", "note=", "loud=no")
    return project.batch()


def test_trials_run_side_by_side(side_by_side):
    trials = notes(side_by_side)
    assert [t["trial"] for t in trials] == [1, 2, 3, 4, 5, 6]
    assert [t["pending"] for t in trials[:2]] == [[], [1]]
    assert trials[-1]["kind"] == "gp"
    assert all(len(t["pending"]) <= 1 for t in trials)
    for t in trials:
        known = [*t["told"], *t["told_failed"], *t["pending"]]
        assert sorted(known) == list(range(1, t["trial"]))
    assert result(side_by_side)["metrics"]["trials"] == 6


def test_an_empty_text_and_a_switch_reach_the_trials_as_they_are(side_by_side):
    flags = yaml.safe_load((trial_runs(side_by_side)[0] / ".guild/attrs/flags").read_text())
    assert (flags["note"], flags["loud"]) == ("", False)


def test_a_stopped_search_ends_all_its_trials_and_continues_them(project):
    search = project.start("toy:opt@gp", "trials=3", "parallel=2", "sleep=600", "seed=1")

    def running() -> list[Path]:
        """Directories of the trials with a process."""
        locks = (project.home / "runs").glob("*/.guild/LOCK")
        return [p.parents[1] for p in locks if (p.parents[1] / "search.json").exists()]

    wait_for(lambda: len(running()) == 2)
    stopped, batch = running(), project.batch()
    psutil.Process(int((batch / ".guild" / "LOCK").read_text())).terminate()
    search.communicate(timeout=240)
    assert [project.attr(run, "exit_status") for run in stopped] == ["-15", "-15"]
    assert project.attr(batch, "exit_status") == "-15"
    for flags in [run / ".guild" / "attrs" / "flags" for run in stopped] + [
        batch / ".guild" / "proto" / ".guild" / "attrs" / "flags"
    ]:
        flags.write_text(flags.read_text().replace("sleep: 600", "sleep: 0"))
    project.run("--restart", batch.name)
    assert len(notes(batch)) == 3
    assert all(project.attr(run, "exit_status") in ("0", "1") for run in trial_runs(batch))


def test_ending_a_trial_leaves_its_exit_status_to_its_parent():
    for ignores, status in ((False, -15), (True, -9)):
        waits = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        code = waits if ignores else waits.replace("SIG_IGN", "SIG_DFL")
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            stop([psutil.Process(process.pid)], seconds=0.5 if ignores else 60)
            assert process.wait(timeout=60) == status


def test_a_running_search_is_not_started_twice(project, uninterrupted):
    with open(uninterrupted / ".guild" / "search.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        output = project.run("--restart", uninterrupted.name, code=1)
    assert "run by another process" in output
    assert "Traceback" not in output


def test_any_operation_with_optimizer_gp(project):
    """With `--optimizer gp` typed, on a plain quadratic valley: better than where it began."""
    arguments = ["--optimizer", "gp", "y=loguniform[0.5:9.0]", "--opt-flag", "seed=1", "seed=[7]"]
    told = project.run("toy:train", *arguments, "--max-trials", "7").splitlines()
    batch = project.batch()
    assert told[-1] == f"  to show it: catalog sync && catalog row {batch.name[:8]}"
    flags = yaml.safe_load((trial_runs(batch)[0] / ".guild/attrs/flags").read_text())
    assert flags["seed"] == 7
    summary = result(batch)
    assert summary["metrics"]["failed"] == 0
    assert summary["objective"]["at"] > 4
    kinds = [n["kind"] for n in notes(batch)]
    assert kinds == ["initial"] * 4 + ["gp"] * 3


def test_earlier_trials_of_the_operation_can_count(project, uninterrupted):
    space = ["x=[-5.0:10.0]", "y=[0.0:10.0]", "size=[64 64, 128 128]"]
    arguments = ["--optimizer", "gp", *space, "--opt-flag", "prev-trials=operation"]
    project.run(
        "toy:train", *arguments, "seed=5", "loud=yes", "note=none given", "--max-trials", "1"
    )
    prior = json.loads((project.batch() / "prior.json").read_text())
    good = [n["point"] for n in notes(uninterrupted) if n["point"]["y"] <= 10]
    points = [entry["point"] for entry in prior]
    assert all(point in points for point in good)
    assert all(entry["value"] > 0 for entry in prior)  # the score is to be maximised
    project.run("toy:train", *arguments, "sleep=0.01", "--max-trials", "1")
    assert json.loads((project.batch() / "prior.json").read_text()) == []  # none slept so long


def test_a_search_without_untried_points_reports_that_it_ran_none(project):
    space = ["size=[1 1, 2 2]", "--optimizer", "gp"]
    project.run("toy:train", *space)
    output = project.run("toy:train", *space, "--opt-flag", "prev-trials=operation", code=1)
    assert "search: no trial was run: earlier ones tried every point" in output
    assert "no trial succeeded" not in output
    assert notes(project.batch()) == []


def test_a_random_search_ends_where_the_space_has_no_more(project):
    project.run("toy:train", "size=[64 64, 128 128]", "--optimizer", "random")
    assert [n["kind"] for n in notes(project.batch())] == ["random", "random"]


def test_a_list_of_values_shows_its_trials_the_best_so_far_a_table_and_what_failed(project):
    output = project.run("toy:train", "y=[6.0,12.0,2.0]", "x=[0.0,1.0]")
    told = [line for line in output.splitlines() if line.startswith(("batch:", "  "))]
    assert told[:3] == [
        "batch: trial 1 of 6, x 0.0, y 6.0",
        "batch: trial 2 of 6, x 0.0, y 12.0; best so far -19.6 in trial 1",
        "batch: trial 3 of 6, x 0.0, y 2.0; best so far -19.6 in trial 1",
    ]
    assert told[6:11] == [
        "batch: 4 of 6 trials finished",
        "  trial  score   x  y",
        "  4      -17.32  1  6",
        "  1      -19.6   0  6",
        "  6      -21.63  1  2",
    ]
    failed = [path for path in runs_of(project) if project.attr(path, "exit_status") == "1"]
    again = "exit status 1: exploded; again: guild run --restart"
    assert sorted(line.partition(" failed: ")[2] for line in told[12:-1]) == sorted(
        f"{again} {run.name[:8]} -y" for run in failed
    )
    assert [line.partition(" failed: ")[0] for line in told[12:-1]] == ["  trial 2", "  trial 5"]
    (key,) = re.fullmatch(r"  to show it: catalog sync && catalog row (\w{8})", told[-1]).groups()
    newest = max((project.home / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert GuildRun(newest.name, str(newest)).batch_run.startswith(key)


def test_a_trial_that_waits_has_the_label_of_its_operation(project):
    assert "batch:" not in project.run("toy:train", "y=[6.0,2.0]", "x=0.5", "--stage-trials")
    staged = [path.parent for path in (project.home / "runs").glob("*/.guild/STAGED")]
    assert [yaml.safe_load((run / "attrs" / "label").read_text()) for run in staged] == [
        "x=0.5",
        "x=0.5",
    ]


def test_a_batch_without_a_finished_trial_fails_and_can_be_restarted(project):
    told = project.run("toy:train", "y=[11.0,12.0]", code=1).splitlines()
    batch = project.batch()
    assert "batch: 0 of 2 trials finished" in told
    assert told[-2:] == [
        f"  to run the remaining trials with the same code: guild run --restart {batch.name[:8]} -y",
        f"  to show it: catalog sync && catalog row {batch.name[:8]}",
    ]
    end = GuildRun(batch.name, str(batch)).end()
    assert end == ("FAILED", "exit status 1: no trial finished")
    again = batch_lines(project.run("--restart", batch.name, code=1))
    assert again[0].startswith("batch: trial 1 of 2")


def runs_of(project) -> list[Path]:
    """The runs of the newest batch, whose directory Guild has removed."""
    newest = max((project.home / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    key = GuildRun(newest.name, str(newest)).batch_run
    return [
        p for p in (project.home / "runs").iterdir() if GuildRun(p.name, str(p)).batch_run == key
    ]


def batch_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("batch:", "  to run"))]


def test_a_restarted_batch_runs_the_trials_that_have_not_finished(project):
    stopped = ["toy:train", "y=[6.0,12.0,2.0]", "--fail-on-trial-error"]
    told = batch_lines(project.run(*stopped, code=1))
    batch = project.batch()
    assert told[-2] == "batch: 1 of 3 trials finished"
    assert told[-1] == f"  to run the remaining trials: guild run --restart {batch.name[:8]} -y"
    known = set((project.home / "runs").iterdir())
    (finished,) = (run for run in batch.glob("*") if project.attr(run, "exit_status") == "0")
    ended = project.attr(finished.resolve(), "stopped")
    assert batch_lines(project.run("--restart", batch.name)) == [
        "batch: trial 2 of 3, y 12.0; best so far -19.6 in trial 1",
        "batch: trial 3 of 3, y 2.0; best so far -19.6 in trial 1",
        "batch: 2 of 3 trials finished",
    ]
    assert set((project.home / "runs").iterdir()) == known - {batch}  # Guild removes the batch
    assert project.attr(project.home / "runs" / finished.name, "stopped") == ended


def test_a_batch_that_was_killed_continues_its_trials(project):
    process = project.start("toy:train", "y=[6.0,5.0,2.0]", "sleep=2.0")
    next(line for line in process.stdout if line.startswith("batch: trial 2 of 3"))
    prepared.kill_all(process, prepared.folder().parent)
    known, batch = set((project.home / "runs").iterdir()), project.batch()
    told = batch_lines(project.run("--restart", batch.name))
    assert [line.partition(",")[0] for line in told] == [
        "batch: trial 2 of 3",
        "batch: trial 3 of 3",
        "batch: 3 of 3 trials finished",
    ]
    assert set((project.home / "runs").iterdir()) == known - {batch}


def test_ranges_alone_mean_a_random_search_which_stores_the_importance_of_its_parameters(project):
    project.run("toy:train", "x=[-5.0:10.0]", "y=[0.0:10.0]", "--max-trials", "8")
    assert "search random" in (project.batch() / ".guild" / "opref").read_text()
    assert [n["kind"] for n in notes(project.batch())] == ["random"] * 8
    result = json.loads((project.batch() / "result.json").read_text())["result"]
    importance = result["importance"]
    assert importance["trials"] == 8
    assert set(importance["parameters"]) == {"x", "y"}
    assert GuildRun(project.batch().name, str(project.batch())).importance == importance


def test_without_a_finite_objective_a_trial_failed(project):
    output = project.run("toy:train", "x=[-5.0:10.0]", "mode=broken", "--max-trials", "2", code=1)
    reason = "no trial succeeded; the last one: no finite score"
    assert reason in output
    batch = GuildRun(project.batch().name, str(project.batch()))
    assert batch.end() == ("FAILED", f"exit status 1: {reason}")
    assert "Traceback" not in output
    assert len(notes(project.batch())) == 2


@pytest.mark.parametrize("operation", ["train", "plain"])
def test_a_search_for_a_metric_that_is_not_logged_stops_after_the_first_trial(project, operation):
    """`plain` declares no objective, so that Guild fills in `loss`."""
    mode = "silent" if operation == "train" else "good"
    output = project.run(f"toy:{operation}", "x=[-5.0:10.0]", f"mode={mode}", code=1)
    name = "score" if operation == "train" else "loss"
    assert (
        f"trial 1 finished but logged no {name}: declare `objective: {{maximize: NAME}}`" in output
    )
    assert f"in the guild.yml of toy:{operation}, or type --maximize NAME" in output
    assert ("it logged score" in output) == (operation == "plain")
    assert "Traceback" not in output
    assert len(notes(project.batch())) == 1
    if operation == "plain":
        flags = ["--maximize", "score", "--max-trials", "1"]
        project.run("toy:plain", "x=[-5.0:10.0]", *flags)
        assert result(project.batch())["objective"]["name"] == "score"


@pytest.mark.parametrize("seed", [1, 2])
def test_the_searched_metric_counts_if_the_scripts_objective_is_not_a_number(project, seed):
    project.run("toy:train", "x=[-5.0:10.0]", "mode=odd", f"seed={seed}", "--max-trials", "1")
    (trial,) = trial_runs(project.batch())
    printed = float((trial / ".guild" / "output").read_text().partition("score: ")[2].split()[0])
    assert result(project.batch())["objective"]["name"] == "score"
    assert result(project.batch())["objective"]["value"] == pytest.approx(printed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy:opt@gp", "mode=round"], "Unsupported value for 'mode'"),
        (["toy:opt@gp", "trials=0"], "trials must be at least 1"),
        (["toy:opt@gp", "trials=few"], "search: trials: invalid int value: 'few'"),
        (["toy:train", "--optimizer", "gp"], "nothing to search"),
        (["toy:train", "--optimizer", "gp", "x=[5.0:1.0]"], "x=[5.0:1.0]"),
        (["toy:train", "--optimizer", "gp", "x=[5.0:9.0]", "y=[]"], "y=[]: a value is expected"),
        (["toy:train", "x=1.0", "y=[]"], "y=[]: a value is expected"),
        (["search:gp"], "--optimizer"),
    ],
)
def test_a_mistake_is_one_line(project, arguments, message):
    output = project.run(*arguments, code=1)
    lines = [line for line in output.splitlines() if not line.startswith("Reading the flags")]
    assert len(lines) == 1, output
    assert message in lines[0]
