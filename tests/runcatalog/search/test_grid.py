"""Progress of Guild's own batches: the work per trial does not grow with the number of trials."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from runcatalog.guild.compat import run
from runcatalog.search.grid import Progress, _trial_runs

COUNT = 12


class Value:
    """A flag's value that counts comparisons."""

    compared = 0

    def __ne__(self, other):
        Value.compared += 1
        return self is not other


@pytest.fixture
def opened(tmp_path):
    """Count how often each file below `tmp_path` is opened, by name."""
    counts, is_on = Counter(), True

    def count(event, arguments):
        if is_on and event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            counts[str(arguments[0])] += 1

    sys.addaudithook(count)
    yield counts
    is_on = False


@pytest.fixture
def batch(tmp_path):
    """Return the progress of a batch, and its trials."""
    directories = [tmp_path / name for name in ("batch", *map(str, range(COUNT)))]
    for directory in directories:
        (directory / ".guild" / "attrs").mkdir(parents=True)
    batch, *runs = [run.for_dir(str(directory)) for directory in directories]
    flags = [{"lr": number / 10, "seed": 1} for number in range(COUNT)]
    progress = Progress(batch, flags)
    progress.set_up(runs)
    return progress, runs


def end(trial, value):
    """Write what a trial leaves that has ended."""
    directory = Path(trial.dir)
    (directory / ".guild" / "attrs" / "exit_status").write_text("0")
    objective = {"name": "loss", "value": value, "goal": "min"}
    (directory / "result.json").write_text(json.dumps({"result": {"objective": objective}}))


def test_a_trial_that_has_ended_is_read_once(batch, opened, capsys):
    progress, runs = batch
    for number, each in enumerate(runs):
        progress.start(each)
        end(each, 2.0 - 0.1 * number)
    progress.end()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"batch: trial 1 of {COUNT}, lr 0.0"
    assert lines[2].endswith("lr 0.2; best so far 1.9 in trial 2")
    assert lines[COUNT] == f"batch: {COUNT} of {COUNT} trials finished"
    results = {path: count for path, count in opened.items() if path.endswith("result.json")}
    assert len(results) == COUNT
    assert set(results.values()) == {2}  # by this test, to write it, and by the batch


def test_a_result_may_arrive_after_the_exit_status(batch, capsys):
    progress, runs = batch
    for each in runs[:2]:
        progress.start(each)
    end(runs[0], 0.5)
    (Path(runs[1].dir) / ".guild" / "attrs" / "exit_status").write_text("0")
    progress.start(runs[2])
    end(runs[1], 0.25)
    progress.has_ended(runs[1])
    progress.start(runs[3])
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"batch: trial 3 of {COUNT}, lr 0.2; best so far 0.5 in trial 1",
        f"batch: trial 4 of {COUNT}, lr 0.3; best so far 0.25 in trial 2",
    ]


def test_varying_flags_are_found_with_one_comparison_per_trial():
    same = Value()
    progress = Progress(None, [{"seed": same, "lr": number} for number in range(100)])
    assert progress._points[7] == {"lr": 7}
    assert Value.compared <= 200


@pytest.mark.parametrize(
    ("status", "result", "shown"),
    [
        (-16, {}, "was stopped: Ctrl-C"),
        (2, {}, "failed: exit status 2: no such file"),
        (-15, {"status": "KILLED", "reason": "SIGTERM (the time is up)"}, "was stopped: SIGTERM (the time is up)"),
        (1, {"status": "FAILED", "reason": "not finite at update 3"}, "failed: not finite at update 3"),
    ],
)  # fmt: skip
def test_why_a_trial_has_not_finished(batch, capsys, status, result, shown):
    progress, runs = batch
    progress.start(runs[0])
    directory = Path(runs[0].dir)
    (directory / ".guild" / "attrs" / "exit_status").write_text(str(status))
    (directory / ".guild" / "output").write_text("loss: 3\nno such file\n")
    if result:
        (directory / "result.json").write_text(json.dumps(result))
    progress.end(is_stopped=True)
    assert f"  trial 1 {shown}; again: guild run" in capsys.readouterr().out


def test_a_restarted_batch_reads_the_flags_of_a_trial_once(tmp_path, opened):
    """They were read once for each trial before it: 250,000 times for 1,000 trials in another order."""
    directory = tmp_path / "batch"
    directory.mkdir()
    flags = [{"lr": number / 10} for number in range(COUNT)]
    for number, each in enumerate(flags):
        run_id = f"{COUNT - number:032x}"
        attributes = tmp_path / run_id / ".guild" / "attrs"
        attributes.mkdir(parents=True)
        (attributes / "flags").write_text(json.dumps(each))
        (attributes / "exit_status").write_text("0")
        (directory / run_id).symlink_to(tmp_path / run_id)
    opened.clear()
    found = _trial_runs(run.for_dir(str(directory)), flags)
    assert [each.id for each in found] == [f"{COUNT - number:032x}" for number in range(COUNT)]
    counts = [count for path, count in opened.items() if path.endswith("attrs/flags")]
    assert counts == [1] * COUNT
