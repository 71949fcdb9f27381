"""`catalog watch`: real journals, a real terminal, and views of every size."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import prepared
from runcatalog.cli import watch
from runcatalog.cli.job_progress import STALE, Job, Jobs, metrics_of
from runcatalog.model.project import Project
from runcatalog.record.journal.files import write_json
from runcatalog.record.journal.lines import append_line
from runcatalog.record.lifecycle import session
from runcatalog.record.lifecycle.status import Status
from runcatalog.text import terminal

SCRIPT = """
import argparse, os, time
from dataclasses import dataclass
from runcatalog import record

@dataclass(frozen=True)
class Config(record.Config):
    lr: float = record.option(5e-3, "learning rate", low=0, high=1)

def main(config):
    with record.start(config, study="toy") as run:
        for update in range(1, 9):
            run.log({"opening_rate": update / 10, "loss": 1.0}, step=update)
        run.progress(8, 8, "update")  # at once, where the others wait for their turn
        print("ready", flush=True)
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.05)
        return run.finish({"objective": {"name": "opening_rate", "value": 0.8}})

if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser())
"""


class Journal:
    """A run's directory whose process is this one."""

    def __init__(self, directory: Path) -> None:
        (directory / "journal").mkdir(parents=True)
        self.directory = directory
        self.begun = session.start_session(directory).clock.started
        facts = {"id": directory.name.ljust(32, "0"), "operation": "train"}
        write_json(directory / "journal" / "run.json", facts)

    def says(self, done, total, seconds, **more):
        progress = {"t": self.begun + 1000 * seconds, "seconds": seconds, "session": 1}
        progress |= {"done": done, "total": total, "unit": "update"} | more
        write_json(self.directory / "journal" / "progress.json", progress)

    def logs(self, step, seconds, **metrics):
        line = {"t": self.begun + 1000 * seconds, "step": step, "m": metrics}
        append_line(self.directory / "journal" / "metrics.jsonl", line)


def lines_of(view, width):
    """The lines of a view, as a terminal of a width shows them."""
    file = io.StringIO()
    Console(file=file, width=width, height=100).print(view)
    return file.getvalue().removesuffix("\n").split("\n")


@pytest.fixture
def jobs(project: Project):
    return Jobs(project, None)


def test_time_left_follows_the_recent_speed(project, jobs):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    run.says(10, 100, 100)
    jobs.refresh()
    (job,) = jobs.running
    now = run.begun / 1000 + 100
    assert job.left(now) == pytest.approx(900)  # on average so far: one in ten seconds
    run.says(30, 100, 110)
    jobs.refresh()
    assert job.left(now + 10) == pytest.approx(70 / 2)  # two a second lately
    assert job.left(now + 15) == pytest.approx(70 / 2 - 5)  # and time goes by
    for second in range(111, 300):  # from here on a tenth of that
        run.says(30 + (second - 110) * 0.2, 100, second)
        job.refresh()
    assert job.left(now + 199) == pytest.approx((100 - job.done) / 0.2, rel=0.01)
    run.says(100, 100, 301)
    jobs.refresh()
    assert job.left(now + 201) == 0


def test_speed_is_that_of_the_metrics_steps_unless_the_script_reports_one(project, jobs):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    for second in range(20):
        run.logs(5 * second, second, rate=second)
    jobs.refresh()
    (job,) = jobs.running
    assert job.steps_per_second == pytest.approx(5)
    assert job.last == {"rate": 19}
    run.logs(99, -1, rate=0.5)
    metrics = run.directory / "journal" / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[:-40])  # a line that is being written
    jobs.refresh()
    assert job.last["rate"] == 19
    metrics.write_bytes(whole)
    run.logs(100, 20, **{"time/steps_per_second": 1234.0})
    jobs.refresh()
    assert job.last["rate"] == 0.5
    assert job.steps_per_second == 1234


@pytest.mark.parametrize(
    "value", ["1e999", "-1e999", "NaN", "1e308", "1" + "0" * 400, "[]", "null"]
)
def test_numbers_out_of_range_in_a_journal_stop_nothing(project, jobs, value):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    for second in (1, 2):
        run.says(second, 100, second)
        run.logs(second, second, rate=0.5)
        jobs.refresh()
    progress = run.directory / "journal" / "progress.json"
    for name in ("t", "seconds", "done", "total"):
        content = {"t": run.begun, "seconds": 3, "session": 1, "done": 1e-300, "total": 8} | {
            name: 0
        }
        written = ", ".join(f'"{n}": {value if n == name else v}' for n, v in content.items())
        progress.write_text(f"{{{written}}}")
        with (run.directory / "journal" / "metrics.jsonl").open("a") as file:
            for t, step, rate in ((value, 9, 1), (run.begun, value, 1), (run.begun, 9, value)):
                file.write(f'{{"t": {t}, "step": {step}, "m": {{"rate": {rate}}}}}\n')
        jobs.refresh()
        assert [job.run[:8] for job in jobs.running] == ["aaaaaaaa"]
        view = watch.frame(jobs, {}, run.begun / 1000 + 5, 100, 30)
        assert lines_of(view, 100)[0].startswith("1 running")


