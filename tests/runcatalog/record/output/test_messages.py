"""What a run prints at its start and end, and its line of progress on a terminal."""

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_server import free_port
from runcatalog.model.record_files import read
from runcatalog.model.run_record import RunRecord
from runcatalog.numbers import count
from runcatalog.record import Config, start
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.output import messages, outcome, progress, terminal_output
from runcatalog.record.output.progress import ProgressLine, Speed, progress_text
from runcatalog.text import sentences


def plain(markdown):
    """Return a cell of the catalog without its escapes."""
    text = re.sub(r"&#8203;|<wbr>|</?span>", "", markdown)
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(name, sign)
    return re.sub(r"\\([\\`*\[\]|~_])", r"\1", text)


def test_a_result_is_printed_as_its_row_in_the_catalog_has_it():
    paths = sorted((Path(__file__).parents[4] / "experiments" / "records").glob("*/*.json"))
    finished = [r for r in map(read, paths[::4]) if r.status == "FINISHED"]
    assert len(finished) > 500
    without_summary = 0
    for record in finished:
        without_summary += not (record.result or {}).get("summary")
        assert outcome.sentence(record.result)[:590] == plain(sentences.outcome(record))[:590]
    assert without_summary > 100


@pytest.mark.parametrize(
    "also", [None, "many", [3], [{"name": "x"}], {"name": "x", "value": "many"}]
)
def test_a_further_metric_of_none_is_left_out_as_in_the_catalog(also):
    objective = {"name": "rate", "value": 0.5, "kind": "rate", "count": 4, "also": also}
    record = RunRecord("ab" * 16, "toy:train", "toy", "FINISHED", result={"objective": objective})
    assert (
        outcome.sentence(record.result) == plain(sentences.outcome(record)) == "50 % rate [15, 85]"
    )


def printed(toy, *flags, env=None):
    process = toy.start(*flags, env=env)
    output, errors = process.communicate(timeout=500)
    return process.returncode, output, errors


def test_a_run_prints_its_directory_and_how_it_ended(toy, project):
    code, output, errors = printed(toy, "--updates", 4)
    assert (code, errors) == (0, "")
    run = json.loads((toy.directory / "journal" / "run.json").read_text())["id"][:8]
    first, follow, *_, end, show = output.splitlines()
    assert first == f"run {run} of toy_training, not sent to MLflow"
    assert follow == "  to follow it: catalog watch"
    result = json.loads((toy.directory / "result.json").read_text())
    assert re.fullmatch(rf"run {run} finished after .* s: (.*)", end)[1] == outcome.sentence(
        result["result"]
    )
    assert show == f"  to show it: catalog row {run}"


def test_what_is_printed_after_a_signal_continues_the_run(toy, wait_until):
    process = toy.start("--updates", 10**6, "--every", 5, "--pause", 0.01)
    wait_until(lambda: toy.lines() > 40)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    assert re.search(r"run \w{8} stopped \(Ctrl-C\)", output)
    step, line = re.search(r"to continue it from the checkpoint at (\d+): (.*)", output).groups()
    assert (toy.directory / "checkpoints" / f"{int(step):08d}").is_dir()
    assert line.split()[-2:] == ["--resume", str(toy.directory)]
    updates = str(int(step) + 10)
    given = [*shlex.split(line), "--updates", updates, "--every", "5"]
    env = {n: v for n, v in os.environ.items() if n != "RUN_DIR"}
    done = subprocess.run(given, capture_output=True, text=True, env=env, cwd=toy.directory)
    assert f"after {updates} updates" in done.stdout.splitlines()[-2], done.stdout + done.stderr


def test_an_unreachable_mlflow_is_reported_once(toy, wait_until):
    uri = f"http://127.0.0.1:{free_port()}"
    env = {"RECORD_MLFLOW": "on", "MLFLOW_TRACKING_URI": uri}
    process = toy.start("--updates", 10**6, "--every", 0, "--pause", 0.01, env=env)
    log = toy.directory / "journal" / "sender.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    (line,) = [line for line in output.splitlines() if "not sent yet" in line]
    assert uri in line
    assert "`catalog sync` sends the run later" in line


@pytest.mark.parametrize("recorded", [True, False])
def test_an_output_without_a_character_shows_a_question_mark(project, monkeypatch, recorded):
    if not recorded:
        monkeypatch.setenv("RECORD", "off")
    output = io.TextIOWrapper(io.BytesIO(), "latin-1")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        with start(Config(), study="toy") as run:
            run.event("größer → 1")
            run.finish({"summary": "größer → 1"})
    lines = output.buffer.getvalue().decode("latin-1").splitlines()
    assert "größer ? 1" in lines
    if recorded:
        assert [line for line in lines if line.endswith(": größer ? 1")]
        ((event, _),) = read_lines(run.directory / "journal" / "events.jsonl")
        assert event["text"] == "größer → 1"


