"""Messages of runs on other machines: paths of the user's machine, and the lines of batches."""

import json
import re
import signal

from runcatalog.record.lifecycle.status import last_session


def lines_of(lab, text):
    """The lines that are not the engine's or Guild's own."""
    kept = [line for line in text.splitlines() if not re.match(r"engine:|INFO|WARNING", line)]
    assert not any(str(lab.settings.scratch) in line for line in text.splitlines()), text
    return kept


def test_a_runs_output_names_the_files_of_this_machine(lab, engine):
    out = lines_of(lab, lab.good("guild run small:report -y", ENGINE="lab"))
    folder = lab.runs[-1] / "artifacts"
    assert f"written to {folder}/report.txt" in out
    assert f"at {folder}/report.txt" in out
    assert f"  files: report.txt in {folder}" in out
    failed = lab.type("guild run small:report fails=yes -y", ENGINE="lab")
    assert failed.returncode == 1
    lines = lines_of(lab, failed.stdout)
    assert f"RuntimeError: {lab.runs[-1]}/artifacts/report.txt cannot be read" in lines
    reason = json.loads((lab.runs[-1] / "result.json").read_text())["reason"]
    assert reason == f"RuntimeError: {lab.runs[-1]}/artifacts/report.txt cannot be read"


def test_a_batch_prints_its_trials_the_best_so_far_and_a_table(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    flags = "updates=6 every=2 seed=[1,2,3]"
    there = lines_of(lab, lab.good(f"guild run small:train {flags} -y", ENGINE="lab"))
    here = lines_of(lab, lab.good(f"guild run small:train {flags} -y"))

    def trial_lines(lines):
        return [line for line in lines if line.startswith("batch:")]

    def table(lines):
        first = lines.index(trial_lines(lines)[-1])
        return lines[first : first + 5]

    assert [line.partition(";")[0] for line in trial_lines(there)] == [
        *(f"batch: trial {number} of 3, seed {number}" for number in (1, 2, 3)),
        "batch: 3 of 3 trials finished",
    ]
    assert re.search("; best so far .* in trial [12]$", trial_lines(there)[2])
    assert table(there) == table(here)
    assert re.fullmatch(r"  to show it: catalog sync && catalog row \w{8}", there[-1])


def test_a_batch_reports_failed_trials_and_stops_at_the_first_by_option(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    line = "guild run small:train updates=3 fail=[1,2,3,9] --fail-on-trial-error -y"
    done = lab.type(line, ENGINE="lab")
    assert done.returncode != 0
    assert "exited with an error" in done.stdout
    assert "batch: trial 4 of 4" not in done.stdout
    assert "batch: 0 of 4 trials finished" in done.stdout
    assert "with the same code: ENGINE=lab guild run --restart " in done.stdout


def test_trials_that_are_staged_are_not_started(lab, engine):
    before = set(lab.runs)
    out = lab.good("guild run small:train seed=[1,2] --stage-trials -y", ENGINE="lab")
    assert "engine:" not in out
    staged = [run for run in lab.runs if run not in before]
    assert staged
    assert not any((run / "journal").exists() for run in staged)


def test_only_a_run_that_is_not_resumed_automatically_prints_how_to_resume_it(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    before = set(lab.runs)
    flags = "updates=10000 every=5 pause=0.05"
    running = lab.background(f"guild run small:train {flags} -y", ENGINE="lab")

    def session(number):
        fresh = [run for run in lab.runs if run not in before]
        last = last_session(fresh[0]) if fresh else None
        saved = fresh and any((fresh[0] / "checkpoints").glob("*/checkpoint.json"))
        return fresh[0] if last and last["session"] == number and saved else None

    run = lab.wait(lambda: session(1))
    lost = next(w["name"] for w in engine.workers() if w["running"])
    lab.processes[lost].send_signal(signal.SIGTERM)
    lab.wait(lambda: session(2))
    lab.processes[lost].wait(240)  # until then its folder and name are in use
    lab.start(lost)
    lab.good(f"guild stop {run.name} -y")
    lines = lines_of(lab, running.communicate(timeout=240)[0])
    assert sum(line.startswith(f"run {run.name[:8]} stopped (SIGTERM)") for line in lines) == 2
    hints = [line for line in lines if "to continue it" in line]
    command = f"ENGINE=lab guild run --restart {run.name[:8]} -y"
    assert len(hints) == 1
    assert re.fullmatch(rf"  to continue it from the checkpoint at \d+: {command}", hints[0])
    assert lines[-1] == hints[0]
    lab.wait_for_workers(engine, "box1", "box2")