@pytest.mark.parametrize("ended", ["1e999", '"soon"', "[1]", "null"])
def test_an_end_of_any_shape_is_shown(project, jobs, ended):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    run.says(1, 2, 3)
    jobs.refresh()
    assert jobs.running
    end = r'{"session": 1, "status": ["\u001b[2J"], "reason": {"a": 1}, "ended": '
    (run.directory / "result.json").write_text(f"{end}{ended}}}")
    jobs.refresh()
    shown = "\n".join(lines_of(watch.frame(jobs, {}, run.begun / 1000 + 5), 100))
    assert "aaaaaaaa" in shown
    assert "\x1b" not in shown


def test_a_long_journal_is_read_from_its_end(project, jobs):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    lines = "".join(
        f'{{"t":{run.begun + i},"step":{i},"m":{{"rate":{i},"x":"NaN"}}}}\n' for i in range(20_000)
    )
    (run.directory / "journal" / "metrics.jsonl").write_text(lines)
    jobs.refresh()
    (job,) = jobs.running
    assert job.last["rate"] == 19_999
    assert job.last["x"] != job.last["x"]


def test_a_journal_that_cannot_be_read_after_the_end_leaves_the_end_as_it_was(project, jobs):
    run = Journal(project.root / "runs" / "aaaaaaaa")
    jobs.refresh()
    ended = {"status": "FAILED", "reason": "why", "ended": 1, "session": 1}
    write_json(run.directory / "result.json", ended)
    jobs.refresh()
    shutil.rmtree(run.directory / "journal")
    (run.directory / "journal").symlink_to("journal")  # too many levels of links
    jobs.refresh()
    assert [job.status.reason for job in jobs.ended] == ["why"]


def test_running_and_ended_runs_are_listed_and_a_resumed_one_runs_again(project, jobs):
    runs = project.root / "runs"
    (runs / "no-run").mkdir(parents=True)
    (runs / "torn" / "journal").mkdir(parents=True)
    (runs / "torn" / "journal" / "sessions.jsonl").write_text('{"session"')
    jobs.refresh()
    assert jobs.running == []
    first = Journal(runs / "aaaaaaaa")
    ended = {"status": "FINISHED", "reason": "", "ended": 1, "session": 1}
    write_json(first.directory / "result.json", ended)
    second = Journal(runs / "bbbbbbbb")
    jobs._scanned = 0.0
    jobs.refresh()
    assert [job.run[:8] for job in jobs.running] == ["bbbbbbbb"]
    write_json(second.directory / "result.json", ended | {"status": "FAILED", "reason": "why"})
    jobs.refresh()
    assert jobs.running == []
    assert [(job.run[:8], job.status.reason) for job in jobs.ended] == [("bbbbbbbb", "why")]
    session.start_session(second.directory)
    jobs._scanned = 0.0
    jobs.refresh()
    assert [job.run[:8] for job in jobs.running] == ["bbbbbbbb"]
    assert jobs.ended == []


def test_the_metric_is_the_one_that_guild_compare_shows(project):
    path = project.experiments / "toy" / "guild.yml"
    text = path.read_text().replace(
        "train: {main: src/toy.train,",
        "train: {compare: ['=lr', .result, x step as n, loss], main: src/toy.train,",
    )
    path.write_text(text)
    columns = metrics_of(project)["toy:train"]
    job = Job(project.root, "a" * 32, last={"opening_rate": 1.0, "loss": 2.0, "time/x": 3.0})
    assert job.metric(columns) == ("loss", 2.0)
    assert job.metric(()) == ("opening_rate", 1.0)
    assert Job(project.root, "a" * 32).metric(columns) is None


class Many:
    """Artificial jobs."""

    def __init__(self, running, ended):
        self.running, self.ended = running, ended


names = st.text(max_size=40) | st.sampled_from(
    ["train", "日本語の長いラベル", "a|b\x1b[31m\n", "🙂" * 9]
)
numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 10**9).map(float)