def test_the_line_of_progress_is_on_the_terminal_alone(toy, tmp_path):
    pid, terminal = pty.fork()
    if not pid:
        with (tmp_path / "log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.environ |= {"RUN_DIR": str(toy.directory), terminal_output.VARIABLE: "1"}
            os.execv(
                sys.executable,
                [sys.executable, str(toy.script), "--updates", "40", "--pause", "0.03"],
            )
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # the terminal's other side is closed
        pass
    assert os.waitpid(pid, 0)[1] == 0
    states = shown.decode().split("\r")
    assert len([s for s in states if re.match(r"update \d+ of 40, .* updates/s, .* left", s)]) >= 3
    assert states[-1] == "\x1b[K"  # nothing remains
    text = (tmp_path / "log").read_text()
    assert "\r" not in text
    assert "updates/s" not in text
    assert "finished after" in text


@pytest.mark.parametrize(("setting", "shown"), [("1", True), ("0", False), (None, False)], ids=str)
def test_a_variable_sets_whether_a_terminal_shows_the_output(monkeypatch, setting, shown):
    monkeypatch.delenv(terminal_output.VARIABLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(terminal_output.VARIABLE, setting)
    assert terminal_output.is_shown() is shown  # pytest's own standard output is no terminal
    terminal_output.tell_children()
    assert os.environ[terminal_output.VARIABLE] == str(int(shown))


def reported(monkeypatch, capfd, reports, setting=None):
    """Return the lines that ProgressLine prints for reports (time [s], done, total)."""
    monkeypatch.delenv(terminal_output.VARIABLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(terminal_output.VARIABLE, setting)
    line = ProgressLine()
    capfd.readouterr()
    for now, done, total in reports:
        monkeypatch.setattr(progress.time, "monotonic", lambda now=now: now)
        line.show(done, total, "update")
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("seconds", "lines"), [(59, 0), (300, 4), (2000, 9), (36_000, 59)], ids=str
)
def test_a_log_has_a_line_per_tenth_at_most_one_a_minute_and_at_least_one_in_ten(
    monkeypatch, capfd, seconds, lines
):
    reports = [(now, now, seconds) for now in range(1, seconds + 1)]
    shown = reported(monkeypatch, capfd, reports)
    assert len(shown) == len(set(shown)) == pytest.approx(lines, abs=seconds > 9999)
    for text in shown:
        assert re.fullmatch(r"update [\d,.M ]+ of [\d.M ]+, 1 updates/s, .* left", text)
    assert reported(monkeypatch, capfd, reports, terminal_output.OF_CHILD) == []


@pytest.mark.parametrize("first", [0, 5], ids=["new", "continued"])
def test_compilation_does_not_count_into_the_time_left(monkeypatch, capfd, first):
    reports = [(0, first, 100), *((70 + n, first + n, 100) for n in range(1, 96 - first))]
    line = reported(monkeypatch, capfd, reports)[0]
    assert line == "update 10 of 100, 1 updates/s, 1 min 30 s left"


def test_the_time_left_has_pauses_for_validations(monkeypatch, capfd):
    """An update a second; after every 250 of 2,500 a validation takes 200 s."""
    reports = [(n + 200 * ((n - 1) // 250), n, 2500) for n in range(1, 2500)]
    for text in reported(monkeypatch, capfd, reports)[1:]:
        done = int(re.match(r"update ([\d,]+)", text)[1].replace(",", ""))
        hours, minutes, seconds = (re.search(rf"(\d+) {u}", text) for u in ("h", "min", "s left"))
        left = sum(
            unit * int(found[1])
            for unit, found in ((3600, hours), (60, minutes), (1, seconds))
            if found
        )
        assert left == pytest.approx((2500 - done) * 450 / 250, rel=0.15)


def test_the_time_left_follows_the_speed_of_the_last_minute():
    speed = Speed()
    for second in range(200):
        speed.add(second, second * (10 if second < 100 else 2))
    assert speed.per_second == pytest.approx(2)
    assert progress_text(400, 500, "update", speed.per_second) == (
        "update 400 of 500, 2 updates/s, 50 s left"
    )
    assert progress_text(500, 500, "update", 2.0) == "update 500 of 500, 2 updates/s"
    assert progress_text(1, 500, "update", None) == "update 1 of 500"
    assert progress_text(40, 100, "per cent", 2.0) == "40 %, 30 s left"
    assert progress_text(50, 500, "toss", 2.0) == "toss 50 of 500, 2 tosses/s, 3 min 45 s left"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (1, "update", "1 update"),
        (360, "update", "360 updates"),
        (500, "toss", "500 tosses"),
        (3, "epoch", "3 epochs"),
        (4e5, "env steps", "0.4 M env steps"),
    ],
)
def test_a_number_of_units_is_in_the_plural(value, name, text):
    assert count(value, name) == text


def test_the_newest_checkpoint_is_named_by_its_number(tmp_path):
    for name in ("99999999", "100000000", "7.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert "from the checkpoint at 100000000:" in messages.how_to_continue("0" * 32, tmp_path)