@st.composite
def made_up(draw, end=False):
    job = Job(Path("/x"), f"{draw(st.integers(0, 2**32 - 1)):08x}" * 4)
    job.operation, job.label, job.unit = draw(names), draw(names), draw(names)
    job.done = draw(st.floats(0, 1e9))
    job.total = draw(st.sampled_from([0.0, 1.0, 1e9]))
    job.sign = draw(st.integers(0, 10**12))
    job.last = draw(st.dictionaries(names, numbers, max_size=3))
    if end:
        job.status = Status(draw(st.sampled_from(["FAILED", "FINISHED"])), draw(names), 10**12)
    return job


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(made_up(), max_size=4),
    st.integers(1, 25),
    st.lists(made_up(end=True), max_size=4),
    st.integers(20, 160),
    st.integers(3, 50),
)
def test_every_view_fits(running, times, ended, width, height):
    view = watch.frame(Many(running * times, ended), {}, 10**9, width, height)
    lines = lines_of(view, width)
    assert len(lines) <= max(height, 6)  # the screen cuts what is below its end
    for line in lines:
        assert terminal.width(line) <= width
        assert "\x1b" not in line


def test_a_hundred_jobs_are_counted_with_the_silent_ones_first():
    now = 10**9
    running = []
    for n in range(100):
        job = Job(Path("/x"), f"{n:08x}", "hnppo:train", "lever", sign=1000 * (now - n % 7))
        job.done, job.total, job.last = n, 100.0, {"opening_rate": n / 100}
        running.append(job)
    running[60].sign = 1000 * (now - int(STALE) - 5)
    lines = lines_of(watch.frame(Many(running, []), {}, now, 100, 30), 100)
    assert lines[0].startswith("100 running, 1 without a sign of life")
    assert lines[2].startswith("0000003c")
    assert "silent 2:05" in lines[2]
    assert lines[-1].startswith("… 73 more") or lines[-1].startswith("… 74 more")
    assert len(lines) <= 30
    shown = int(re.search(r"\d+", lines[-1])[0]) + sum(
        bool(re.match("0000", line)) for line in lines
    )
    assert shown == 100
    narrow = lines_of(watch.frame(Many(running, []), {}, now, 40, None), 40)
    assert len(narrow) == 102
    assert all(re.match(r"[0-9a-f]{8} .* \d+ %", line) for line in narrow[2:])


def _in_a_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Tests that run under nohup or in the background would hand on that these are ignored.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A command in a separate terminal."""

    def __init__(self, shell, *arguments):
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        others = ("COLUMNS", "LINES", "PYTHONUNBUFFERED")
        env = {k: v for k, v in shell.env.items() if k not in others}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runcatalog.cli.main", *arguments],
            cwd=shell.root,
            env=env | {"TERM": "xterm"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            preexec_fn=_in_a_terminal,
        )
        os.close(inner)
        self.outer, self.text = outer, ""

    def read_until(self, pattern, seconds=240.0):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.outer], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # the other side is closed
                    self.text += os.read(self.outer, 65536).decode(errors="replace")

    def type(self, text):
        os.write(self.outer, text.encode())

    def end(self):
        """Wait for the end; return the exit status."""
        code = None
        while code is None:
            with contextlib.suppress(OSError):
                if select.select([self.outer], [], [], 0.05)[0]:
                    self.text += os.read(self.outer, 65536).decode(errors="replace")
            code = self.process.poll()
        with contextlib.suppress(OSError):
            while select.select([self.outer], [], [], 0.05)[0]:
                self.text += os.read(self.outer, 65536).decode(errors="replace")
        os.close(self.outer)
        return code

    @property
    def is_restored(self):
        """Whether cursor and screen are as before."""
        shows, hides = self.text.rfind("\x1b[?25h"), self.text.rfind("\x1b[?25l")
        back, other = self.text.rfind("\x1b[?1049l"), self.text.rfind("\x1b[?1049h")
        return shows > hides >= 0 and back > other >= 0


@pytest.fixture
def training(shell):
    """Start a run that has logged eight updates and wait for a file; they end with the test."""
    (shell.root / "train.py").write_text(SCRIPT)
    started = []

    def start(go="never"):
        process = prepared.Process(
            [prepared.python(), "train.py"],
            cwd=shell.root,
            env=shell.env | {"RECORD_MLFLOW": "off", "GO": str(shell.root / go)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert "ready\n" in iter(process.stdout.readline, "")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_in_a_terminal_it_follows_a_run_to_its_end_and_leaves_cleanly(shell, training):
    finishes, dies = training("go"), training()
    view = Terminal(shell, "watch")
    view.read_until(r"2 running")
    view.read_until(r"train .*━{12}.*100 %.*8/8 update.*opening_rate 0\.8")
    (shell.root / "go").touch()
    view.read_until(r"train +FINISHED +opening_rate 0\.8 ")
    dies.kill()
    finishes.wait()
    dies.wait()
    view.read_until(r"train +KILLED +process gone")
    view.read_until(r"nothing is running, 2 ended meanwhile")
    assert not view.is_restored
    view.type("\x03")
    assert view.end() == 0
    assert view.is_restored
    left = view.text[view.text.rfind("\x1b[?1049l") :]
    assert "FINISHED" in left  # its last state stays on the screen
    assert "KILLED" in left
    assert "Traceback" not in view.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal_it_gives_the_terminal_back(shell, number):
    view = Terminal(shell, "watch")
    view.read_until("nothing is running")
    view.process.send_signal(number)
    assert view.end() == 128 + number
    assert view.is_restored


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(shell):
    view = Terminal(shell, "watch")
    view.read_until("nothing is running")
    view.process.send_signal(signal.SIGTSTP)
    _, status = os.waitpid(view.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    view.read_until(r"\x1b\[\?1049l")
    assert view.is_restored
    before = len(view.text)
    view.process.send_signal(signal.SIGCONT)
    view.read_until(r"(?s)1049l.*1049h.*nothing is running")
    assert len(view.text) > before
    view.type("\x03")
    assert view.end() == 0
    assert view.is_restored


def test_ctrl_z_in_the_middle_of_drawing_waits_for_its_end(shell):
    view = Terminal(shell, "watch")
    view.read_until("nothing is running")
    # More than the terminal takes unread: the next frame waits in its write.
    fcntl.ioctl(view.outer, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 500, 0, 0))
    time.sleep(3 * watch.INTERVAL)
    view.process.send_signal(signal.SIGTSTP)
    process, status = 0, 0
    while not process:
        if select.select([view.outer], [], [], 0.01)[0]:
            view.text += os.read(view.outer, 1 << 16).decode(errors="replace")
        process, status = os.waitpid(view.process.pid, os.WUNTRACED | os.WNOHANG)
    assert os.WIFSTOPPED(status)
    view.process.send_signal(signal.SIGCONT)
    view.type("\x03")
    assert view.end() == 0
    assert view.is_restored


def test_without_a_terminal_it_prints_once(shell, training):
    assert shell.catalog("watch").startswith("nothing is running")
    training()
    text = shell.catalog("watch --once")
    assert re.search(r"1 running.*\n.*\n[0-9a-f]{8} +train .*100 %", text)
    assert "\x1b" not in text


def test_guilds_batches_and_their_trials(shell):
    (shell.root / "src" / "toy" / "slow.py").write_text(SCRIPT)
    slow = "slow: {main: src/toy.slow, flags-import: all}\n    broken:"
    path = shell.root / "experiments" / "toy" / "guild.yml"
    path.write_text(path.read_text().replace("broken:", slow))
    batch = subprocess.Popen(
        [prepared.folder() / "guild", "run", "toy:slow", "lr=[1e-3,5e-3]", "-y"],
        cwd=shell.root,
        env=shell.env | {"RECORD_MLFLOW": "off", "GO": str(shell.root / "go")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, end = "", time.monotonic() + 240
        while not re.search(r"toy:slow  .*lr=0\.001.* 100 %.*opening_rate", text):
            assert batch.poll() is None
            assert time.monotonic() < end, text
            time.sleep(0.2)
            text = shell.inside("watch")
        assert text.startswith("2 running")
        assert re.search(r"toy:slow batch .* 0 trials done", text)
        shell.inside("sync")
    finally:
        (shell.root / "go").touch()
        output, _ = batch.communicate(timeout=240)
    assert batch.returncode == 0
    assert shell.inside("watch").startswith("nothing is running")
    shell.inside("sync")
    key = re.findall(r"catalog row (\w{8})\n", output)[-1]
    assert f"| {key}" in shell.inside(f"row {key}")


def test_a_script_that_records_nothing_is_running_and_not_starting(project, tmp_path):
    guild = tmp_path / "guild/runs" / ("ab" * 16) / ".guild"
    (guild / "attrs").mkdir(parents=True)
    (guild / "opref").write_text("guildfile:/nowhere '' toy plain")
    (guild / "attrs" / "started").write_text(str(1_700_000_000_000_000))
    (guild / "LOCK").write_text(str(os.getpid()))
    jobs = Jobs(project, tmp_path / "guild")
    jobs.refresh()
    (job,) = jobs.running
    now = job.begun / 1000 + 3700
    assert "running 1:01:40" in "".join(lines_of(watch.frame(jobs, {}, now, 100), 100))
    (guild / "output").write_text("step: 1\nloss: 0.5\nstep: 20\nloss: 0.25\n")
    jobs.refresh()
    shown = "".join(lines_of(watch.frame(jobs, {}, now, 100), 100))
    assert "running 1:01:40, step 20" in shown
    assert "starting" not in shown
